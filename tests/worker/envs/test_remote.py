"""Environments in processes of their own: equal numbers for any number of processes, and what becomes of faults."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.worker.train.cases import CPU, GYM, GYM_ARMS, block, digests, train
from worker.envs.faults import EnvironmentFault
from worker.envs.gymnasium.stepping.env import GymEnvs, make_envs
from worker.train.block import BlockTrainer


def test_no_number_depends_on_the_processes(tmp_path: Path) -> None:
    here = train(block(GYM, GYM_ARMS))
    plan = block(GYM, GYM_ARMS, env={"processes": 2})
    with closing(BlockTrainer(plan, CPU)) as first:
        records = first.rounds(0)
        next(records)
        first.save_checkpoint(tmp_path, 1)
    with closing(BlockTrainer(plan, CPU)) as second:
        rest = list(second.rounds(second.load_checkpoint(tmp_path)))
    for run in ("run-A", "run-B"):
        assert digests(rest, run) == digests(here, run)[1:]
    scores = [record.runs[0].metrics["eval/native_return_mean"] for record in (here[-1], rest[-1])]
    assert scores[0] == scores[1]


@contextmanager
def opened(name: str, processes: int, **kwargs: Any) -> Iterator[GymEnvs]:
    section = {"id": name, "rollout_steps": 8, "processes": processes, "kwargs": kwargs}
    with closing(make_envs({"env": section}, [None], replicate_seed=1, num_envs=2, phase="train")) as envs:
        yield envs


def pids(envs: GymEnvs) -> list[int]:
    pool = envs._pool
    assert pool is not None
    return [process._popen.pid for process in pool._processes]


def test_a_process_that_ends_is_told_and_none_is_left() -> None:
    with opened("CartPole-v1", 2) as envs:
        envs.begin_round(0)
        started = pids(envs)
        os.kill(started[1], signal.SIGKILL)
        with pytest.raises(EnvironmentFault, match=r"'CartPole-v1': a process of env\.processes .* ended by SIGKILL"):
            envs.step([torch.zeros(2, 1, dtype=torch.int64)])
    for pid in started:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_stop_reaches_the_trainer_alone() -> None:
    """A supervisor sends SIGTERM to the group of the training process, which then ends its round."""
    with opened("CartPole-v1", 2) as envs:
        assert not {os.getpgid(pid) for pid in pids(envs)} & {os.getpgrp()}


def test_what_an_environment_raises_is_told_in_the_same_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "frail-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: frail\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[lockstep.environments]\nfrail = frail:Frail\n")
    (tmp_path / "frail.py").write_text(
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        "class Frail(CartPoleEnv):\n"
        "    def __init__(self, how='raise'):\n        super().__init__()\n        self.how, self.n = how, 0\n"
        "    def step(self, action):\n"
        "        self.n += 1\n        shown = super().step(action)\n"
        "        if self.n == 2 and self.how == 'raise':\n            raise KeyError('lost')\n"
        "        return (*shown[:4], {'f': lambda: 0}) if self.how == 'info' else shown\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    told = []
    for processes in (1, 2):
        with opened("frail", processes) as envs:
            envs.begin_round(0)
            envs.step([torch.zeros(2, 1, dtype=torch.int64)])
            with pytest.raises(EnvironmentFault) as caught:
                envs.step([torch.zeros(2, 1, dtype=torch.int64)])
            told.append(str(caught.value))
    assert told[0] == told[1] == "environment 'frail' (number 0, episode 0) in step 2 raised KeyError: 'lost'"
    with opened("frail", 2, how="info") as envs:
        envs.begin_round(0)
        with pytest.raises(EnvironmentFault, match=r"cannot be sent between processes: .*; leave env\.processes out"):
            envs.step([torch.zeros(2, 1, dtype=torch.int64)])
