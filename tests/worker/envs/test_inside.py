"""What a training process says of whose code it is in, as its supervisor reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from worker.envs.faults import EnvironmentFault, building, playing
from worker.envs.gymnasium.stepping.env import make_envs
from worker.envs.inside import INSIDE, read, shared


@pytest.fixture
def path(tmp_path: Path) -> Path:
    INSIDE.enter(shared(tmp_path / "inside"))
    return tmp_path / "inside"


class _Reader(gymnasium.Env[Any, Any]):
    """Notes what a supervisor would read while its own code runs."""

    observation_space = spaces.Box(-1.0, 1.0, (1,))
    action_space = spaces.Discrete(2)

    def __init__(self, file: str) -> None:
        self.file, self.told = Path(file), [read(Path(file), "Reader-v0")]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:  # noqa: ARG002 - of the interface
        self.told.append(read(self.file, "Reader-v0"))
        return np.zeros(1, dtype=np.float32), {}

    def step(self, action: Any) -> Any:
        self.told.append(read(self.file, "Reader-v0"))
        if len(self.told) > 3:
            raise KeyError(int(action))
        return np.zeros(1, dtype=np.float32), 0.0, False, False, {}


gymnasium.register("Reader-v0", entry_point=lambda **given: _Reader(**given))


def test_constructor_reset_and_step_of_an_environment_are_told_and_nothing_after_them(path: Path) -> None:
    section = {"id": "Reader-v0", "kwargs": {"file": str(path)}, "rollout_steps": 3}
    envs = make_envs({"env": section}, [None], replicate_seed=1, num_envs=1, phase="train")
    assert read(path, "Reader-v0") == ""
    envs.begin_round(0)
    envs.step([torch.zeros(1, 1, dtype=torch.int64)])
    assert read(path, "Reader-v0") == ""
    with pytest.raises(EnvironmentFault, match="in step 2 raised KeyError"):
        envs.step([torch.zeros(1, 1, dtype=torch.int64)])
    assert read(path, "Reader-v0") == ""
    built, *rest = envs._lanes[0][0].env.unwrapped.told  # the environment's own
    assert built.startswith("building env.id='Reader-v0' with env.kwargs=")
    steps = [f"environment 'Reader-v0' (number 0) in step {step} of its episode" for step in (1, 2)]
    assert rest == ["environment 'Reader-v0' (number 0) in reset", *steps]


def test_long_kwargs_leave_room_for_why_nothing_can_be_built() -> None:
    section = {"id": "FrozenLake-v1", "kwargs": {"desc": ["F" * 100] * 100, "wings": 2}}
    with pytest.raises(ValueError, match="cannot be built") as refused:
        make_envs({"env": section}, [None], replicate_seed=1, num_envs=1, phase="train")
    assert "unexpected keyword argument 'wings'" in str(refused.value)[:300]


def test_work_is_told_in_words_while_it_lasts_also_when_it_raises(path: Path) -> None:
    with playing("reward mode 'mine'"), building("env.id='x'"):
        assert read(path, "x") == "reward mode 'mine'", "work inside of other work stands under that"
    with playing("x" * 1000):
        assert read(path, "x") == "x" * 488
    with pytest.raises(EnvironmentFault), playing("reward mode 'mine'"):
        raise KeyError
    assert read(path, "x") == ""


def test_a_process_that_has_shared_nothing_is_in_no_code_of_the_user(tmp_path: Path) -> None:
    assert read(tmp_path / "absent", "x") == ""
    (tmp_path / "short").write_bytes(b"\1")
    assert read(tmp_path / "short", "x") == ""
