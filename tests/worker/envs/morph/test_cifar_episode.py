"""A block on small files in CIFAR-10's binary format, through the trainer that a worker runs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from tests.worker.envs.morph.test_data import fake_cifar
from tests.worker.train.cases import CPU, block
from worker.envs.morph.episode.env import MorphEnvs
from worker.envs.morph.task import cifar
from worker.train.block import BlockTrainer, ConfigRefused
from worker.train.environments import make_environments

#: 600 images of each class in the five training files, of which 500 validate.
RECORDS = 1_200
BASE: dict[str, Any] = {
    "env": {
        "task": "cifar_impaired",
        "n_envs": 1,
        "horizon": 8,
        "pace": "quick",
        "batch_size": 16,
        "batches_per_step": 1,
        "val_images": 200,
    },
    "budget": {"rounds": 1},
    "eval": {"episodes": 1, "every_rounds": 1},
    "reward": {"mode": "sparse"},
}
ARMS = [{"label": "A", "policy": "noop"}, {"label": "B", "policy": "fixed_early"}]


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cifar, "RECORDS", RECORDS)
    monkeypatch.setattr(cifar, "FILE_BYTES", RECORDS * cifar.RECORD_BYTES)
    fake_cifar(tmp_path)
    return tmp_path


def test_cifar_block_trains_an_episode_and_scores_the_test_split(small: Path) -> None:
    [record] = BlockTrainer(block(BASE, ARMS), CPU, data_dir=small).rounds(0)
    for run in record.runs:
        for name in ("train/accuracy_mean", "train/loss_mean", "eval/accuracy", "eval/loss"):
            assert math.isfinite(run.metrics[name]), (run.run_id, name)
        [episode], [held_out] = run.episodes, run.eval_episodes
        assert episode["train_examples"] == 8 * 16
        assert 0.0 <= episode["final_accuracy"] <= 100.0
        assert 0.0 <= held_out["test_accuracy"] <= 100.0
    scored = make_environments(block(BASE, ARMS), CPU, phase="eval", num_envs=1, data_dir=small)
    assert isinstance(scored, MorphEnvs)
    assert scored.test.y.shape == (RECORDS,)
    assert record.runs[0].episodes[0]["n_germinated"] == 0
    assert record.runs[1].episodes[0]["n_germinated"] >= 1


def test_cifar_block_without_its_files_is_refused_with_the_command(small: Path) -> None:
    (small / "data_batch_2.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"data_batch_2.bin is missing .* run: lockstep data fetch cifar10"):
        BlockTrainer(block(BASE, ARMS), CPU, data_dir=small)
    with pytest.raises(ConfigRefused, match="data set cifar10 needs a data directory"):
        BlockTrainer(block(BASE, ARMS), CPU, data_dir=None)


def test_cifar_block_with_more_batches_than_images_is_refused(small: Path) -> None:
    plan = block(BASE, ARMS, env={"batches_per_step": 63})
    with pytest.raises(ConfigRefused, match="63 exceeds the 62 batches of 16 in 1000 examples; use at most 62"):
        BlockTrainer(plan, CPU, data_dir=small)
