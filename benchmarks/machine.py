"""What benchmarks of training share: settings, work units, CIFAR-shaped data, facts of the machine, results as JSON.

``python -m benchmarks.machine`` prints the facts of this machine.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pynvml
import torch

from lockstep.spec.presets import merge
from worker import numerics
from worker.envs.morph.task import cifar

_COPY_BYTES, _COPIES = 2**30, 10
EDGE = 32
_EPISODE = {"task": "cifar_baseline", "n_envs": 4, "horizon": 40, "batch_size": 512, "batches_per_step": 24}
_LIFE = {"slots": ["r0c0", "r0c1", "r0c2"], "val_images": 2500, "auto_advance": ["g1", "g2", "g3"]}
#: Section ``env`` of each work unit; ``reference`` is that of performance.md 2.
MATCHES: Mapping[str, Mapping[str, Any]] = {
    "reference": {**_EPISODE, **_LIFE},
    "tiny": {
        "task": "digits_tiny", "n_envs": 2, "horizon": 8, "batch_size": 64, "batches_per_step": 1,
        "val_images": 200, "auto_advance": ["g1", "g2", "g3"],
    },
}  # fmt: skip


def work_unit(match: str, n_envs: int | None = None) -> dict[str, Any]:
    """Return the spec of a work unit or of a preset; a known number of environments bounds the minibatches."""
    found: dict[str, Any] = {"env": dict(MATCHES[match])} if match in MATCHES else {"preset": match}
    if n_envs is not None:
        found = merge(found, {"env": {"n_envs": n_envs}})
    known = found.get("env", {}).get("n_envs")
    return found if known is None else {**found, "ppo": {"minibatches": min(4, known)}}


def set_up(*, tf32: bool) -> torch.device:
    """Fix the numerical settings of a run (performance.md 6) and return the device."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    return numerics.set_up(deterministic=True, tf32=tf32, threads=1)


def facts(device: torch.device) -> dict[str, Any]:
    """Return what every result begins with."""
    return {"schema": 1, "machine": machine(device), "versions": versions()}


def facts_alone() -> dict[str, Any]:
    """Return the facts as found by a process that has ended.

    What CUDA holds in this process would be memory in use to a worker that checks whether its device is free.
    """
    command = [sys.executable, "-m", "benchmarks.machine"]
    found: dict[str, Any] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return found


def save(out: Path | None, report: Mapping[str, Any]) -> None:
    """Write a result as JSON, whole or not at all; without a path nothing is written."""
    if out is not None:
        part = out.with_name(f"{out.name}.part")
        part.write_text(json.dumps(report, indent=1) + "\n")
        part.replace(out)


def machine(device: torch.device) -> dict[str, Any]:
    """Return the name of the card, or of the processor."""
    if device.type == "cpu":
        return {"gpu": None, "cpus": os.cpu_count()}
    found = torch.cuda.get_device_properties(device)
    return {"gpu": found.name, "memory_bytes": found.total_memory, "cpus": os.cpu_count()} | Sampler().state()


def versions() -> dict[str, Any]:
    """Return the versions that decide speed and bits."""
    cudnn = torch.backends.cudnn.version() if torch.cuda.is_available() else None  # type: ignore[no-untyped-call]
    return {"torch": torch.__version__, "cuda": torch.version.cuda, "cudnn": cudnn, "numpy": np.__version__}


def copy_rate(device: torch.device) -> float:
    """Return the bytes per second of a large copy within this card, counting reads and writes; NaN on a CPU."""
    if device.type == "cpu":
        return math.nan
    source = torch.empty(_COPY_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    target.copy_(source)
    begin.record()
    for _ in range(_COPIES):
        target.copy_(source)
    end.record()
    end.synchronize()
    return 2.0 * _COPIES * _COPY_BYTES / (float(begin.elapsed_time(end)) / 1000.0)


def known(figure: float) -> float | None:
    """Return a figure as JSON has it: none where it is NaN."""
    return None if math.isnan(figure) else figure


def floor_seconds(rate: float, base: int, element_bytes: int, train_images: float, val_passes: float) -> float:
    """Return T_mem of a three-block host (performance.md 1.1); validation is float32.

    Args:
        rate: ``copy_rate`` of the card.
        base: channels of the first block.
        element_bytes: of training, 2 for bf16 and 4 for fp32.
        train_images: images trained.
        val_passes: images times physical forward passes.
    """
    trained = train_images * (13_824 * base + 6_144) * element_bytes
    return (trained + val_passes * (4_352 * base + 3_072) * 4) / rate


@contextlib.contextmanager
def images(match: str, given: Path | None = None) -> Iterator[Path | None]:
    """Yield the folder of the data sets: the given one, or for ``reference`` generated images, deleted afterwards."""
    if given is not None or match != "reference":
        yield given
        return
    with tempfile.TemporaryDirectory() as folder:
        write_cifar_shaped(Path(folder))
        yield Path(folder)


def write_cifar_shaped(folder: Path, seed: int = 0) -> None:
    """Write 60,000 labelled 3x32x32 images in the form of CIFAR-10: a class pattern under noise."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = np.random.Generator(np.random.Philox(key=seed))
    patterns = draw.integers(0, 100, (10, 3 * EDGE * EDGE), dtype=np.uint8)
    for name in cifar.MEMBERS:
        labels = draw.integers(0, 10, cifar.RECORDS, dtype=np.uint8)
        noise = draw.integers(0, 156, (cifar.RECORDS, 3 * EDGE * EDGE), dtype=np.uint8)
        images = noise + patterns[labels]
        (folder / name).write_bytes(np.concatenate([labels[:, None], images], axis=1).tobytes())


class Sampler(threading.Thread):
    """Reads the card's utilisation through NVML; makes no CUDA call."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.samples: list[int] = []
        self._done = threading.Event()
        self._handle: Any = None
        if torch.cuda.is_available():
            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByIndex(0)

    def state(self) -> dict[str, Any]:
        """Return driver, clock, temperature and throttle reasons of now."""
        if self._handle is None:
            return {}
        return {
            "driver": str(pynvml.nvmlSystemGetDriverVersion()),
            "sm_clock_mhz": pynvml.nvmlDeviceGetClockInfo(self._handle, pynvml.NVML_CLOCK_SM),
            "temperature_c": pynvml.nvmlDeviceGetTemperature(self._handle, pynvml.NVML_TEMPERATURE_GPU),
            "throttle_reasons": pynvml.nvmlDeviceGetCurrentClocksEventReasons(self._handle),
        }

    def run(self) -> None:
        """Sample until ``finish``."""
        while self._handle is not None and not self._done.wait(0.05):
            self.samples.append(pynvml.nvmlDeviceGetUtilizationRates(self._handle).gpu)

    def finish(self) -> float | None:
        """Stop and return the mean utilisation in percent."""
        self._done.set()
        self.join()
        return float(np.mean(self.samples)) if self.samples else None


if __name__ == "__main__":
    print(json.dumps(facts(set_up(tf32=False)), indent=1))
