"""Interrupted and resumed equals uninterrupted, bit for bit; final policies stand alone (training.md 6)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.worker.train.cases import (
    BOX_ARMS,
    CPU,
    GYM,
    GYM_ARMS,
    GYM_BOX,
    GYM_KIT,
    GYM_LSTM,
    MORPH,
    MORPH_ARMS,
    Arms,
    block,
    policy_bits,
    train,
    trainer,
)
from worker.checkpoint import CheckpointRefused, NoCheckpoint
from worker.envs.base import LockstepEnvs
from worker.train import policies
from worker.train.block import RoundRecord
from worker.train.environments import make_environments
from worker.train.evaluate import FrozenPolicy, mean, play
from worker.train.policies import load_policy

BASES = [pytest.param(GYM, id="gym"), pytest.param(GYM_LSTM, id="gym_lstm"), pytest.param(MORPH, id="morph")]
SPACES = [pytest.param(GYM_BOX, id="box"), pytest.param(GYM_KIT, id="kit")]
_CLOCKS = ("sys/", "ppo/update_seconds")
_CLOCK_COLUMNS = ("started_at", "wall_seconds", "device_seconds")


def arms_of(base: dict[str, Any]) -> Arms:
    return {id(MORPH): MORPH_ARMS, id(GYM_BOX): BOX_ARMS, id(GYM_KIT): BOX_ARMS}.get(id(base), GYM_ARMS)


def told(records: list[RoundRecord]) -> str:
    """Everything that a round hands back, without clocks, as text (NaN equals NaN there)."""
    rows = []
    for record in records:
        for run in record.runs:
            metrics = {k: v for k, v in run.metrics.items() if not k.startswith(_CLOCKS)}
            episodes = [
                {k: v for k, v in row.items() if k not in _CLOCK_COLUMNS} for row in run.episodes + run.eval_episodes
            ]
            rows.append([record.round, run.run_id, run.digest, metrics, episodes, record.update_order])
    return json.dumps(rows, sort_keys=True, default=str)


@pytest.mark.parametrize("base", [*BASES, *SPACES])
def test_resume_at_any_round_equals_the_uninterrupted_run(base: dict[str, Any], tmp_path: Path) -> None:
    plan = block(base, arms_of(base), checkpoint={"keep": 10}, obs_norm={"enabled": True})
    whole = trainer(plan)
    records = []
    for record in whole.rounds(0):
        records.append(record)
        whole.save_checkpoint(tmp_path, record.round + 1)
    for k in range(1, plan.rounds):
        resumed = trainer(plan)
        assert resumed.load_checkpoint(tmp_path / f"round-{k:06d}") == k
        assert told(list(resumed.rounds(k))) == told(records[k:])
        assert policy_bits(resumed) == policy_bits(whole)


def test_diverged_runs_stay_diverged_after_a_resume(tmp_path: Path) -> None:
    plan = block(
        GYM,
        [{"label": "A"}, {"label": "B", "overrides": {"ppo.lr": 1e18, "ppo.value_coef": 1e18}}],
        budget={"rounds": 6},
    )
    first = trainer(plan)
    iterator = first.rounds(0)
    while all(run.diverged is None for run in next(iterator).runs):
        pass
    done = first.runs[0].round + 1
    first.save_checkpoint(tmp_path, done)
    second = trainer(plan)
    assert second.load_checkpoint(tmp_path) == done
    assert [run.run_id for record in second.rounds(done) for run in record.runs] == ["run-A"] * (6 - done)


def test_only_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    held = trainer(block(GYM, GYM_ARMS, checkpoint={"keep": 2}))
    for k in (1, 2, 3):
        info = held.save_checkpoint(tmp_path, k)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["round-000002", "round-000003"]
    assert info.next_round == 3
    assert set(info.files) == {"A.safetensors", "B.safetensors"}
    assert info.size_bytes > 1000


def test_a_changed_spec_is_refused_with_the_differing_paths(tmp_path: Path) -> None:
    trainer(block(GYM, GYM_ARMS)).save_checkpoint(tmp_path, 1)
    other = trainer(block(GYM, GYM_ARMS, ppo={"gamma": 0.9}, budget={"rounds": 9}))
    with pytest.raises(CheckpointRefused, match=r"budget.rounds, ppo.entropy_anneal_rounds, ppo.gamma"):
        other.load_checkpoint(tmp_path)
    free = trainer(block(GYM, GYM_ARMS, telemetry={"level": "debug"}, checkpoint={"keep": 5}))
    assert free.load_checkpoint(tmp_path) == 1


def test_another_replicate_and_swapped_files_are_refused_by_identity(tmp_path: Path) -> None:
    saved = trainer(block(GYM, GYM_ARMS)).save_checkpoint(tmp_path, 1)
    with pytest.raises(CheckpointRefused, match="replicate_seed: file 321, run 9"):
        trainer(block(GYM, GYM_ARMS, seed=9)).load_checkpoint(tmp_path)
    a, b = saved.path / "A.safetensors", saved.path / "B.safetensors"
    content = a.read_bytes()
    a.write_bytes(b.read_bytes())
    b.write_bytes(content)
    with pytest.raises(CheckpointRefused, match="swapped"):
        trainer(block(GYM, GYM_ARMS)).load_checkpoint(tmp_path)
    manifest = json.loads((saved.path / "manifest.json").read_text())
    hashes = manifest["files"]
    manifest["files"] = {"A.safetensors": hashes["B.safetensors"], "B.safetensors": hashes["A.safetensors"]}
    (saved.path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointRefused, match="run_id: file 'run-B', run 'run-A'"):
        trainer(block(GYM, GYM_ARMS)).load_checkpoint(tmp_path)


def test_another_version_of_a_reward_is_told_with_its_arm_and_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer(block(GYM, GYM_ARMS)).save_checkpoint(tmp_path, 1)
    monkeypatch.setattr(policies, "version_of", lambda _mode: "2")
    with pytest.raises(CheckpointRefused, match=r"reward 'native' of arm 'A' is version '2', and was .* or clone"):
        trainer(block(GYM, GYM_ARMS)).load_checkpoint(tmp_path)


def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before(tmp_path: Path) -> None:
    held = trainer(block(GYM, GYM_ARMS, checkpoint={"keep": 3}))
    for k in (1, 2):
        held.save_checkpoint(tmp_path, k)
    damaged = tmp_path / "round-000002" / "A.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-100])
    assert held.load_checkpoint(tmp_path) == 1
    (tmp_path / "round-000001" / "manifest.json").unlink()
    with pytest.raises(NoCheckpoint, match=r"round-000002: .*hash.*round-000001"):
        held.load_checkpoint(tmp_path)


_SAVE_FOR_EVER = """
import sys
from pathlib import Path
from tests.worker.train.cases import GYM, GYM_ARMS, block, trainer
held = trainer(block(GYM, GYM_ARMS))
held.save_checkpoint(Path(sys.argv[1]), 1)
print("ready", flush=True)
k = 2
while True:
    held.save_checkpoint(Path(sys.argv[1]), k)
    k += 1
"""


@pytest.mark.long
@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_a_process_killed_while_saving_leaves_a_loadable_checkpoint(kills: int, tmp_path: Path) -> None:
    plan = block(GYM, GYM_ARMS)
    for attempt in range(kills):
        root = tmp_path / str(attempt)
        child = subprocess.Popen(
            [sys.executable, "-c", _SAVE_FOR_EVER, str(root)],
            stdout=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        time.sleep(0.005 + 0.013 * attempt)
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        assert trainer(plan).load_checkpoint(root) >= 1


@pytest.mark.parametrize("base", [pytest.param(GYM, id="gym"), pytest.param(MORPH, id="morph"), *SPACES[1:]])
def test_saved_policies_stand_alone_and_reach_the_recorded_score(base: dict[str, Any], tmp_path: Path) -> None:
    plan = block(base, arms_of(base), obs_norm={"enabled": True})
    held = trainer(plan)
    final = list(held.rounds(0))[-1]
    paths = held.save_policies(tmp_path)
    assert [str(p.relative_to(tmp_path)) for p in paths] == [
        f"policy/{run.plan.arm}/r0.safetensors" for run in held.runs
    ]
    column = "test_accuracy" if base is MORPH else "native_return"
    metric = "eval/accuracy" if base is MORPH else "eval/native_return_mean"
    for path, run in zip(paths, final.runs, strict=True):
        learner, header = load_policy(path, CPU)
        assert header["identity"]["run_id"] == run.run_id
        arm = [p for p in plan.runs if p.run_id == run.run_id]
        envs: LockstepEnvs = make_environments(plan, CPU, phase="eval", num_envs=2, runs=arm)
        policy = FrozenPolicy(learner, 2)
        [episodes] = play(envs, [policy].__getitem__, 1)
        assert mean([e.values[column] for e in episodes]) == run.metrics[metric]


def test_training_alone_or_resumed_alone_agree(tmp_path: Path) -> None:
    plan = block(GYM, GYM_ARMS, only=(1,))
    held = trainer(plan)
    next(held.rounds(0))
    held.save_checkpoint(tmp_path, 1)
    resumed = trainer(plan)
    k = resumed.load_checkpoint(tmp_path)
    assert told(list(resumed.rounds(k))) == told(train(plan)[1:])
