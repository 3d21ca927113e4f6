"""The captured path against the plain one, and isolation of runs, on an NVIDIA GPU (performance.md 9)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from benchmarks.machine import set_up, write_cifar_shaped
from tests.gpu.lives import CUDA, build, config, digest, play, state
from tests.worker.envs.morph.factories import SEED
from tests.worker.train.cases import MORPH, MORPH_ARMS, block, digests
from worker.envs.morph.engine import captured
from worker.envs.morph.engine.captured import CapturedEngine
from worker.envs.morph.engine.eager import run_jobs
from worker.envs.morph.episode.controls import make_control
from worker.envs.morph.episode.env import MorphEnvs
from worker.envs.morph.episode.shared_data import rest
from worker.envs.morph.life.stages import Op
from worker.envs.morph.task.config import EnvConfig, resolve_path
from worker.train.block import BlockTrainer, RoundRecord
from worker.train.environments import make_environments
from worker.train.evaluate import Evaluator
from worker.train.runs import TrainedRun

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]
STEPS = 12
Record = Callable[[str, object], None]
#: Largest difference of fp32 parameters, statistics and measurements between the paths.
FP32_LIMIT = 1e-6
#: The same for parameters after 12 steps where both paths round products to TF32, each in its own way.
TF32_LIMIT = 5e-3


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cifar")
    write_cifar_shaped(folder)
    return folder


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    set_up(tf32=False)
    yield
    torch.use_deterministic_algorithms(False)


def largest(a: MorphEnvs, b: MorphEnvs) -> float:
    pairs = zip(state(a, 0), state(b, 0), strict=True)
    return max(float((x.double() - y.double()).abs().nan_to_num(0.0).max()) for x, y in pairs if x.numel())


def largest_parameter(a: MorphEnvs, b: MorphEnvs) -> float:
    stores = zip(a.runs[0].world.networks, b.runs[0].world.networks, strict=True)
    return max(float((x.store.flat - y.store.flat).abs().max()) for x, y in stores)


def test_captured_life_of_60_steps_equals_the_plain_one(data_dir: Path, record_property: Record) -> None:
    plain = build(config(path="eager", precision="fp32"), data_dir, num_envs=3)
    fast = build(config(path="captured", precision="fp32"), data_dir, num_envs=3)
    for envs in (plain, fast):
        envs.begin_round(0)
    control = make_control("random", plain, 0)
    worst, ops = 0.0, Counter[int]()
    for step in range(60):
        actions = control.act(step)
        ops.update(actions[:, 0].tolist())
        plain.step([actions])
        fast.step([actions])
        worst = max(worst, largest(plain, fast))
    record_property("largest_difference", worst)
    assert {Op.GERMINATE, Op.ADVANCE, Op.PRUNE, Op.FOSSILIZE, Op.SET_ALPHA_TARGET} <= set(ops)
    assert worst <= FP32_LIMIT


def test_bf16_captured_equals_bf16_plain(data_dir: Path) -> None:
    plain = build(config(path="eager", precision="bf16"), data_dir)
    fast = build(config(path="captured", precision="bf16"), data_dir)
    for envs in (plain, fast):
        envs.begin_round(0)
    control = make_control("random", plain, 0)
    for step in range(STEPS):
        actions = control.act(step)
        plain.step([actions])
        fast.step([actions])
    assert largest(plain, fast) <= FP32_LIMIT


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_a_step_reads_back_once_and_waits_for_nothing_else(data_dir: Path) -> None:
    envs = build(config(), data_dir, ("A", "B"))
    play(envs, 4)
    engine = envs.engine
    assert isinstance(engine, CapturedEngine)
    draws = envs._draws.take(0, 0, 4)
    jobs = [envs._job(run.world, 0, draws, last=False) for run in envs.runs]
    run_jobs(engine, jobs, envs.data.val)
    before = engine.counters.copies
    try:
        torch.cuda.set_sync_debug_mode("error")
        run_jobs(engine, jobs, envs.data.val)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert engine.counters.copies == before + 1


@pytest.fixture(params=["captured", "fused"])
def quick(request: pytest.FixtureRequest) -> EnvConfig:
    """Both fast paths in bf16."""
    set_up(tf32=True)
    return config(path=request.param, precision="bf16")


def test_fused_steps_equal_plain_ones(data_dir: Path, record_property: Record) -> None:
    set_up(tf32=True)
    plain = build(config(path="captured", precision="fp32"), data_dir)
    fused = build(config(path="fused", precision="fp32"), data_dir)
    for envs in (plain, fused):
        envs.begin_round(0)
    control = make_control("random", plain, 0)
    worst = 0.0
    for step in range(3):
        actions = control.act(step)
        plain.step([actions])
        fused.step([actions])
        worst = max(worst, largest_parameter(plain, fused))
    record_property("largest_difference_tf32", worst)
    assert worst <= TF32_LIMIT


@pytest.mark.parametrize("poison", [float("nan"), 1e3])
def test_i1_noise_and_nan_in_b_leave_a_alone(data_dir: Path, quick: EnvConfig, poison: float) -> None:
    clean = play(build(quick, data_dir, ("A", "B")), STEPS)[0]
    envs = build(quick, data_dir, ("A", "B"))

    def disturb(step: int) -> None:
        for network in envs.runs[1].world.networks:
            network.store.flat.fill_(poison)

    assert play(envs, STEPS, disturb=disturb)[0] == clean


def test_i2_i3_place_and_company_change_nothing(data_dir: Path, quick: EnvConfig) -> None:
    alone = play(build(quick, data_dir, ("A",)), STEPS)[0]
    first = play(build(quick, data_dir, ("A", "B")), STEPS)[0]
    second = play(build(quick, data_dir, ("B", "A")), STEPS)[1]
    assert alone == first == second


def test_i3_more_environments_leave_the_first_alone(data_dir: Path) -> None:
    few, many = build(config(), data_dir, num_envs=1), build(config(), data_dir, num_envs=4)
    play(few, STEPS)
    play(many, STEPS)
    for a, b in zip(
        (few.runs[0].world.networks[0].store.flat, few.runs[0].world.networks[0].store.buffers),
        (many.runs[0].world.networks[0].store.flat, many.runs[0].world.networks[0].store.buffers),
        strict=True,
    ):
        assert torch.equal(a, b)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_i3_an_arm_learns_the_same_alone_and_in_company() -> None:
    company, alone = (
        BlockTrainer(block(MORPH, MORPH_ARMS, only=only, env={"n_envs": 3}, ppo={"minibatches": 3}), CUDA)
        for only in (None, (0,))
    )
    assert [[cohort.groups for cohort in held.envs.cohorts] for held in (company, alone)] == [[(1, 2)] * 2, [()] * 2]
    for _ in zip(range(2), company.rounds(0), alone.rounds(0), strict=False):
        one, own = next(run for run in company.runs if run.plan.arm == "A"), alone.runs[0]
        assert isinstance(one, TrainedRun)
        assert isinstance(own, TrainedRun)
        assert torch.equal(one.rollout.actions, own.rollout.actions)
        assert torch.equal(one.rollout.log_probs, own.rollout.log_probs)
        assert torch.equal(one.learner.flat.data, own.learner.flat.data)
    company.close()
    alone.close()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two NVIDIA GPUs")
@pytest.mark.parametrize("path", ["captured", "fused"])
def test_i4_another_device_gives_the_same_bits(data_dir: Path, path: str) -> None:
    def on(card: str) -> str:
        # as a worker binds its device: the process sees no other
        command = [sys.executable, "-m", "tests.gpu.lives", str(data_dir), path, str(STEPS)]
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": card}
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout

    assert on("0") == on("1") != ""


def test_i5_equal_arms_are_equal(data_dir: Path, quick: EnvConfig) -> None:
    one, two = play(build(quick, data_dir, ("A", "A")), STEPS)
    assert one == two


def test_i6_a_repeated_and_a_resumed_run_are_equal(data_dir: Path) -> None:
    whole = build(config(horizon=STEPS), data_dir)
    rounds = [play(whole, STEPS, episode=0), play(whole, STEPS, episode=1)]
    again = build(config(horizon=STEPS), data_dir)
    assert play(again, STEPS, episode=0) == rounds[0]
    resumed = build(config(horizon=STEPS), data_dir)
    resumed.load_state_dict(0, again.state_dict(0))
    assert play(resumed, STEPS, episode=1) == rounds[1]


def test_i7_churn_and_eviction_beside_it_leave_a_alone(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clean = play(build(config(), data_dir, ("A", "B")), STEPS)[0]
    monkeypatch.setattr(captured, "CACHE_SIZE", 2)
    envs = build(config(), data_dir, ("A", "B"))

    def churn(step: int) -> None:
        world = envs.runs[1].world
        for env in range(2):
            if world.networks[env].live[0] is not None:
                world.remove(env, 0, "policy")
        # the control of B acts on what is there now
        envs.runs[1].legal = world.legality()

    assert play(envs, STEPS, disturb=churn)[0] == clean
    assert envs.engine.counters.evictions > 0
    assert digest(envs, 0) != digest(envs, 1)


def test_a_rehearsal_changes_no_bit(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clean = play(build(config(), data_dir), STEPS)
    monkeypatch.setattr(captured, "_LOADED", set())
    envs = build(config(), data_dir)
    envs.rehearse()
    assert captured._LOADED
    assert play(envs, STEPS) == clean


@pytest.mark.parametrize("path", ["captured", "fused"])
def test_graphs_of_one_replicate_serve_the_next(data_dir: Path, path: str) -> None:
    alone = build(config(path=path), data_dir, seed=SEED + 1)
    clean = play(alone, STEPS)
    first = build(config(path=path), data_dir)
    play(first, STEPS)
    first.close()
    rest()
    following = build(config(path=path), data_dir, seed=SEED + 1)
    assert following.engine is first.engine
    before = following.engine.counters.captures
    assert play(following, STEPS) == clean
    assert following.engine.counters.captures - before < alone.engine.counters.captures


def test_graphs_of_training_serve_evaluation_and_change_no_number() -> None:
    plan = block(MORPH, MORPH_ARMS, eval={"every_rounds": 1})
    held, records = BlockTrainer(plan, CUDA), list[RoundRecord]()
    # on networks that train nothing, and in one cohort
    idle = make_environments(plan, CUDA, phase="train", num_envs=held.num_envs)
    beside = Evaluator(plan, CUDA, None, idle)
    for record in held.rounds(0):
        records.append(record)
        fresh = beside.evaluate(held.runs, record.round)
        for run in record.runs:
            clean = fresh[run.run_id].metrics
            assert {name: run.metrics[name] for name in clean} == clean
    rarely = BlockTrainer(block(MORPH, MORPH_ARMS, eval={"every_rounds": 50}), CUDA)
    assert digests(list(rarely.rounds(0)), "run-A") == digests(records, "run-A")
    engine = held.envs.cohorts[0].envs.engine  # type: ignore[attr-defined]
    assert held.evaluator._envs is not None
    assert (len(held.evaluator._envs.cohorts), len(idle.cohorts)) == (2, 1)
    assert len(engine._lanes) == (len(plan.runs) + 1) * held.num_envs, "the twin's are its own"


def test_auto_is_fused_where_kernels_take_the_host() -> None:
    assert resolve_path(config(path="auto"), CUDA) == "fused"
    assert resolve_path(EnvConfig.for_task("lm_tiny", path="auto"), CUDA) == "captured"


def test_capture_does_not_train(data_dir: Path) -> None:
    envs = build(config(), data_dir)
    envs.begin_round(0)
    network = envs.runs[0].world.networks[0]
    job = envs._job(envs.runs[0].world, 0, envs._draws.take(0, 0, 0), last=False)
    assert isinstance(envs.engine, CapturedEngine)
    before = [tensor.clone() for tensor in network.store.state()]
    envs.engine._prepare(job, envs.data.val, captured._keys(job, envs.data.val))
    torch.cuda.synchronize(CUDA)
    assert all(torch.equal(a, b) for a, b in zip(network.store.state(), before, strict=True))
