"""The worker's check of a reward mode for Gymnasium: does it keep the contract of reward functions (docs/rewards.md)?

A mode that names its ``tasks`` is checked on steps of the first one, played at random by the adapter that trains; any
other on keyed random transitions of no task in particular. Axes: E environment, O observation.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lockstep.keys import generator
from worker.envs.family import Order, RunEnv, Trial, UniformControl
from worker.envs.faults import EnvironmentFault
from worker.envs.gymnasium.rewards import GymReward, Transition
from worker.envs.gymnasium.stepping.env import GymEnvs, batched_factory, make_envs
from worker.envs.gymnasium.stepping.vector import VectorEnvs
from worker.envs.paid import RewardDefect, judged, pair_of, payer, paying

_E, _O, _ROUNDS = 200, 6, 4
_PLAYED_ENVS, _PLAYED_STEPS, _PLAYED_SECONDS = 8, 25, 5.0
#: A trial goes on until each environment has ended an episode, and for so many steps at least.
_TRIAL_STEPS = 1000
_TOLERANCE = 1e-5
_SEED = 0
#: A function that reads what random transitions do not have is told the way out.
_NO_TASK = (
    f"it was checked on {_O} random observations, one choice and no info: if it reads those of a task, name the task "
    "in `tasks` of its factory"
)


@dataclass(frozen=True)
class Played:
    """Steps of a task under random actions.

    Attributes:
        steps: transitions of all environments.
        seconds: that the environments took for them.
    """

    steps: Sequence[Transition]
    seconds: float


def play(section: Mapping[str, Any]) -> Played:
    """Play some steps of a task, given its ``env`` section.

    Raises:
        ValueError: it cannot be built.
        EnvironmentFault: it raised.
    """
    steps: list[Transition] = []
    spent = 0.0

    def record(step: Transition) -> tuple[Tensor, dict[str, Tensor]]:
        steps.append(step)
        return step.reward, {"native": step.reward}

    with contextlib.closing(_opened(section, GymReward("recorded", "1", "", 1.0, record))) as envs:
        control = UniformControl(envs, _SEED, 0)
        envs.begin_round(0)
        while len(steps) < _PLAYED_STEPS and spent < _PLAYED_SECONDS:
            actions = control.act(len(steps))
            began = time.perf_counter()
            envs.step([actions])
            spent += time.perf_counter() - began
    return Played(steps, spent)


def _opened(section: Mapping[str, Any], reward: GymReward) -> GymEnvs | VectorEnvs:
    config = {"env": {"rollout_steps": _PLAYED_STEPS, **section}, "net": {"body": "mlp"}, "eval": {}}
    run = RunEnv("run", "", "random", None, reward.gamma)
    factory = batched_factory(str(section["id"]))
    if factory is None:
        return make_envs(config, [run], replicate_seed=_SEED, num_envs=_PLAYED_ENVS, phase="train", rewards=[reward])
    order = Order(config, [run], [reward], _SEED, torch.device("cpu"), _PLAYED_ENVS, None, lambda: None)
    return VectorEnvs(order, {}, factory=factory, phase="train")


def check_gym_mode(mode: GymReward, task: str | None) -> None:
    """Check one mode on steps of a task, or on 800 random transitions of none; raises ``RewardDefect``."""
    rng = generator(0, "control_policy", use="gymnasium reward self check")
    steps = [_random_transition(rng) for _ in range(_ROUNDS)] if task is None else play({"id": task}).steps
    try:
        check_on(mode, steps)
    except EnvironmentFault as error:
        told = f"; {_NO_TASK}" if task is None else ""
        raise RewardDefect(f"{error}{told}") from error


def try_gym_mode(mode: GymReward, section: Mapping[str, Any], seconds: float) -> Trial:
    """Hold a mode to the contract on the first steps of a task, then pay whole episodes with it as training does.

    Args:
        mode: to try.
        section: ``env`` of the task, which is played at random.
        seconds: after which no further step is begun, whole episodes or not.

    Raises:
        RewardDefect, EnvironmentFault: as ``check_on``.
        ValueError: the task cannot be built.
    """
    check_on(mode, play(section).steps)
    returned: list[tuple[Tensor, dict[str, Tensor]]] = []
    scoring = 0.0

    def pay(step: Transition) -> tuple[Tensor, dict[str, Tensor]]:
        nonlocal scoring
        began = time.perf_counter()
        returned.append(mode.function(step))
        scoring += time.perf_counter() - began
        return returned[-1]

    # the environment's own reward is not asked for where it is paid by its name
    name = "recorded" if mode.is_native else mode.name
    ended = torch.zeros(_PLAYED_ENVS, dtype=torch.int64)
    with contextlib.closing(_opened(section, replace(mode, name=name, function=pay))) as envs:
        control = UniformControl(envs, _SEED, 0)
        envs.begin_round(0)
        began = time.perf_counter()
        while (len(returned) < _TRIAL_STEPS or not ended.all()) and time.perf_counter() - began < seconds:
            (result,) = envs.step([control.act(len(returned))])
            if result is not None:
                ended += result.terminated | result.truncated
        stepping = time.perf_counter() - began - scoring
    paid = [_rows(mode, pair) for pair in returned]
    names = list(dict.fromkeys(name for _, names in paid for name in names))
    return Trial(names, _table(paid, names), scoring, stepping, int(ended.sum()))


def _table(paid: Sequence[tuple[Tensor, list[str]]], names: Sequence[str]) -> Tensor:
    """Return [1 + N, T, E]: the reward and N components; one that a step does not name paid nothing in it."""
    table = torch.zeros(1 + len(names), len(paid), _PLAYED_ENVS)
    places = {name: 1 + index for index, name in enumerate(names)}
    for step, (rows, named) in enumerate(paid):
        table[[0, *(places[name] for name in named)], step] = rows
    return table


def check_on(mode: GymReward, steps: Sequence[Transition]) -> None:
    """Hold a mode to the contract on some transitions.

    Raises:
        RewardDefect: it breaks a rule that training does not look at.
        EnvironmentFault: it raised, or returned what training refuses.
    """
    for step in steps:
        before = _bits(step)
        (rows, _), (again, _) = _paid(mode, step), _paid(mode, step)
        _require(mode, _bits(step) == before, "changes its input")
        _require(mode, torch.equal(rows, again), "gives other bits for the same input")
        gap = float((rows[1:].sum(0) - rows[0]).abs().max())
        _require(mode, gap <= _TOLERANCE * max(1.0, float(rows[0].abs().max())), _misses(gap))
        order = torch.arange(rows.shape[1] - 1, -1, -1)
        turned, _ = _paid(mode, _permuted(step, order))
        _require(mode, torch.equal(turned[0], rows[0][order]), "mixes environments")


def _misses(gap: float) -> str:
    return f"has components that miss the reward by {gap:.2g}"


def _paid(mode: GymReward, step: Transition) -> tuple[Tensor, list[str]]:
    """Return the reward and its N components as rows [1 + N, E], and their names, under the rules of training."""
    with paying(payer(mode.name, ""), mode.name, None):
        returned = mode(step)
    return _rows(mode, returned, len(step.reward))


def _rows(mode: GymReward, returned: Any, size: int = _PLAYED_ENVS) -> tuple[Tensor, list[str]]:
    who = payer(mode.name, "")
    return judged(who, *pair_of(who, returned), None, np.ones(size, dtype=bool))


def _require(mode: GymReward, holds: bool, defect: str) -> None:
    if not holds:
        raise RewardDefect(f"reward mode {mode.name!r} {defect}; correct the mode or remove it")


def _random_transition(rng: np.random.Generator) -> Transition:
    def floats(*shape: int) -> Tensor:
        return torch.from_numpy(rng.normal(size=shape).astype(np.float32))

    return Transition(
        observation=floats(_E, _O),
        action=torch.from_numpy(rng.integers(0, 2, (_E, 1))),
        reward=floats(_E),
        next_observation=floats(_E, _O),
        terminated=torch.from_numpy(rng.random(_E) < 0.2),
        truncated=torch.from_numpy(rng.random(_E) < 0.2),
        info={},
    )


def _bits(step: Transition) -> bytes:
    parts = [x for x in vars(step).values() if isinstance(x, Tensor)]
    return b"".join(x.numpy().tobytes() for x in [*parts, *step.info.values()])


def _permuted(step: Transition, order: Tensor) -> Transition:
    parts = {name: x[order] for name, x in vars(step).items() if isinstance(x, Tensor)}
    return Transition(**parts, info={name: x[order] for name, x in step.info.items()})
