"""The engine's benchmarks at a size for CPU: they run, count their work and write their schema."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks import host_engine, lockstep_ab, overhead, served
from benchmarks.machine import floor_seconds, write_cifar_shaped
from worker.envs.morph.task import cifar


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    """Leave the numerical settings as they were."""
    fills = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.deterministic = False
    torch.utils.deterministic.fill_uninitialized_memory = fills  # type: ignore[attr-defined]


def test_lockstep_ab_counts_its_work_and_equal_arms_do_not_differ(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "result.json"
    lockstep_ab.main(["--match", "tiny", "--arms", "2", "--rounds", "1", "--out", str(out)])
    report = json.loads(out.read_text())
    work = report["work"]
    assert report["schema"] == 1
    assert work["env_steps"] == 2 * 2 * 8
    assert work["train_images"] == work["env_steps"] * 64
    assert work["device_to_host_copies"] == 8 + 1
    assert 0 < work["val_images_forwarded"] < work["val_images_asked"]
    assert report["checks"]["aa_difference"] == 0.0
    assert report["rate"]["train_images_s"] > 0
    assert all(len(line) <= 110 for line in capsys.readouterr().out.splitlines())


def test_host_engine_reports_parity_of_the_plain_path(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    size = ["--hosts", "2", "--batch", "4", "--images", "120", "--epochs", "1", "--base", "1"]
    host_engine.main([*size, "--precision", "fp32", "--variant", "eager", "--grafts", "0", "1", "--out", str(out)])
    rows = json.loads(out.read_text())["rows"]
    assert [row["cell"]["grafts"] for row in rows] == [0, 1]
    assert all(row["parity_max_abs"] == 0.0 and row["train_images_s"] > 0 for row in rows)


def test_memory_floor_is_that_of_the_specification() -> None:
    # performance.md 1.1, at 3.0 TB/s: 12.9 M img/s at base 8 in bf16, 6.4 M in fp32
    assert 1e6 / floor_seconds(3.0e12, 8, 2, 1e6, 0.0) == pytest.approx(12.9e6, rel=0.01)
    assert 1e6 / floor_seconds(3.0e12, 8, 4, 1e6, 0.0) == pytest.approx(6.4e6, rel=0.01)


@pytest.mark.slow
def test_generated_images_are_read_as_cifar(tmp_path: Path) -> None:
    write_cifar_shaped(tmp_path)
    images, labels = cifar.read(tmp_path)
    assert images.shape == (60_000, 3, 32, 32)
    assert set(labels.tolist()) == set(range(10))


@pytest.mark.server
def test_overhead_trains_the_same_runs_bare_and_through_the_service() -> None:
    spec = overhead.spec_of("tiny", 3, 2)
    assert overhead.bare(spec, None) > 0.0
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    assert served.train(spec, ["cpu"], port, None)["seconds"] > 0.0
