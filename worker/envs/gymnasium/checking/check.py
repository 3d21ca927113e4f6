"""What `lockstep env check` finds out about an environment before an experiment is spent on it.

It is built and stepped by the adapter that trains, with keyed random actions; what must hold is that an episode
depends on its reset seed and actions alone: in another instance, beside others, and after a resume by replay.
Gymnasium's own checker runs too; what it finds is a warning where our rules hold. Axes: E environment, H heads.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from torch import Tensor

from lockstep.spec.environments.gymnasium import EVAL_MAX_STEPS
from lockstep.spec.text.problems import pointer
from lockstep.spec.text.schemas import flat_problems
from worker.envs.base import StepResult
from worker.envs.family import Order, RunEnv, UniformControl
from worker.envs.faults import RAISED, EnvironmentFault, building, last_line, raised_in
from worker.envs.gymnasium.build import build_one, registered
from worker.envs.gymnasium.checking.scale import Scale, scale_of
from worker.envs.gymnasium.observations import ObservationDoor
from worker.envs.gymnasium.rewards import make_gym_reward
from worker.envs.gymnasium.stepping.env import GymEnvs, batched_factory, make_envs
from worker.envs.gymnasium.stepping.vector import VectorEnvs

OK, WARNING, REFUSED = "ok", "warning", "refused"
_SEED = 0
#: Environments of a batched simulator that is checked.
_BATCH = 64
#: Borders at which a resume is tried, as shares of the steps that are played.
_RESUMES = (0.3, 0.6, 0.9)
_UNLIMITED = (
    f"no limit of steps is registered: an episode that a policy does not end is evaluated for {EVAL_MAX_STEPS:,} "
    "steps, which may take hours; set env.max_episode_steps unless every episode ends by itself"
)
#: What Gymnasium's checker says of wrapped, unrendered and unbounded environments, which is no finding here.
_EXPECTED = ("is different from the unwrapped version", "render", "is -infinity", "is infinity")


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: its name, ``ok``, ``warning`` or ``refused``, and a sentence."""

    name: str
    state: str
    text: str


@dataclass
class Checked:
    """What was found, and what Lockstep will do with the environment, by name.

    Attributes:
        findings: in the order in which they were looked for; the first refusal may end the list.
        treatment: sentences; empty where it cannot be built.
        limit: steps after which an episode is cut; None without a limit.
        scale: of the returns of whole episodes; None where none came to its end.
    """

    findings: list[Finding] = field(default_factory=list)
    treatment: dict[str, str] = field(default_factory=dict)
    limit: int | None = None
    scale: Scale | None = None

    @property
    def is_ok(self) -> bool:
        """Whether nothing was refused."""
        return all(finding.state != REFUSED for finding in self.findings)


@dataclass(frozen=True)
class _Step:
    """What a step of environment 0 led to."""

    observation: np.ndarray
    pixels: bytes
    reward: float
    terminated: bool
    truncated: bool

    def difference(self, other: _Step) -> str | None:
        """Return what differs, in words."""
        if not np.array_equal(self.observation, other.observation):
            return f"the observation is {_short(other.observation)}, not {_short(self.observation)}"
        if self.pixels != other.pixels:
            return "an image differs"
        if self.reward != other.reward:
            return f"the reward is {other.reward:g}, not {self.reward:g}"
        if (self.terminated, self.truncated) != (other.terminated, other.truncated):
            return "the episode ends in one and not in the other"
        return None


def check(name: str, kwargs: Mapping[str, Any], *, steps: int, seconds: float, wrappers: Sequence[str] = ()) -> Checked:
    """Check the environment ``name``; play at most so many steps, and for about so many seconds at a time."""
    section = {"id": name, "kwargs": dict(kwargs), "rollout_steps": steps, "wrappers": list(wrappers)}
    checked = Checked()
    try:
        _judge_arguments(name, kwargs)
        factory = batched_factory(name)
        if factory is not None:
            return _check_batched(section, factory, seconds)
        with _opened(section, 2) as envs:
            control = UniformControl(envs, _SEED, 0)
            actions = [control.act(step) for step in range(steps)]
            sample = build_one(section)
            checked.treatment, checked.limit = _treatment(sample, envs), _limit(sample)
            layout = envs.entry
    except ValueError as error:
        checked.findings.append(Finding("builds", REFUSED, f"{error}{raised_in(error)}"))
        return checked
    except EnvironmentFault as error:
        checked.findings.append(Finding("plays", REFUSED, f"{error}{raised_in(error)}"))
        return checked
    spaces = " ".join(f"observation {sample.observation_space}, action {sample.action_space}".split())
    checked.findings += [Finding("builds", OK, spaces), _by_gymnasium(section)]
    if checked.limit is None:
        checked.findings.append(Finding("limit", WARNING, _UNLIMITED))
    try:
        for finding in _played(checked, section, layout, actions, seconds):
            checked.findings.append(finding)
    except EnvironmentFault as error:
        checked.findings.append(Finding("plays", REFUSED, f"{error}{raised_in(error)}"))
    checked.findings.append(_closes(sample))
    return checked


def _judge_arguments(name: str, kwargs: Mapping[str, Any]) -> None:
    """Raise a ``ValueError`` for what a specification would be refused for by the schema that a package declares."""
    with building(f"env.id={name!r}"):
        schema = getattr(registered(name), "schema", None)
    found = [] if schema is None else [*flat_problems(schema, kwargs, partial(pointer, "env", "kwargs"))]
    if found:
        raise ValueError("; ".join(map(str, found)))


def _check_batched(section: Mapping[str, Any], factory: Callable[..., Any], seconds: float) -> Checked:
    """Check a batched simulator: it is built twice under one seed, and both play the same actions."""
    checked, played, spent = Checked(), [], 0.0
    for _ in range(2):
        with contextlib.closing(_batched(section, factory)) as envs:
            control = UniformControl(envs, _SEED, 0)
            until = (began := time.perf_counter()) + seconds
            envs.begin_round(0)
            steps: list[_Step] = []
            while len(steps) < section["rollout_steps"] and time.perf_counter() < until:
                [result] = envs.step([control.act(len(steps))])
                steps.append(_step(result))
            played.append(steps)
            spent = spent or time.perf_counter() - began
            episodes = [row.values for row in envs.pop_episodes(0)]
            checked.treatment = _batched_treatment(envs)
    checked.scale = scale_of([float(values["native_return"]) for values in episodes], None, None)
    first, again = played
    ends = len(episodes)
    told = f"{len(first)} steps of {_BATCH} environments and {ends} ends of episodes"
    rate = f"about {_BATCH * len(first) / spent:,.0f} environment steps a second"
    number = min(len(first), len(again))
    checked.findings += [
        Finding("builds", OK, f"a batched simulator of {_BATCH} environments"),
        Finding("plays", OK if ends else WARNING, f"{told}, {rate}"),
        *_returned(checked.scale),
        _equal("deterministic", "a second simulator under the same seed", first[:number], again[:number]),
    ]
    return checked


def _batched(section: Mapping[str, Any], factory: Callable[..., Any]) -> VectorEnvs:
    runs = [RunEnv("run", "arm", "random", None, 1.0)]
    rewards = [make_gym_reward("native", {}, gamma=1.0, task=str(section["id"]))]
    config = {"env": section, "net": {"body": "mlp"}, "eval": {}}
    order = Order(config, runs, rewards, _SEED, torch.device("cpu"), _BATCH, None, lambda: None)
    return VectorEnvs(order, {}, factory=factory, phase="train")


def _batched_treatment(envs: VectorEnvs) -> dict[str, str]:
    one = "one seed for all: common random numbers hold for the batch, not for each environment"
    each = "a seed for each environment"
    if envs.mode != AutoresetMode.DISABLED:
        each += " at the start; later episodes draw on from there"
    again = "every episode begins anew where a block is resumed, for it has no get_state and set_state"
    return {
        "actions": f"one batch of {envs.num_envs}",
        "observations": f"in this order: {'; '.join(envs.entry.parts)}; on {envs.device.type} here",
        "resets": f"autoreset mode {envs.mode.name}",
        "seeds": each if envs.takes_seeds else one,
        "resume": "its state is read and set again (get_state, set_state)" if envs.keeps_state else again,
    }


def _played(
    checked: Checked, section: Mapping[str, Any], layout: ObservationDoor, actions: Sequence[Tensor], seconds: float
) -> Iterator[Finding]:
    began = time.perf_counter()
    with _opened(section, 1) as envs:
        first = _play(envs, actions, until=began + seconds)
        episodes = [row.values for row in envs.pop_episodes(0)]
    taken = time.perf_counter() - began
    ends = sum(step.terminated or step.truncated for step in first)
    actions = actions[: len(first)]
    told = f"{len(first)} steps and {ends} ends of episodes, about {len(first) / taken:,.0f} steps a second"
    yield Finding(
        "plays", OK if ends else WARNING, told + ("" if ends else "; give it a limit of steps if it has none")
    )
    returns = [float(values["native_return"]) for values in episodes]
    checked.scale = scale_of(returns, min((step.reward for step in first), default=None), checked.limit)
    yield from _returned(checked.scale)
    yield _inside_bounds(layout, first)
    succeeds = [values["success"] for values in episodes if "success" in values]
    if succeeds:
        yield Finding("success", OK, f"eval/success_rate is measured: {sum(succeeds):g} of {len(succeeds)} here")
    with _opened(section, 1) as envs:
        yield _equal("deterministic", "a second instance under the same seeds", first, _play(envs, actions))
    with _opened(section, 2) as envs:
        yield _equal("alone", "an instance that is stepped beside another one", first, _play(envs, actions))
    yield _resumed(section, first, actions)


def _returned(scale: Scale | None) -> Iterator[Finding]:
    """Yield the returns of whole episodes: what smallest effects and the score of a failed run are set to."""
    if scale is not None:
        count = "1 episode" if scale.episodes == 1 else f"{scale.episodes} episodes"
        told = f"{count} of random actions returned {scale.low:g} to {scale.high:g}"
        yield Finding("returns", OK, f"{told}, {scale.mean:.4g} on average, SD {scale.sd:.2g}")


def _play(envs: GymEnvs, actions: Sequence[Tensor], until: float = float("inf")) -> list[_Step]:
    envs.begin_round(0)
    steps = []
    for action in actions:
        [result] = envs.step([action[: envs.num_envs]])
        steps.append(_step(result))
        if time.perf_counter() > until:
            break
    return steps


def _step(result: StepResult | None) -> _Step:
    if result is None:
        raise RuntimeError("the only run was stepped")
    seen = result.final_observation or result.observation
    flags = bool(result.terminated[0]), bool(result.truncated[0])
    pixels = b"" if seen.pixels is None else seen.pixels[0].numpy().tobytes()
    return _Step(seen.features[0].numpy().copy(), pixels, float(result.reward[0]), *flags)


def _equal(name: str, what: str, first: Sequence[_Step], again: Sequence[_Step], start: int = 0) -> Finding:
    for number, (one, two) in enumerate(zip(first, again, strict=True), start=start + 1):
        difference = one.difference(two)
        if difference is not None:
            remedy = (
                "draw all randomness from the seed of reset (super().reset(seed=seed), then self.np_random) and keep "
                "no state outside of an episode"
            )
            return Finding(name, REFUSED, f"{what} differs in step {number} of play: {difference}; {remedy}")
    return Finding(name, OK, f"{what} shows the same in every step")


def _resumed(section: Mapping[str, Any], first: Sequence[_Step], actions: Sequence[Tensor]) -> Finding:
    """Go on from several borders in new instances, which replay the running episode as a resumed block does."""
    what = "a block that is resumed by replay"
    borders = sorted({int(share * len(first)) for share in _RESUMES} - {0})
    with _opened(section, 1) as envs:
        states = []
        for start, border in zip([0, *borders], borders, strict=False):
            _play(envs, actions[start:border])
            states.append(envs.state_dict(0))
    for border, state in zip(borders, states, strict=True):
        with _opened(section, 1) as envs:
            try:
                envs.load_state_dict(0, state)
            except EnvironmentFault as error:
                return Finding("resumes", REFUSED, f"{error}{raised_in(error)}")
            found = _equal("resumes", what, first[border:], _play(envs, actions[border:]), border)
        if found.state != OK:
            return found
    return Finding("resumes", OK, f"{what} shows the same in every step, from {len(borders)} borders")


def _inside_bounds(layout: ObservationDoor, steps: Sequence[_Step]) -> Finding:
    low, high = layout.low, layout.high
    for number, step in enumerate(steps, start=1):
        outside = (step.observation < low) | (step.observation > high)
        if outside.any():
            at = int(outside.argmax())
            limits = f"{low[at]:g} to {high[at]:g}"
            told = f"step {number}: component {at} is {step.observation[at]:g}, its space says {limits}"
            return Finding("bounds", WARNING, f"{told}; Lockstep trains on it as it is")
    return Finding("bounds", OK, "all observations lie in their space")


def _closes(sample: Any) -> Finding:
    try:
        sample.close()
    except RAISED as error:
        return Finding("closes", WARNING, f"close raised {last_line(error)}")
    return Finding("closes", OK, "close returns")


def _by_gymnasium(section: Mapping[str, Any]) -> Finding:
    """Ask Gymnasium's own checker."""
    told: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with contextlib.closing(build_one(section)) as env:
                check_env(env, skip_render_check=True)
        except RAISED as error:
            told.append(last_line(error))
    told += [str(item.message).replace("\x1b[33m", "").replace("\x1b[0m", "") for item in caught]
    kept = [text for text in dict.fromkeys(told) if not any(word in text for word in _EXPECTED)]
    if not kept:
        return Finding("gymnasium", OK, "its own checker finds nothing")
    return Finding("gymnasium", WARNING, f"its own checker says: {'; '.join(' '.join(text.split()) for text in kept)}")


def _treatment(sample: Any, envs: GymEnvs) -> dict[str, str]:
    limit = _limit(sample)
    chosen = [f"{head.name} of {head.size}" for head in envs.heads if not head.is_gaussian]
    real = [f"{head.name} of {head.size}" for head in envs.heads if head.is_gaussian]
    heads = [f"one categorical head for each part: {', '.join(chosen)}"] if chosen else []
    if real:
        told = "what is drawn is clipped to the bounds, or mapped to them by action.bounds rescale or tanh"
        heads.append(f"one Gaussian head for each Box: {', '.join(real)}; {told}")
    size, normal = envs.obs_spec.num_features, int(envs.obs_spec.continuous.sum())
    normal_words = f"all {size} are" if normal == size else f"{normal} of them are"
    parts = f"in this order: {'; '.join(envs.entry.parts)}"
    images = len(envs.obs_spec.images)
    normal_words += f" normalised; images through net.encoder: {images}" if images else " normalised"
    cap = (
        f"{limit} steps, its own limit"
        if limit
        else f"{EVAL_MAX_STEPS:,} steps if it does not end before: no limit is registered"
    )
    return {
        "actions": "; ".join(heads),
        "observations": f"{size} numbers, flattened to float32; with obs_norm.enabled {normal_words}",
        "parts": parts,
        "rewards": "as float32 numbers; scaled only with reward_norm",
        "seeds": "every episode is reset with a seed of its own, below 2^32 and equal for all arms",
        "time limits": "after a truncated episode the value of its true last observation is bootstrapped, after a "
        "terminated one nothing",
        "evaluation": f"an episode is cut after {cap}; eval.max_steps says otherwise",
        "resume": "a running episode is replayed from its seed and actions",
    }


def _limit(env: Any) -> int | None:
    limit: int | None = env.spec.max_episode_steps if env.spec is not None else None
    return limit


@contextlib.contextmanager
def _opened(section: Mapping[str, Any], num_envs: int) -> Iterator[GymEnvs]:
    envs = make_envs({"env": section}, [None], replicate_seed=_SEED, num_envs=num_envs, phase="train")
    with contextlib.closing(envs):
        yield envs


def _short(values: np.ndarray) -> str:
    shown = ", ".join(f"{value:g}" for value in values[:4])
    return f"[{shown}{', ..' if values.size > 4 else ''}]"
