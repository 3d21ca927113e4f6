"""Gymnasium behind the lockstep protocol: same-step autoreset, keyed seeds, true final observations.

Every episode is reset with its own key (purpose ``env_reset``), so an episode depends on neither the
number of environments nor on who else is trained. A resume replays the actions since each reset and
compares the observation. The only file that imports gymnasium. Axes: E environment, O observation.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import entry_points
from typing import Any, cast

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from lockstep.keys import derive
from lockstep.spec.gymnasium import CAPPED, EVAL_MAX_STEPS
from worker.envs.base import Cohort, EpisodeRecord, HeadSpec, Masks, Observation, ObsSpec, Seen, StepResult
from worker.envs.faults import RAISED, EnvironmentFault, building, last_line, playing
from worker.envs.gymnasium.ledger import Ledger
from worker.envs.gymnasium.rewards import GymReward, Transition, make_gym_reward
from worker.envs.inside import INSIDE, OUTSIDE, RESET, STEP

ENTRY_POINTS = "lockstep.environments"
#: Environments that step between two signs of life: all of a run may be thousands, and each may be slow.
_STEPS_BETWEEN_SIGNS = 16
#: Positions of the velocities in the observations of the classic tasks.
VELOCITIES: Mapping[str, tuple[int, ...]] = {
    "CartPole-v1": (1, 3),
    "Acrobot-v1": (4, 5),
    "MountainCar-v0": (1,),
    "Pendulum-v1": (2,),
    "LunarLander-v3": (2, 3, 5),
}


class _Choices(spaces.Discrete):
    """A Discrete space with a plain test of membership: environments ask it at every step."""

    def contains(self, x: Any) -> bool:
        """Return whether ``x`` is a member."""
        return 0 <= int(x) - int(self.start) < int(self.n) if type(x) is np.int64 else super().contains(x)


class UnsupportedSpace(ValueError):  # noqa: N818 - says what is wrong, not that something is
    """The environment's spaces are not Box observations with Discrete or MultiDiscrete actions."""


@dataclass
class _Lane:
    """One environment instance and its running episode."""

    env: gymnasium.Env[Any, Any]
    episode: int = -1
    reset_key: int = 0
    steps: int = 0
    actions: list[Any] = field(default_factory=list)
    native: float = 0.0
    started_at: str = ""
    is_over: bool = False


class GymEnvs:
    """E environments of each of K runs.

    Args:
        config: resolved spec of the arms (they share ``env``).
        replicate_seed: seed of the replicate.
        num_envs: E; in evaluation the number of episodes.
        phase: ``train`` (carries on over rounds, autoreset) or ``eval`` (one episode each, cut as truncated after
            ``eval.max_steps``, then idle).
        ledgers: what each run is paid, and under what else its episodes are scored.
        alive: called after everything that may take long: an environment built or reset, a step of a run.

    Raises:
        ValueError: the environment cannot be built or has spaces that are not supported.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        ledgers: Sequence[Ledger],
        *,
        replicate_seed: int,
        num_envs: int,
        phase: str,
        alive: Callable[[], None],
    ) -> None:
        section = config["env"]
        if section.get("wrappers") and set(section["wrappers"]) - {"mask_velocity"}:
            raise ValueError(f"env.wrappers={list(section['wrappers'])}: known are ['mask_velocity']")
        self.num_envs, self._seed, self._phase, self._alive = num_envs, replicate_seed, phase, alive
        self._name, self._ledgers = str(section["id"]), list(ledgers)
        self._lanes: list[list[_Lane]] = [[] for _ in ledgers]
        try:
            self._build(section, config.get("eval", {}).get("max_steps"))
        except BaseException:
            self.close()
            raise

    def _build(self, section: Mapping[str, Any], cap: int | None) -> None:
        num_runs, num_envs = len(self._lanes), self.num_envs
        for lanes in self._lanes:
            for _ in range(num_envs):
                lanes.append(_Lane(_make(section)))
                self._alive()
        sample = self._lanes[0][0].env
        with building(f"env.id={self._name!r}"):
            seen, acted = sample.observation_space, sample.action_space
        self._shape = _observation_shape(seen)
        self.heads: Sequence[HeadSpec]
        self._offsets, self.heads = _heads(acted)
        size = int(np.prod(self._shape))
        start = self._offsets[0]
        # scalars of numpy's own, as gymnasium's vector environments hand on
        self._choices = None if start is None else [np.int64(start + i) for i in range(self.heads[0].size)]
        self.obs_spec = ObsSpec(size, torch.ones(size, dtype=torch.bool), torch.zeros(size, dtype=torch.bool))
        limit = sample.spec.max_episode_steps if sample.spec is not None else None
        self.resets_each_round = self._phase == "eval"
        self.steps_per_round = int(section["rollout_steps"])
        if self.resets_each_round:
            self.steps_per_round = cap or limit or EVAL_MAX_STEPS
        self._keep = _velocity_mask(section, size)
        self._round = 0
        self._obs = [np.zeros((num_envs, size), dtype=np.float32) for _ in range(num_runs)]
        self._masks: Masks = {head.name: torch.ones(num_envs, head.size, dtype=torch.bool) for head in self.heads}
        self._no_ids = torch.zeros(num_envs, 0, dtype=torch.int64)
        self._actions: Sequence[Tensor | None] = ()
        self._results: list[StepResult | None] = []
        self._episodes: list[list[EpisodeRecord]] = [[] for _ in range(num_runs)]

    def begin_round(self, round_index: int) -> list[tuple[Observation, Masks]]:
        """Start a round: reset in evaluation and before the first round, else carry on."""
        self._round = round_index
        for run, lanes in enumerate(self._lanes):
            self._ledgers[run].begin_round()
            for index, lane in enumerate(lanes):
                if self.resets_each_round:
                    lane.episode = -1
                if lane.episode < 0:
                    self._reset(run, index)
        return [(self._observation(run), self._masks) for run in range(len(self._lanes))]

    @property
    def cohorts(self) -> tuple[Cohort, ...]:
        """Return one cohort: these environments step together."""
        return (Cohort(self, tuple(range(len(self._lanes)))),)

    def rehearse(self) -> None:
        """Do nothing: no step has to be loaded."""

    def issue(self, actions: Sequence[Tensor | None]) -> None:
        """Take the actions of a step."""
        self._actions = actions

    def collect(self) -> list[Seen | None]:
        """Execute the step that was issued."""
        self._results = self.step(self._actions)
        return [*self._results]

    def pay(self) -> list[Tensor | None]:
        """Return the rewards of the step that was collected."""
        return [None if result is None else result.reward for result in self._results]

    def step(self, actions: Sequence[Tensor | None]) -> list[StepResult | None]:
        """Execute one action [E, H] per run."""
        return [None if a is None else self._step_run(run, a) for run, a in enumerate(actions)]

    def reward_sums(self, run: int) -> dict[str, Tensor]:
        """Return {component: [E]} of this round; ``native`` is the only one of the environment's own reward."""
        return {name: torch.from_numpy(x.astype(np.float32)) for name, x in self._ledgers[run].sums.items()}

    def pop_episodes(self, run: int) -> list[EpisodeRecord]:
        """Return and forget the finished episodes."""
        episodes, self._episodes[run] = self._episodes[run], []
        return episodes

    def pop_events(self, run: int) -> list[dict[str, Any]]:  # noqa: ARG002 - of the protocol
        """Return nothing: these environments have no lifecycle."""
        return []

    def state_dict(self, run: int) -> dict[str, Any]:
        """Return episode numbers, the actions since each reset and the last observation."""
        lanes = self._lanes[run]
        actions = {f"actions/{i}": _history(lane.actions, self._offsets) for i, lane in enumerate(lanes)}
        return {
            "episode": torch.tensor([lane.episode for lane in lanes]),
            "observation": torch.from_numpy(self._obs[run].copy()),
            "paid": torch.from_numpy(self._ledgers[run].paid.copy()),
            **actions,
        }

    def load_state_dict(self, run: int, state: Mapping[str, Any]) -> None:
        """Replay every running episode; a different last observation is an ``EnvironmentFault``."""
        for index, lane in enumerate(self._lanes[run]):
            lane.episode = int(state["episode"][index]) - 1
            if lane.episode < -1:
                lane.episode = -1
                continue
            self._reset(run, index)
            for action in state[f"actions/{index}"].tolist():
                self._advance(run, index, self._native(action))
                self._alive()
        if not np.array_equal(self._obs[run], state["observation"].cpu().numpy()):
            raise EnvironmentFault(
                f"environment {self._name!r}: replayed episodes end in other observations: it is not reproducible"
            )
        self._ledgers[run].paid[:] = state["paid"].cpu().numpy()

    def close(self) -> None:
        """Close every environment; one that fails to close is named in the log and keeps none of the others open."""
        for lanes in self._lanes:
            while lanes:
                try:
                    with INSIDE.doing(f"environment {self._name!r} in close"):
                        lanes.pop().env.close()
                except RAISED as error:
                    sys.stderr.write(f"environment {self._name!r} raised in close: {last_line(error)}\n")

    def _step_run(self, run: int, actions: Tensor) -> StepResult:
        E, lanes, ledger = self.num_envs, self._lanes[run], self._ledgers[run]
        native = np.zeros(E, dtype=np.float32)
        terminated, truncated, valid = np.zeros((3, E), dtype=bool)
        before = None if ledger.is_native else self._obs[run].copy()
        infos: list[Mapping[str, Any]] = [{}] * E
        ended: dict[int, str] = {}
        for index, action in enumerate(actions.tolist()):
            if lanes[index].is_over:
                continue
            native[index], ends, cut, infos[index] = self._advance(run, index, self._native(action))
            valid[index] = True
            if index % _STEPS_BETWEEN_SIGNS == 0:
                self._alive()
            # an episode that does not end is an episode: it counts with the return it has at the cap
            capped = self.resets_each_round and lanes[index].steps >= self.steps_per_round
            if ends or cut or capped:
                terminated[index], truncated[index] = ends, not ends
                ended[index] = "done" if ends else "horizon" if cut else CAPPED
        self._check_finite(run)
        reward = torch.from_numpy(native)
        if before is not None:
            after = torch.from_numpy(self._obs[run].copy())
            ends_cuts = torch.from_numpy(terminated), torch.from_numpy(truncated)
            with playing(f"environment {self._name!r}: its info"):
                scalars = _scalars(infos)
            step = Transition(torch.from_numpy(before), actions, reward, after, *ends_cuts, scalars)
            reward = ledger.score(step, valid)
        ledger.add(native, reward.numpy())
        final = self._end(run, ended)
        self._alive()
        return StepResult(
            observation=self._observation(run),
            masks=self._masks,
            reward=reward,
            terminated=torch.from_numpy(terminated),
            truncated=torch.from_numpy(truncated),
            valid=torch.from_numpy(valid),
            final_observation=None if final is None else Observation(torch.from_numpy(final), self._no_ids),
        )

    def _end(self, run: int, ended: Mapping[int, str]) -> np.ndarray | None:
        """Record finished episodes by how they ended and, in training, reset them; return true observations [E, O]."""
        if not ended:
            return None
        final = None if self.resets_each_round else self._obs[run].copy()
        for index, outcome in ended.items():
            self._finish(run, index, outcome)
            if final is not None:
                self._reset(run, index)
        return final

    def _advance(self, run: int, index: int, action: Any) -> tuple[float, bool, bool, Mapping[str, Any]]:
        """Step one environment and write its observation; return reward, terminated, truncated and info."""
        lane = self._lanes[run][index]
        lane.steps += 1
        if not self.resets_each_round:  # for a replay; the environment may change what it is handed
            lane.actions.append(action if self._choices is not None else action.copy())
        cells = INSIDE.cells
        cells[1], cells[2], cells[0] = index, lane.steps, STEP
        try:
            observation, reward, terminated, truncated, info = lane.env.step(action)
            paid = float(reward) if type(reward) is not np.ndarray else float(reward.item())
            self._write(run, index, observation)
            ends, cut = bool(terminated), bool(truncated)
        except RAISED as error:
            raise self._fault(run, index, error) from error
        finally:
            cells[0] = OUTSIDE
        if not math.isfinite(paid):
            raise EnvironmentFault(f"{self._where(run, index)}: the reward is {paid}, which is not finite")
        lane.native += paid
        return paid, ends, cut, info

    def _fault(self, run: int, index: int, error: BaseException) -> BaseException:
        if isinstance(error, EnvironmentFault | torch.OutOfMemoryError):
            return error
        return EnvironmentFault(f"{self._where(run, index)} raised {last_line(error)}")

    def _where(self, run: int, index: int) -> str:
        lane = self._lanes[run][index]
        place = f"in step {lane.steps}" if lane.steps else "in reset"
        return f"environment {self._name!r} (number {index}, episode {lane.episode}) {place}"

    def _check_finite(self, run: int) -> None:
        """Refuse an observation that is not finite before any running statistic sees it."""
        finite = np.isfinite(self._obs[run])
        if not finite.all():
            index = int((~finite.all(axis=1)).argmax())
            values = self._obs[run][index][~finite[index]].tolist()
            raise EnvironmentFault(f"{self._where(run, index)}: the observation holds {values[0]}, which is not finite")

    def _reset(self, run: int, index: int) -> None:
        lane = self._lanes[run][index]
        lane.episode += 1
        if self._phase == "eval":
            lane.reset_key = derive(self._seed, "eval/env_reset", episode=index)
        else:
            lane.reset_key = derive(self._seed, "env_reset", env=index, episode=lane.episode)
        lane.actions, lane.steps, lane.native, lane.is_over = [], 0, 0.0, False
        cells = INSIDE.cells
        cells[1], cells[0] = index, RESET
        try:
            observation, _ = lane.env.reset(seed=lane.reset_key)
            self._write(run, index, observation)
        except RAISED as error:
            raise self._fault(run, index, error) from error
        finally:
            cells[0] = OUTSIDE
        self._ledgers[run].begin_episode(index)
        lane.started_at = datetime.now(UTC).isoformat()
        self._alive()

    def _finish(self, run: int, index: int, outcome: str) -> None:
        lane = self._lanes[run][index]
        lane.is_over = True
        values = {
            "round": self._round,
            "env_id": index,
            "episode_idx": lane.episode,
            "host_seed_key": lane.reset_key,
            "env_steps": lane.steps,
            "final_accuracy": None,
            "episode_reward": self._ledgers[run].total(index, lane.native),
            "native_return": lane.native,
            "outcome": outcome,
            "started_at": lane.started_at,
            **self._ledgers[run].xeval(index, lane.native),
        }
        self._episodes[run].append(EpisodeRecord(index, values))

    def _write(self, run: int, index: int, observation: Any) -> None:
        if type(observation) is not np.ndarray:
            observation = np.asarray(observation)
        if observation.shape != self._shape:  # numpy would broadcast some of the wrong ones
            told = f"an observation of the shape {observation.shape}, its space has {self._shape}"
            raise EnvironmentFault(f"{self._where(run, index)} returned {told}")
        if observation.ndim != 1:
            observation = observation.reshape(-1)
        self._obs[run][index] = observation if self._keep is None else observation * self._keep

    def _observation(self, run: int) -> Observation:
        return Observation(torch.from_numpy(self._obs[run]), self._no_ids)

    def _native(self, action: Sequence[int]) -> Any:
        if min(action) < 0:
            raise ValueError(f"action {list(action)} is outside its mask")
        return np.asarray(action) if self._choices is None else self._choices[action[0]]


def make_envs(
    config: Mapping[str, Any],
    runs: Sequence[Any],
    *,
    replicate_seed: int,
    num_envs: int,
    phase: str,
    rewards: Sequence[GymReward] | None = None,
    xeval: Mapping[str, GymReward] | None = None,
    alive: Callable[[], None] = lambda: None,
    **_unused: Any,
) -> GymEnvs:
    """Build the environments of ``runs``; the same call as for every environment kind.

    Everything lives on the CPU, so device and data folder are not used. ``rewards`` holds one function per
    run (default: native); ``xeval`` further ones under which evaluation episodes are scored; ``alive`` is called
    after everything that may take long.
    """
    own = rewards or [make_gym_reward("native", {}, gamma=1.0, task=str(config["env"]["id"]))] * len(runs)
    ledgers = [Ledger(reward, xeval or {}, num_envs) for reward in own]
    return GymEnvs(config, ledgers, replicate_seed=replicate_seed, num_envs=num_envs, phase=phase, alive=alive)


def _make(section: Mapping[str, Any]) -> gymnasium.Env[Any, Any]:
    name, kwargs = section["id"], section.get("kwargs") or {}
    given = f" with env.kwargs={dict(kwargs)!r}" if kwargs else ""
    with building(f"env.id={name!r}{given}"):
        for point in entry_points(group=ENTRY_POINTS, name=name):
            return cast("gymnasium.Env[Any, Any]", point.load()(**kwargs))
        # by the registry alone: "module:name" would import what a spec names. The order of calls is ours to keep
        registered = replace(gymnasium.spec(_versioned(name)), order_enforce=False)
        env = gymnasium.make(registered, disable_env_checker=True, **kwargs)
    space = vars(env.unwrapped).get("action_space")
    if type(space) is spaces.Discrete and space.dtype == np.int64:
        env.unwrapped.action_space = _Choices(space.n, start=space.start)
    return env


def _versioned(name: str) -> str:
    """Return a name without a version with that of its newest one, as ``gymnasium.make`` does."""
    newest = max((s for s in gymnasium.registry.values() if s.name == name), key=lambda s: s.version or 0, default=None)
    return name if newest is None else newest.id


def _observation_shape(space: spaces.Space[Any]) -> tuple[int, ...]:
    if not isinstance(space, spaces.Box):
        raise UnsupportedSpace(f"observation space {space}: only Box is supported; wrap the environment")
    return tuple(space.shape)


def _heads(space: spaces.Space[Any]) -> tuple[list[int | None], list[HeadSpec]]:
    """Return the start of a Discrete space (None for MultiDiscrete parts) and the heads."""
    if isinstance(space, spaces.Discrete):
        return [int(space.start)], [HeadSpec("action", int(space.n))]
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1:
        heads = [HeadSpec(f"action_{i}", int(n)) for i, n in enumerate(space.nvec)]
        return [None] * len(heads), heads
    raise UnsupportedSpace(f"action space {space}: only Discrete and MultiDiscrete are supported")


def _velocity_mask(section: Mapping[str, Any], size: int) -> np.ndarray | None:
    if "mask_velocity" not in (section.get("wrappers") or ()):
        return None
    if section["id"] not in VELOCITIES:
        raise ValueError(f"env.wrappers: mask_velocity knows {sorted(VELOCITIES)}, not {section['id']!r}")
    keep = np.ones(size, dtype=np.float32)
    keep[list(VELOCITIES[section["id"]])] = 0.0
    return keep


def _history(actions: Sequence[Any], offsets: Sequence[int | None]) -> Tensor:
    rows = [[a - offsets[0]] if offsets[0] is not None else list(a) for a in actions]
    return torch.tensor(rows, dtype=torch.int64).reshape(len(rows), len(offsets))


def _scalars(infos: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """Return the numbers in the environments' infos, [E] float32 by name; NaN where one is absent."""
    number = (bool, int, float, np.number, np.bool_)
    names = sorted({name for info in infos for name, value in info.items() if isinstance(value, number)})
    return {name: torch.tensor([float(info.get(name, np.nan)) for info in infos]) for name in names}
