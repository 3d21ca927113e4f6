"""Gymnasium behind the lockstep protocol: same-step autoreset, keyed seeds, true final observations.

Every episode is reset with its own seed, the lower 32 bits of its key (purpose ``env_reset``; many simulators take no
wider ones), so an episode depends on neither the number of environments nor on who else is trained. A resume replays
the actions since each reset and compares rewards, ends and the last observation. Axes: E environment, O observation.
"""

from __future__ import annotations

import contextlib
import sys
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

import gymnasium
import numpy as np
import torch
from torch import Tensor

from lockstep.spec.environments.gymnasium import CAPPED, TIME_LIMIT, WRAPPERS
from lockstep.spec.sections import CLIP
from worker.envs.base import Masks, Observation, StepResult
from worker.envs.family import Order
from worker.envs.faults import (
    RAISED,
    EnvironmentFault,
    building,
    is_out_of_memory,
    last_line,
    playing,
    what_went_wrong,
)
from worker.envs.gymnasium.build import build_one, builder, registered
from worker.envs.gymnasium.door import is_true, reset_values, reward_of, step_values
from worker.envs.gymnasium.ledger import Ledger
from worker.envs.gymnasium.rewards import GymReward, Transition, make_gym_reward
from worker.envs.gymnasium.stepping.hosted import DONE, Hosted
from worker.envs.gymnasium.stepping.remote import Building, Pool, RemoteEnv
from worker.envs.gymnasium.stepping.simulated import SimulatedEnvs, simulated
from worker.envs.gymnasium.stepping.vector import is_batched
from worker.envs.inside import INSIDE, OUTSIDE, RESET, STEP

#: Environments that step between two signs of life: all of a run may be thousands, and each may be slow.
_STEPS_BETWEEN_SIGNS = 16


@dataclass
class _Lane:
    """One environment instance and its running episode."""

    env: Any  # a gymnasium.Env, or one in a process of its own
    episode: int = -1
    reset_seed: int = 0
    steps: int = 0
    actions: array[Any] = field(default_factory=lambda: array("q"))  # C of each step as executed, for a replay
    rewards: array[float] = field(default_factory=lambda: array("d"))
    native: float = 0.0
    started_at: str = ""
    is_over: bool = False
    success: bool | None = None  # what the last info of the episode said; None where it says nothing


class GymEnvs(Hosted):
    """E environments of each of K runs.

    Args:
        config: resolved spec of the arms (they share ``env``).
        replicate_seed: seed of the replicate.
        num_envs: E; in evaluation the number of episodes.
        phase: ``train`` (carries on over rounds, autoreset) or ``eval`` (one episode each, cut as truncated after
            ``eval.max_steps``, then idle).
        ledgers: what each run is paid, and under what else its episodes are scored.
        bounds: ``action.bounds`` of each run.
        alive: called after everything that may take long: an environment built or reset, a step of a run.

    Raises:
        ValueError: the environment cannot be built or has spaces that are not supported.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        ledgers: Sequence[Ledger],
        bounds: Sequence[str],
        *,
        replicate_seed: int,
        num_envs: int,
        phase: str,
        alive: Callable[[], None],
    ) -> None:
        section = config["env"]
        if set(section.get("wrappers") or ()) - set(WRAPPERS):
            raise ValueError(f"env.wrappers={list(section['wrappers'])}: known are {list(WRAPPERS)}")
        super().__init__(ledgers, num_envs, replicate_seed, phase)
        self._alive = alive
        self._name, self._bounds = str(section["id"]), list(bounds)
        self._lanes: list[list[_Lane]] = [[] for _ in ledgers]
        self._pool: Pool | None = None
        try:
            self._build(section, config.get("eval", {}).get("max_steps"))
        except BaseException:
            self.close()
            raise

    def _build(self, section: Mapping[str, Any], cap: int | None) -> None:
        sample = self._lay(section)
        own = sample.spec.max_episode_steps if sample.spec is not None else None
        self._read(sample, section, cap, section.get("max_episode_steps") or own)
        self._write = self.entry.write
        num_runs, num_envs = len(self._lanes), self.num_envs
        self._obs = [np.zeros((num_envs, self.obs_spec.num_features), dtype=np.float32) for _ in range(num_runs)]
        num_pixels = sum(int(np.prod(image)) for image in self.obs_spec.images)
        self._pixels = [np.zeros((num_envs, num_pixels), dtype=np.uint8) for _ in range(num_runs)]
        no_ids = torch.zeros(num_envs, 0, dtype=torch.int64)
        self._views = [
            Observation(torch.from_numpy(seen), no_ids, torch.from_numpy(bytes_of) if self.obs_spec.images else None)
            for seen, bytes_of in zip(self._obs, self._pixels, strict=True)
        ]

    def _lay(self, section: Mapping[str, Any]) -> gymnasium.Env[Any, Any]:
        """Build every environment, here or in processes of their own; return one that can be asked for its spaces."""
        count, processes = len(self._lanes) * self.num_envs, int(section.get("processes", 1))
        training = self._phase == "train"
        if processes == 1:
            build = builder(section, training=training)
            for lanes in self._lanes:
                for _ in range(self.num_envs):
                    lanes.append(_Lane(build()))
                    self._alive()
            return cast("gymnasium.Env[Any, Any]", self._lanes[0][0].env)
        with contextlib.closing(build_one(section)) as sample:
            pooled = Building(self._name, section, training=training)
            self._pool = Pool(pooled, processes, count, self._alive)
        for index, env in enumerate(self._pool.envs):
            self._lanes[index // self.num_envs].append(_Lane(env))
        return sample

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

    def state_dict(self, run: int) -> dict[str, Any]:
        """Return episode numbers, the actions and rewards since each reset and the last observation."""
        state = {
            "episode": torch.tensor([lane.episode for lane in self._lanes[run]]),
            **{name: torch.from_numpy(shown.copy()) for name, shown in self._shown(run).items()},
            "paid": torch.from_numpy(self._ledgers[run].paid.copy()),
        }
        for index, lane in enumerate(self._lanes[run]):
            actions = np.array(lane.actions).reshape(-1, self._door.num_columns)
            state[f"actions/{index}"] = torch.from_numpy(actions)
            state[f"rewards/{index}"] = torch.from_numpy(np.array(lane.rewards))
        return state

    def load_state_dict(self, run: int, state: Mapping[str, Any]) -> None:
        """Replay every running episode; another reward, end or last observation is an ``EnvironmentFault``."""
        for index, lane in enumerate(self._lanes[run]):
            lane.episode = int(state["episode"][index]) - 1
            if lane.episode < -1:
                lane.episode = -1
                continue
            self._reset(run, index)
            self._replay(run, index, state[f"actions/{index}"].tolist(), state[f"rewards/{index}"].tolist())
            now = self._shown(run)
            if any(not np.array_equal(shown[index], state[name][index].cpu().numpy()) for name, shown in now.items()):
                raise self._not_reproducible(run, index, "the observation is another")
        self._ledgers[run].paid[:] = state["paid"].cpu().numpy()

    def _shown(self, run: int) -> dict[str, np.ndarray]:
        """Return the last observations of a run by the name under which a checkpoint holds them."""
        images = {"pixels": self._pixels[run]} if self.obs_spec.images else {}
        return {"observation": self._obs[run], **images}

    def _replay(self, run: int, index: int, actions: Sequence[list[float]], rewards: Sequence[float]) -> None:
        for action, before in zip(actions, rewards, strict=True):
            paid, ends, cut, _ = self._advance(run, index, action)
            if paid != before:
                raise self._not_reproducible(run, index, f"the reward is {paid}, not {before}")
            if ends or cut:
                raise self._not_reproducible(run, index, "the episode ends, and went on before")
            self._alive()

    def close(self) -> None:
        """Close every environment; one that fails to close is named in the log and keeps none of the others open."""
        if self._pool is not None:
            self._pool.close()
        for lanes in self._lanes:
            while lanes:
                try:
                    with INSIDE.doing(f"environment {self._name!r} in close"):
                        lanes.pop().env.close()
                except RAISED as error:
                    sys.stderr.write(f"environment {self._name!r} raised in close: {last_line(error)}\n")

    def step(self, actions: Sequence[Tensor | None]) -> list[StepResult | None]:
        """Execute one action [E, C] per run; environments in other processes step at the same time."""
        if self._pool is not None:
            told: list[tuple[RemoteEnv, Any]] = []
            for lanes, batch, bounds in zip(self._lanes, actions, self._bounds, strict=True):
                rows = [] if batch is None else self._door.executed(batch, bounds).tolist()
                told += [
                    (lane.env, self._door.native(row))
                    for lane, row in zip(lanes, rows, strict=False)
                    if not lane.is_over
                ]
            self._pool.begin(told)
        return super().step(actions)

    def _step_run(self, run: int, actions: Tensor) -> StepResult:
        lanes, ledger = self._lanes[run], self._ledgers[run]
        active = [not lane.is_over for lane in lanes]
        before = None if ledger.is_native else self._obs[run].copy()
        actions = self._door.executed(actions, self._bounds[run])
        began = time.perf_counter()
        native, infos, ended = self._advance_all(run, actions, active)
        self._check_finite(run, self._obs[run])
        reward, flags = torch.from_numpy(native), self._flags(ended, active)
        if before is not None:
            stepping = time.perf_counter() - began
            after = torch.from_numpy(self._obs[run].copy())
            with playing(f"environment {self._name!r}: its info"):
                scalars = _scalars(infos)
            step = Transition(torch.from_numpy(before), actions, reward, after, *flags[:2], scalars)
            reward = ledger.score(step, flags[2].numpy(), np.array([lane.episode for lane in lanes]), stepping)
        ledger.add(native, reward.numpy())
        final = self._end(run, ended)
        self._alive()
        terminated, truncated, valid = flags
        return StepResult(
            observation=self._observation(run),
            masks=self._masks,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            valid=valid,
            final_observation=final,
        )

    def _advance_all(
        self, run: int, actions: Tensor, active: Sequence[bool]
    ) -> tuple[np.ndarray, list[Mapping[str, Any]], dict[int, str]]:
        """Step the active environments; return native rewards [E], what reward functions read, and how some ended."""
        lanes, keeps_infos = self._lanes[run], not self._ledgers[run].is_native
        native = np.zeros(self.num_envs, dtype=np.float32)
        infos: list[Mapping[str, Any]] = [{}] * self.num_envs
        ended: dict[int, str] = {}
        for index, action in enumerate(actions.tolist()):
            if not active[index]:
                continue
            native[index], ends, cut, info = self._advance(run, index, action)
            if keeps_infos:
                infos[index] = dict(info)  # which the environment may go on to write to
            if index % _STEPS_BETWEEN_SIGNS == 0:
                self._alive()
            # an episode that does not end is an episode: it counts with the return it has at the cap
            if ends or cut or (self.resets_each_round and lanes[index].steps >= self.steps_per_round):
                lanes[index].success = self._success(run, index, info)
                ended[index] = DONE if ends else TIME_LIMIT if cut else CAPPED
        return native, infos, ended

    def _end(self, run: int, ended: Mapping[int, str]) -> Observation | None:
        """Record finished episodes by how they ended and, in training, reset them; return the true observations."""
        if not ended:
            return None
        final = None if self.resets_each_round else _copied(self._observation(run))
        for index, outcome in ended.items():
            self._finish(run, index, outcome)
            if final is not None:
                self._reset(run, index)
        return final

    def _advance(self, run: int, index: int, action: Sequence[float]) -> tuple[float, bool, bool, Mapping[str, Any]]:
        """Step one environment and write its observation; return reward, terminated, truncated and info."""
        lane = self._lanes[run][index]
        native = self._door.native(action)  # made anew: the environment may change what it is handed
        lane.steps += 1
        cells = INSIDE.cells
        cells[1], cells[2], cells[0] = index, lane.steps, STEP
        try:
            observation, reward, terminated, truncated, info = step_values(lane.env.step(native))
            paid = reward_of(reward)
            self._take(run, index, observation)
            ends, cut = is_true(terminated, "terminated"), is_true(truncated, "truncated")
        except RAISED as error:
            raise self._fault(run, index, error) from error
        finally:
            cells[0] = OUTSIDE
        if not self.resets_each_round:
            lane.actions.extend(action)
            lane.rewards.append(paid)
        lane.native += paid
        return paid, ends, cut, info

    def _success(self, run: int, index: int, info: Any) -> bool | None:
        value = info.get("is_success") if isinstance(info, Mapping) else None
        try:
            return None if value is None else is_true(value, "info['is_success']")
        except RAISED as error:
            raise self._fault(run, index, error) from error

    def _fault(self, run: int, index: int, error: BaseException) -> BaseException:
        if isinstance(error, EnvironmentFault) or is_out_of_memory(error):
            return error
        return EnvironmentFault(f"{self._where(run, index)} {what_went_wrong(error)}")

    def _at(self, run: int, index: int) -> tuple[int, int]:
        lane = self._lanes[run][index]
        return lane.episode, lane.steps

    def _reset(self, run: int, index: int) -> None:
        lane = self._lanes[run][index]
        lane.episode += 1
        lane.reset_seed = self._reset_seed(index, lane.episode)
        lane.actions, lane.rewards = self._door.record(), array("d")
        lane.steps, lane.native, lane.is_over, lane.success = 0, 0.0, False, None
        cells = INSIDE.cells
        cells[1], cells[0] = index, RESET
        try:
            observation, _ = reset_values(lane.env.reset(seed=lane.reset_seed))
            self._take(run, index, observation)
        except RAISED as error:
            raise self._fault(run, index, error) from error
        finally:
            cells[0] = OUTSIDE
        self._check_finite(run, self._obs[run][index : index + 1], index)
        self._ledgers[run].begin_episode(index)
        lane.started_at = datetime.now(UTC).isoformat()
        self._alive()

    def _finish(self, run: int, index: int, outcome: str) -> None:
        lane = self._lanes[run][index]
        lane.is_over = True
        told = {
            "episode_idx": lane.episode,
            "host_seed_key": lane.reset_seed,
            "env_steps": lane.steps,
            "outcome": outcome,
            "started_at": lane.started_at,
        }
        self._tell(run, index, lane.native, told, lane.success)

    def _take(self, run: int, index: int, observation: Any) -> None:
        row = self._obs[run][index]
        self._write(observation, row, self._pixels[run][index])
        if self._keep is not None:
            row *= self._keep

    def _observation(self, run: int) -> Observation:
        return self._views[run]


def make_envs(
    config: Mapping[str, Any],
    runs: Sequence[Any],
    *,
    replicate_seed: int,
    num_envs: int,
    phase: str,
    rewards: Sequence[GymReward] | None = None,
    bounds: Sequence[str] | None = None,
    xeval: Mapping[str, GymReward] | None = None,
    alive: Callable[[], None] = lambda: None,
    **_unused: Any,
) -> GymEnvs:
    """Build the environments of ``runs``; the same call as for every environment kind.

    Everything lives on the CPU, so device and data folder are not used. ``rewards`` holds one function per run
    (default: native), ``bounds`` its ``action.bounds`` (default: clip); ``xeval`` further functions under which
    evaluation episodes are scored; ``alive`` is called after everything that may take long.
    """
    ledgers = _ledgers(config, runs, num_envs, rewards, xeval)
    modes = bounds or [CLIP] * len(runs)
    return GymEnvs(config, ledgers, modes, replicate_seed=replicate_seed, num_envs=num_envs, phase=phase, alive=alive)


def simulated_envs(order: Order, xeval: Mapping[str, GymReward], phase: str) -> SimulatedEnvs | None:
    """Return environments with the numbers of ``make_envs`` that a simulator steps; None where there is no such."""
    ledgers = _ledgers(order.config, order.runs, order.num_envs, order.rewards, xeval)
    modes = [run.action_bounds for run in order.runs]
    given = {"replicate_seed": order.replicate_seed, "num_envs": order.num_envs}
    return simulated(order.config, ledgers, modes, phase=phase, alive=order.alive, **given)


def _ledgers(
    config: Mapping[str, Any],
    runs: Sequence[Any],
    num_envs: int,
    rewards: Sequence[GymReward] | None,
    xeval: Mapping[str, GymReward] | None,
) -> list[Ledger]:
    own = rewards or [make_gym_reward("native", {}, gamma=1.0, task=str(config["env"]["id"]))] * len(runs)
    arms = ["" if run is None else run.label for run in runs]
    return [Ledger(reward, xeval or {}, num_envs, arm) for reward, arm in zip(own, arms, strict=True)]


def batched_factory(name: str) -> Callable[..., Any] | None:
    """Return the factory of a registered task that is a batched simulator, None where it is none."""
    with building(f"env.id={name!r}"):
        factory = registered(name)
    return factory if factory is not None and is_batched(factory) else None


def _copied(view: Observation) -> Observation:
    return Observation(view.features.clone(), view.ids, None if view.pixels is None else view.pixels.clone())


def _scalars(infos: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """Return the numbers in the environments' infos, [E] float32 by name; NaN where one is absent."""
    number = (bool, int, float, np.number, np.bool_)
    names = sorted({name for info in infos for name, value in info.items() if isinstance(value, number)})
    return {name: torch.tensor([float(info.get(name, np.nan)) for info in infos]) for name in names}
