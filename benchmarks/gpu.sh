#!/usr/bin/env bash
# What needs an NVIDIA GPU, part by part, with JSON for each figure:
#
#   benchmarks/gpu.sh OUT tests       correctness gates and parity (pytest -m gpu)
#   benchmarks/gpu.sh OUT sanitize    no access out of bounds in a short life (SANITIZER=PATH: compute-sanitizer,
#                                     of the CUDA toolkit or of the package nvidia-cuda-sanitizer-api-cu12)
#   benchmarks/gpu.sh OUT speed       the work unit of the reference, every path and precision, one and two arms
#   benchmarks/gpu.sh OUT configs     the default path with 16 and 32 environments, 2 x 8, 3 x 4, and free policies
#   benchmarks/gpu.sh OUT whole       two arms x ten replicates through the service, cold (about four minutes)
#   benchmarks/gpu.sh OUT placement   arms on a GPU each against one GPU for both (two GPUs)
#   benchmarks/gpu.sh OUT engine      hosts alone: captured against plain, with grafts
#   benchmarks/gpu.sh OUT precision   bf16 against TF32, ten replicates
#   benchmarks/gpu.sh OUT service     what the control plane costs beside the bare loop
#   benchmarks/gpu.sh OUT headroom    CIFAR presets on generated images in CIFAR-10's format
#
# A part that fails is named at the end and makes the script fail; the others still run.
set -uo pipefail
cd "$(dirname "$0")/.."
out="$1"
shift
mkdir -p "$out"
python="${PYTHON:-python3}"
export OMP_NUM_THREADS=1 CUBLAS_WORKSPACE_CONFIG=:4096:8
failed=()

step() {
  local name="$1"
  shift
  local began=$SECONDS
  "$@" >"$out/$name.log" 2>&1 || failed+=("$name")
  tail -n 8 "$out/$name.log"
  echo "== $name: $((SECONDS - began)) s"
}

ab() {
  local name="$1"
  shift
  step "ab_$name" "$python" -m benchmarks.lockstep_ab --match reference --out "$out/lockstep_ab_$name.json" "$@"
}

for part in "$@"; do
  case "$part" in
    tests) step tests "$python" -m pytest tests/gpu -m gpu -rA -p no:cacheprovider ;;
    speed)
      ab fused_bf16_1arm --path fused --precision bf16
      ab fused_bf16_2arms --path fused --precision bf16 --arms 2
      ab fused_tf32_1arm --path fused --precision fp32 --tf32
      ab captured_tf32_1arm --path captured --precision fp32 --tf32
      ab captured_bf16_1arm --path captured --precision bf16
      ;;
    configs)
      ab bf16_16envs --precision bf16 --n-envs 16
      ab bf16_32envs --precision bf16 --n-envs 32
      ab bf16_2arms_8envs --precision bf16 --arms 2 --n-envs 8
      ab bf16_3arms --precision bf16 --arms 3
      ab bf16_2arms_free --precision bf16 --arms 2 --free
      ;;
    whole)
      step whole "$python" -m benchmarks.whole_experiment --device gpu --precision bf16 --out "$out/whole_experiment.json"
      ;;
    placement)
      step placement "$python" -m benchmarks.placement --match reference --n-envs 16 --device gpu --precision bf16 \
        --rounds 4 --out "$out/placement.json"
      ;;
    sanitize) # a short life of both paths under compute-sanitizer, of the CUDA toolkit
      "$python" -c "import sys, pathlib; from benchmarks.machine import write_cifar_shaped as w; w(pathlib.Path(sys.argv[1]))" "$out/images"
      for path in captured fused; do
        step "memcheck_$path" "${SANITIZER:-compute-sanitizer}" --tool memcheck --error-exitcode 9 \
          "$python" -m tests.gpu.lives "$out/images" "$path" 3
      done
      rm -rf "$out/images"
      ;;
    engine) step host_engine "$python" -m benchmarks.host_engine --out "$out/host_engine.json" ;;
    precision)
      step precision "$python" -m benchmarks.precision --horizon 40 --gratings "$out/gratings" --out "$out/precision.json"
      ;;
    service)
      step overhead "$python" -m benchmarks.overhead --match reference --device gpu --precision bf16 --out "$out/overhead.json"
      ;;
    headroom)
      step headroom "$python" -m benchmarks.headroom --cases cifar_baseline cifar_impaired cifar_bench \
        --gratings "$out/gratings" --out "$out/headroom"
      ;;
    *) failed+=("$part (unknown)") ;;
  esac
done
rm -rf "$out/gratings"
[ "${#failed[@]}" -eq 0 ] || { echo "failed: ${failed[*]}"; exit 1; }
