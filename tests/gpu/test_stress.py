"""What a quiet card does not show: kernels that come late, memory that others have used (performance.md 9)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.machine import set_up, write_cifar_shaped
from tests.gpu.lives import CUDA, build, config, play
from worker.envs.morph.engine import captured
from worker.envs.morph.task.config import EnvConfig

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]
#: Seventeen episodes of sixty steps.
EPISODES, STEPS = 17, 60
#: Longest delay before a replay, in cycles of the clock (half a millisecond).
CYCLES = 1_000_000


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cifar")
    write_cifar_shaped(folder)
    return folder


@pytest.fixture(params=["captured", "fused"])
def quick(request: pytest.FixtureRequest) -> Iterator[EnvConfig]:
    set_up(tf32=True)
    yield config(path=request.param, precision="bf16", batches_per_step=2)
    torch.use_deterministic_algorithms(False)


class Hoarder:
    """Takes memory on two streams and gives it back full of NaN: whoever reads a place at the wrong time differs."""

    def __init__(self) -> None:
        self._rng, self._held = np.random.default_rng(3), list[torch.Tensor]()
        self._beside = torch.cuda.Stream(CUDA)  # type: ignore[no-untyped-call]

    def __call__(self, step: int) -> None:
        for stream in (torch.cuda.current_stream(CUDA), self._beside):
            with torch.cuda.stream(stream):
                for size in self._rng.integers(1, 1 << 22, size=4):
                    self._held.append(torch.full((int(size),), torch.nan, device=CUDA))
        self._rng.shuffle(self._held)
        del self._held[8:]
        if step % 20 == 0:
            torch.cuda.empty_cache()


def test_a_thousand_steps_equal_those_beside_a_hoarder_of_memory(
    data_dir: Path, quick: EnvConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    calm = build(quick, data_dir)
    expected = [play(calm, STEPS, episode=episode) for episode in range(EPISODES)]
    monkeypatch.setattr(captured, "CACHE_SIZE", 24)  # graphs come and go, and their memory with them
    pressed, disturb = build(quick, data_dir), Hoarder()
    assert [play(pressed, STEPS, episode=episode, disturb=disturb) for episode in range(EPISODES)] == expected


def test_late_kernels_on_any_stream_change_no_bit(
    data_dir: Path, quick: EnvConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = play(build(quick, data_dir, ("A", "B")), STEPS)
    rng, replay, delays = np.random.default_rng(5), torch.cuda.CUDAGraph.replay, 0

    def late(graph: torch.cuda.CUDAGraph) -> None:
        nonlocal delays
        if rng.random() < 0.3:
            delays += 1
            torch.cuda._sleep(int(rng.integers(CYCLES)))  # type: ignore[no-untyped-call]
        replay(graph)

    def delay_acting(_: int) -> None:
        torch.cuda._sleep(int(rng.integers(CYCLES)))  # type: ignore[no-untyped-call]

    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", late)
    assert play(build(quick, data_dir, ("A", "B")), STEPS, disturb=delay_acting) == expected
    assert delays > STEPS
