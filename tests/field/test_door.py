"""Field lessons L56 to L59 and L61: nothing that an environment's spaces forbid gets past its door.

Real blocks of an environment that misbehaves as its keyword arguments say.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from lockstep.keys import derive
from tests.worker.train.cases import GYM, GYM_ARMS, block, digests, train, trainer
from worker.envs.faults import EnvironmentFault
from worker.train.block import BlockTrainer
from worker.train.runs import TrainedRun

#: Rounds of 24 steps: what goes wrong in this one does so in the second.
_STEP = 30


class _Door(gymnasium.Env[Any, Any]):
    """Shows the seed of its episode, its step and its last action, and pays the latter; episodes of 40 steps.

    Attributes:
        seeds: of all resets.
    """

    seeds: ClassVar[list[int]] = []

    def __init__(self, give: str = "", how: str = "", ints: bool = False) -> None:
        self.observation_space = spaces.Box(-1e10, 1e10, (3,), dtype=np.int64 if ints else np.float32)
        self.action_space = spaces.MultiDiscrete([3, 2], dtype=np.int32, start=[1, 0])
        self._give, self._how, self._age = give, how, 0
        self._shown = np.zeros(3, dtype=self.observation_space.dtype)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:  # noqa: ARG002 - of the interface
        assert seed is not None
        type(self).seeds.append(seed)
        self._age += 1
        self._step = 0
        self._shown[:] = [seed % 100, 0, 0]
        self._seen = [seed % 100, 0, 0]
        return self._returned({"observation": self._observation(), "info": {}}, is_bad=self._how == "reset")

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        assert action.dtype == np.int32
        self._step += 1
        self._seen = [self._seen[0], self._step, int(action.sum())]
        reward = float(action.sum()) + (self._age if self._how == "remembers" else 0)
        if self._how == "mutates":
            action[:] = 0
        length = 40 if self._how != "grows" else 5 if self._age == 1 else 1000
        values = {
            "observation": self._observation(),
            "reward": reward,
            "terminated": self._step >= length,
            "truncated": False,
            "info": {},
        }
        return self._returned(values, is_bad=self._step == _STEP or self._how == "always")

    def _returned(self, values: dict[str, Any], *, is_bad: bool) -> Any:
        other = BAD[self._give](values) if is_bad and self._give else None
        return tuple(values.values()) if other is None else other

    def _observation(self) -> Any:
        if self._how != "mutates":
            return np.array(self._seen, dtype=self.observation_space.dtype)
        self._shown[:] = self._seen  # one buffer for all steps
        return self._shown


gymnasium.register("Door-v0", entry_point=lambda **kwargs: _Door(**kwargs))


def _with(**changed: Any) -> Any:
    def change(values: dict[str, Any]) -> None:
        for name, value in changed.items():
            values[name] = value(values[name]) if callable(value) else value

    return change


#: What is returned instead: a change of the values, or the whole return.
BAD: dict[str, Any] = {
    "short": _with(observation=np.zeros(1, dtype=np.float32)),
    "row": _with(observation=np.zeros((1, 3), dtype=np.float32)),
    "dictionary": _with(observation={"x": 1.0}),
    "ragged": _with(observation=[[1.0], [1.0, 2.0]]),
    "text": _with(observation=np.array(["a", "b", "c"])),
    "fractions": _with(observation=np.array([0.5, 0.5, 0.5])),
    "nan": _with(observation=np.array([0.0, np.nan, 0.0], dtype=np.float32)),
    "huge": _with(observation=np.array([0.0, 1e300, 0.0])),
    "infinite": _with(observation=[0.0, 0.0, -np.inf]),
    "reward nan": _with(reward=float("nan")),
    "reward infinite": _with(reward=np.float32("inf")),
    "reward huge": _with(reward=1e300),
    "reward integer": _with(reward=10**400),
    "reward none": _with(reward=None),
    "reward text": _with(reward="1.0"),
    "rewards": _with(reward=np.ones(2)),
    "no end": _with(terminated=None),
    "infinite end": _with(terminated=float("inf")),
    "four": lambda values: (values["observation"], values["reward"], False, {}),
    "bare": lambda values: values["observation"],
    "reward array": _with(reward=lambda r: np.array([r])),
    "reward scalar": _with(reward=lambda r: np.array(r)),
    "reward tensor": _with(reward=lambda r: torch.tensor([r])),
    "reward list": _with(reward=lambda r: [r]),
    "reward float32": _with(reward=np.float32),
    "list": _with(observation=lambda o: o.tolist()),
    "tuple": _with(observation=lambda o: tuple(o.tolist())),
    "float64": _with(observation=lambda o: o.astype(np.float64)),
    "integers": _with(observation=lambda o: o.astype(np.int32)),
    "tensor": _with(observation=torch.from_numpy),
    "ends": _with(terminated=np.array, truncated=lambda _: np.array([False])),
}


def door(**kwargs: Any) -> BlockTrainer:
    base = {**GYM, "obs_norm": {"enabled": True}, "reward_norm": "return_std"}
    return trainer(block(base, GYM_ARMS, env={"id": "Door-v0", "kwargs": kwargs}))


REFUSED = [
    ("short", r"an observation of the shape \(1,\), its space has \(3,\)"),
    ("row", r"an observation of the shape \(1, 3\), its space has \(3,\)"),
    ("dictionary", "an observation of dtype object, its space has float32"),
    ("ragged", "an observation that is no array: .*inhomogeneous"),
    ("text", "an observation of dtype <U1, its space has float32"),
    ("reward none", "a reward that is no single number: None"),
    ("reward text", "a reward that is no single number: '1.0'"),
    ("rewards", r"a reward that is no single number: array\(\[1\., 1\.\]\)"),
    ("no end", "terminated as None, which is neither true nor false"),
    ("infinite end", "terminated as inf, which is neither true nor false"),
    ("four", r"4 values, not the 5 of Gymnasium's interface \(observation, reward, terminated, truncated, info\)"),
]
NOT_FINITE = [
    ("nan", "an observation that holds nan in component 1, which is not finite"),
    ("huge", r"an observation that holds 1e\+300 in component 1, which float32 cannot hold .*: scale or clip it"),
    ("infinite", "an observation that holds -inf in component 2, which is not finite"),
    ("reward nan", "the reward nan, which is not finite"),
    ("reward infinite", "the reward inf, which is not finite"),
    ("reward huge", r"the reward 1e\+300, which float32 cannot hold .*: scale or clip it"),
    ("reward integer", "a reward beyond what float32 can hold: 1000"),
]


@pytest.mark.parametrize(("given", "words"), REFUSED)
def test_l56_what_an_environment_must_not_return_is_named_with_its_step(given: str, words: str) -> None:
    with pytest.raises(EnvironmentFault, match=rf"'Door-v0' \(number 0, episode 0\) in step {_STEP} returned {words}"):
        list(door(give=given).rounds(0))


def test_l56_fractions_for_a_space_of_integers_are_refused() -> None:
    with pytest.raises(EnvironmentFault, match="returned an observation of dtype float64, its space has int64"):
        list(door(give="fractions", ints=True).rounds(0))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("short", r"an observation of the shape \(1,\)"),
        ("nan", "an observation that holds nan"),
        ("huge", r"an observation that holds 1e\+300"),
        ("bare", r"one ndarray, not the 2 of .* \(observation, info\)"),
    ],
)
def test_l56_a_reset_is_held_to_the_same(given: str, words: str) -> None:
    with pytest.raises(EnvironmentFault, match=f"in reset returned {words}"):
        next(door(give=given, how="reset").rounds(0))


@pytest.mark.parametrize(("given", "words"), NOT_FINITE)
def test_l57_a_number_that_is_not_finite_moves_no_statistic(given: str, words: str) -> None:
    held = door(give=given)
    rounds = held.rounds(0)
    next(rounds)
    before = [_state(run) for run in held.runs]
    with pytest.raises(EnvironmentFault, match=f"in step {_STEP} returned {words}"):
        next(rounds)
    for run, state in zip(held.runs, before, strict=True):
        assert all(torch.equal(value, _state(run)[name]) for name, value in state.items())


def _state(run: Any) -> dict[str, torch.Tensor]:
    assert isinstance(run, TrainedRun)
    return {name: value.clone() for name, value in run.learner.state_dict().items()}


def test_l58_what_an_environment_was_handed_or_handed_over_may_change_afterwards(tmp_path: Path) -> None:
    env = {"id": "Door-v0", "kwargs": {"how": "mutates"}}
    kept = train(block(GYM, GYM_ARMS, env={"id": "Door-v0"}))
    assert digests(train(block(GYM, GYM_ARMS, env=env)), "run-B") == digests(kept, "run-B")
    first, second = (trainer(block(GYM, GYM_ARMS, env=env)) for _ in range(2))
    next(first.rounds(0))
    first.save_checkpoint(tmp_path, 1)
    resumed = list(second.rounds(second.load_checkpoint(tmp_path)))
    assert digests(resumed, "run-B") == digests(kept, "run-B")[1:]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("remembers", r"in step 1: .* the reward is \d\.0, not \d\.0; it is not reproducible"),
        ("grows", r"in step 5: .* the episode ends, and went on before"),
    ],
)
def test_l58_state_that_outlives_a_reset_is_told_on_resume(how: str, words: str, tmp_path: Path) -> None:
    first, second = door(how=how), door(how=how)
    rounds = first.rounds(0)
    for _ in range(2):  # into the second episode
        next(rounds)
    first.save_checkpoint(tmp_path, 2)
    with pytest.raises(EnvironmentFault, match=words):
        second.load_checkpoint(tmp_path)


def test_l59_reset_seeds_fit_32_bits_and_are_the_lower_ones_of_their_keys() -> None:
    _Door.seeds.clear()
    train(block(GYM, GYM_ARMS, env={"id": "Door-v0"}))
    assert max(_Door.seeds) < 2**32
    assert derive(321, "env_reset", env=2, episode=1) % 2**32 in _Door.seeds
    assert derive(321, "eval/env_reset", episode=1) % 2**32 in _Door.seeds


@pytest.mark.parametrize(
    "given",
    [
        "reward array",
        "reward scalar",
        "reward tensor",
        "reward list",
        "reward float32",
        "list",
        "tuple",
        "float64",
        "integers",
        "tensor",
        "ends",
    ],
)
def test_l61_other_forms_of_the_same_numbers_are_taken(given: str) -> None:
    plain, other = (
        train(block(GYM, GYM_ARMS, budget={"rounds": 1}, env={"id": "Door-v0", "kwargs": kwargs}))
        for kwargs in ({}, {"give": given, "how": "always"})
    )
    assert digests(other, "run-A") == digests(plain, "run-A")
