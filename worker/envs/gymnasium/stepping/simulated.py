"""Gymnasium's own small tasks behind the lockstep protocol, all environments of all runs stepped in one call.

Numbers, episodes and checkpoints are those of ``GymEnvs`` bit for bit, so a block may be resumed by either: the
physics are a simulator's that was tried out against the task (``simulators``). Blocks that one process trains side by
side take their steps together (``take_with``). Axes: K run, E environment, N row = K E, O observation.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.utils import seeding
from torch import Tensor

from lockstep.spec.environments.gymnasium import CAPPED, MASK_VELOCITY, TIME_LIMIT
from worker.envs.base import Companion, Masks, Observation, StepResult, Taken
from worker.envs.gymnasium.build import build_one, versioned
from worker.envs.gymnasium.ledger import Ledger
from worker.envs.gymnasium.rewards import Transition
from worker.envs.gymnasium.stepping.herd import Herd, Rows
from worker.envs.gymnasium.stepping.hosted import DONE, Hosted
from worker.envs.gymnasium.stepping.simulators import Simulator, may_have_simulator, simulator_of

#: First states that wait for the other runs to come to them.
_KEPT_STARTS = 4096
#: Episodes of an environment that are drawn at once: between steps each costs several times what it does in a row.
_AHEAD = 8


class SimulatedEnvs(Hosted, Companion):
    """E environments of each of K runs.

    Args:
        sample: an environment of the task.
        stepped: its simulator and its limit of steps.
        config: resolved spec of the arms (they share ``env``).
        ledgers: what each run is paid, and under what else its episodes are scored.
        bounds: ``action.bounds`` of each run.
        replicate_seed: seed of the replicate.
        num_envs: E; in evaluation the number of episodes.
        phase: ``train`` or ``eval``, as in ``GymEnvs``.
        alive: called after every step.
    """

    def __init__(
        self,
        sample: gymnasium.Env[Any, Any],
        stepped: tuple[Simulator, int | None],
        config: Mapping[str, Any],
        ledgers: Sequence[Ledger],
        bounds: Sequence[str],
        *,
        replicate_seed: int,
        num_envs: int,
        phase: str,
        alive: Callable[[], None],
    ) -> None:
        super().__init__(ledgers, num_envs, replicate_seed, phase)
        section = config["env"]
        self._alive, self._name, self._bounds = alive, str(section["id"]), list(bounds)
        self._simulator, self._limit = stepped
        self._read(sample, section, config.get("eval", {}).get("max_steps"), self._limit)
        if self.resets_each_round:
            # an episode that does not end is an episode: it counts with the return it has at the cap
            self._stop: int | None = min(self.steps_per_round, self._limit or self.steps_per_round)
        else:
            self._stop = self._limit
        num_runs, features = len(ledgers), self.obs_spec.num_features
        self.num_runs, self.door, self.bounds = num_runs, self._door, self._bounds
        self.no_action = torch.zeros(num_envs, 1, dtype=torch.float32 if self._simulator.real else torch.int64)
        self._no_ids = torch.zeros(num_envs, 0, dtype=torch.int64)
        self._episode = [[-1] * num_envs for _ in range(num_runs)]
        self._seeds = [[0] * num_envs for _ in range(num_runs)]
        self._started = [[""] * num_envs for _ in range(num_runs)]
        self.is_native = all(ledger.is_native for ledger in self._ledgers)
        self._taken, self._starts = False, dict[tuple[int, int], tuple[int, np.ndarray]]()
        rows = Rows.empty(self._simulator, num_runs * num_envs, features, records=not self.resets_each_round)
        self._everyone = [True] * num_envs
        self.together = _Together([self], rows)

    @property
    def kind(self) -> Hashable:
        """What blocks have in common that take their steps together."""
        kept = None if self._keep is None else self._keep.tobytes()
        return type(self._simulator), self.num_envs, self._stop, self.resets_each_round, kept

    def take_with(self, others: Sequence[Companion]) -> None:
        """Take the step that was issued to these and to others of their kind in one call."""
        self._with(others).take()

    @property
    def is_whole(self) -> bool:
        """Return whether a step is taken by all environments, and paid by them."""
        return self.is_native and not self.resets_each_round

    def take_all(
        self, others: Sequence[Companion], actions: Tensor, alone: Callable[[int], AbstractContextManager[object]]
    ) -> Taken:
        """Take a step that was not issued, with others of their kind, in training by the task's own rewards."""
        together = self._with(others)
        reward, ended = together.take_all(actions.flatten(0, 1))
        flags = np.zeros((2, len(reward)), dtype=bool)
        for row, is_done in ended.items():
            flags[int(not is_done), row] = True
        finals = dict[int, Tensor]()
        for position in together.concerned():
            with alone(position):
                finals |= together.members[position].settle()
        runs, envs = actions.shape[:2]
        terminated, truncated = flags.reshape(2, runs, envs)
        return Taken(
            features=together.herd.rows.shown.reshape(runs, envs, -1),
            rewards=reward.reshape(runs, envs),
            terminated=terminated,
            truncated=truncated,
            finals=finals,
        )

    def settle(self) -> dict[int, Tensor]:
        """Record the episodes that the last step ended here and reset them; return ``Taken.finals`` of these."""
        together, found = self.together, dict[int, Tensor]()
        if not together.is_finite:
            for run in range(self.num_runs):
                self._check_finite(run, self.rows.shown[self._of(run)])
        for number in range(self._first, self._first + self.num_runs):
            if number in together.ended:
                run, ends = number - self._first, together.ended[number]
                if not all(is_done for _, is_done in ends):
                    found[number] = self._views[run].features.clone()
                self._end(run, {index: self._outcome(run, index, is_done) for index, is_done in ends})
        return found

    def _with(self, others: Sequence[Companion]) -> _Together:
        """Return what steps these and others together."""
        members = [self, *(other for other in others if isinstance(other, SimulatedEnvs))]
        if self.together.members != members:
            self.together = _Together(members, Rows.joined([member.rows for member in members]))
        return self.together

    def joins(self, together: _Together, first: int) -> int:
        """Be a part of what steps together, from its run ``first`` on; return the first run of the next part."""
        self.together, self._first, size = together, first, self.num_envs
        after = first + len(self._ledgers)
        self.rows = together.herd.rows.part(slice(first * size, after * size))
        self._views = [Observation(features, self._no_ids) for features in _parts(self.rows.shown, size)]
        return after

    def begin_round(self, round_index: int) -> list[tuple[Observation, Masks]]:
        """Start a round: reset in evaluation and before the first round, else carry on."""
        self._round = round_index
        self.rows.summed[:] = 0.0
        for run, episodes in enumerate(self._episode):
            self._ledgers[run].begin_round()
            for index in range(self.num_envs):
                if self.resets_each_round:
                    episodes[index] = -1
                if episodes[index] < 0:
                    self._reset(run, index)
        return [(view, self._masks) for view in self._views]

    def state_dict(self, run: int) -> dict[str, Any]:
        """Return episode numbers, the actions and rewards since each reset and the last observation."""
        rows, own = self.rows, self._of(run)
        paid = rows.paid[own] if self.is_native else self._ledgers[run].paid
        state = {
            "episode": torch.tensor(self._episode[run]),
            "observation": self._views[run].features.clone(),
            "paid": torch.from_numpy(paid.copy()),
        }
        for index in range(self.num_envs):
            row = run * self.num_envs + index
            done = int(rows.steps[row])
            state[f"actions/{index}"] = torch.from_numpy(rows.actions[:done, row].reshape(-1, 1).copy())
            state[f"rewards/{index}"] = torch.from_numpy(rows.rewards[:done, row].copy())
        return state

    def load_state_dict(self, run: int, state: Mapping[str, Any]) -> None:
        """Replay every running episode; another reward, end or last observation is an ``EnvironmentFault``."""
        for index in range(self.num_envs):
            episode = int(state["episode"][index]) - 1
            self._episode[run][index] = max(episode, -1)
            if episode < -1:
                continue
            self._reset(run, index)
            actions = state[f"actions/{index}"].numpy().reshape(-1)
            self._replay(run, index, actions, state[f"rewards/{index}"].tolist())
            if not torch.equal(self._views[run].features[index], state["observation"][index].cpu()):
                raise self._not_reproducible(run, index, "the observation is another")
        own, paid = self._of(run), state["paid"].cpu().numpy()
        self.rows.paid[own] = paid
        self._ledgers[run].paid[:] = paid

    def _replay(self, run: int, index: int, actions: np.ndarray, rewards: Sequence[float]) -> None:
        """Take the steps of an episode again; those of the other environments stay where they are."""
        self.together.make_room(len(rewards))
        row = run * self.num_envs + index
        rows = self.rows.part(slice(row, row + 1))
        herd = self.herd_of(rows)
        for step, (action, before) in enumerate(zip(actions, rewards, strict=True)):
            _, ended = herd.step(np.array([action]), None)
            if (paid := float(rows.rewards[step, 0])) != before:
                raise self._not_reproducible(run, index, f"the reward is {paid}, not {before}")
            if ended:
                raise self._not_reproducible(run, index, "the episode ends, and went on before")
        self._alive()

    def close(self) -> None:
        """Do nothing: there is no simulator to close."""

    def reward_sums(self, run: int) -> dict[str, Tensor]:
        """Return {component: [E]} of this round."""
        if not self.is_native:
            return super().reward_sums(run)
        return {"native": torch.from_numpy(self.rows.summed[self._of(run)].astype(np.float32))}

    def step(self, actions: Sequence[Tensor | None]) -> list[StepResult | None]:
        """Execute one action [E, C] per run, unless that was done with others' already."""
        self._actions = actions
        if not self._taken:
            self.take_with([])
        self._taken = False
        ask = self._plain if self._is_plain_step() else self._result
        results = [None if action is None else ask(run, action) for run, action in enumerate(actions)]
        self._alive()
        return results

    def issued(self) -> Sequence[Tensor | None]:
        """Return the actions [E, C] of each run that wait to be executed; they count as taken then."""
        self._taken = True
        return self._actions

    def herd_of(self, rows: Rows) -> Herd:
        """Return what steps rows of this kind."""
        return Herd(self._simulator, rows, self._keep, self._stop)

    def _step_run(self, run: int, actions: Tensor) -> StepResult:
        raise NotImplementedError("all runs step in one call")

    def _is_plain_step(self) -> bool:
        """Return whether nothing ended, idles, is scored or is not finite: so it is in most steps of training."""
        together = self.together
        return self.is_native and together.is_finite and not self.resets_each_round and not together.ended

    def _plain(self, run: int, _actions: Tensor) -> StepResult:
        """Return what ``_result`` does of a plain step."""
        terminated, truncated, valid = self._plain_flags
        return StepResult(
            observation=self._views[run],
            masks=self._masks,
            reward=self.together.rewards[self._first + run],
            terminated=terminated,
            truncated=truncated,
            valid=valid,
        )

    def _result(self, run: int, actions: Tensor) -> StepResult:
        together, ledger, number = self.together, self._ledgers[run], self._first + run
        ended = {index: self._outcome(run, index, is_done) for index, is_done in together.ended.get(number, ())}
        active = (~self.rows.idle[self._of(run)]).tolist() if self.resets_each_round else self._everyone
        if not together.is_finite:
            self._check_finite(run, self.rows.shown[self._of(run)])
        flags = self._flags(ended, active)
        reward = together.rewards[number]
        if not ledger.is_native:
            native = reward.numpy()
            reward = self._scored(run, actions, reward, flags)
            ledger.add(native, reward.numpy())
        final = None
        if ended and not self.resets_each_round:
            final = Observation(self._views[run].features.clone(), self._no_ids)
        self._end(run, ended)
        terminated, truncated, valid = flags
        return StepResult(
            observation=self._views[run],
            masks=self._masks,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            valid=valid,
            final_observation=final,
        )

    def _scored(self, run: int, actions: Tensor, reward: Tensor, flags: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """Return what a function of rewards pays for a step."""
        together, number = self.together, self._first + run
        after, executed = self._views[run].features.clone(), self._door.executed(actions, self._bounds[run])
        step = Transition(together.before[number], executed, reward, after, *flags[:2], {})
        seconds = together.seconds / len(together.before)
        return self._ledgers[run].score(step, flags[2].numpy(), np.array(self._episode[run]), seconds)

    def _outcome(self, run: int, index: int, is_done: bool) -> str:
        if is_done:
            return DONE
        steps = self.rows.steps[run * self.num_envs + index]
        return TIME_LIMIT if self._limit is not None and steps >= self._limit else CAPPED

    def _end(self, run: int, ended: Mapping[int, str]) -> None:
        """Record finished episodes by how they ended and, in training, reset them."""
        for index, outcome in ended.items():
            row = run * self.num_envs + index
            self.rows.idle[row] = True
            told = {
                "episode_idx": self._episode[run][index],
                "host_seed_key": self._seeds[run][index],
                "env_steps": int(self.rows.steps[row]),
                "outcome": outcome,
                "started_at": self._started[run][index],
            }
            self._tell(run, index, float(self.rows.native[row]), told, None)
            if not self.resets_each_round:
                self._reset(run, index)

    def _reset(self, run: int, index: int) -> None:
        episode = self._episode[run][index] = self._episode[run][index] + 1
        seed, state = self._start_of(index, episode)
        self._seeds[run][index] = seed
        self.together.herd.begin((self._first + run) * self.num_envs + index, state)
        self._ledgers[run].begin_episode(index)
        self._started[run][index] = datetime.now(UTC).isoformat()

    def _start_of(self, index: int, episode: int) -> tuple[int, np.ndarray]:
        """Return seed and first state [S] of an episode: every run has the same, so it is drawn once."""
        if (index, episode) not in self._starts:
            for number in range(episode, episode + (1 if self.resets_each_round else _AHEAD)):
                seed = self._reset_seed(index, number)
                self._starts[index, number] = seed, self._simulator.reset(seeding.np_random(seed)[0])
            for _ in range(len(self._starts) - max(_KEPT_STARTS, 2 * _AHEAD * self.num_envs)):
                self._starts.pop(next(iter(self._starts)))
        return self._starts[index, episode]

    def _at(self, run: int, index: int) -> tuple[int, int]:
        return self._episode[run][index], int(self.rows.steps[run * self.num_envs + index])

    def _of(self, run: int) -> slice:
        return slice(run * self.num_envs, (run + 1) * self.num_envs)


class _Together:
    """Blocks that take their steps in one call, and what the last one led to.

    Args:
        members: of one kind.
        rows: theirs, one after the other.

    Attributes:
        rewards: [E] float32 of each run.
        ended: of each run in which episodes ended: which, and whether the task ended them.
        before: [E, O] of each run, the observations before; empty where no reward is computed from them.
        is_finite: whether all observations are.
        seconds: it took.
    """

    def __init__(self, members: Sequence[SimulatedEnvs], rows: Rows) -> None:
        self.members = list(members)
        self.herd = members[0].herd_of(rows)
        self.rewards: Sequence[Tensor] = ()
        self.ended: dict[int, list[tuple[int, bool]]] = {}
        self.before: Sequence[Tensor] = ()
        self.is_finite, self.seconds = True, 0.0
        self._longest = len(rows.actions)
        self._modes = [how for member in members for how in member.bounds]
        self._member_of = [position for position, member in enumerate(members) for _ in range(member.num_runs)]
        self._bind(self.members)

    def take(self) -> None:
        """Take the step that was issued to all members."""
        actions, acting = self._gathered()
        if not all(member.is_native for member in self.members):
            self.before = _parts(self.herd.rows.shown.copy(), self.members[0].num_envs)
        reward, _ = self._step(actions, acting)
        self.rewards = _parts(reward, self.members[0].num_envs)

    def take_all(self, actions: Tensor) -> tuple[np.ndarray, dict[int, bool]]:
        """Take a step with actions [N, C] of all environments; return what ``Herd.step`` does."""
        return self._step(self._executed(actions), None)

    def concerned(self) -> list[int]:
        """Return the members in which the last step ended an episode or may have led to what is not finite."""
        if not self.is_finite:
            return list(range(len(self.members)))
        return sorted({self._member_of[run] for run in self.ended})

    def _step(self, actions: np.ndarray, acting: np.ndarray | None) -> tuple[np.ndarray, dict[int, bool]]:
        began = time.perf_counter()
        self._longest += 1
        rows, size = self.herd.rows, self.members[0].num_envs
        if self._longest > len(rows.actions) > 0:
            self._longest = int(rows.steps.max()) + 1
            self.make_room(self._longest)
            rows = self.herd.rows
        reward, ended = self.herd.step(actions, acting)
        self.ended = {}
        for row, is_done in ended.items():
            self.ended.setdefault(row // size, []).append((row % size, is_done))
        self.is_finite = bool(np.isfinite(rows.shown).all())
        self.seconds = time.perf_counter() - began
        return reward, ended

    def _gathered(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the actions [N] as they are executed, and which environments act; None for all."""
        first, idle = self.members[0], self.herd.rows.idle
        issued = [action for member in self.members for action in member.issued()]
        acts = [action is not None for action in issued]
        actions = self._executed(torch.cat([first.no_action if action is None else action for action in issued]))
        if all(acts) and not (first.resets_each_round and idle.any()):
            return actions, None
        return actions, np.repeat(acts, first.num_envs) & ~idle

    def _executed(self, actions: Tensor) -> np.ndarray:
        """Return the actions [N] as they are executed, of a policy's [N, C].

        Raises:
            ValueError: a choice is none of its head's.
        """
        first = self.members[0]
        if len(set(self._modes)) > 1:
            parts = zip(torch.split_with_sizes(actions, [first.num_envs] * len(self._modes)), self._modes, strict=True)
            actions = torch.cat([first.door.executed(part, how) for part, how in parts])
        else:
            actions = first.door.executed(actions, self._modes[0])
        executed: np.ndarray = actions.numpy()[:, 0]
        head = first.heads[0]
        # as unsigned numbers, of which negative ones are the largest
        if not head.is_gaussian and executed.view(np.uint64).max() >= head.size:
            raise ValueError(f"an action of {executed.tolist()} is outside its mask")
        return executed

    def make_room(self, steps: int) -> None:
        """Keep at least so many steps of every running episode."""
        rows, self._longest = self.herd.rows, max(self._longest, steps)
        if len(rows.actions) < steps:
            rows.grow(max(steps, 2 * len(rows.actions)))
            # others may have left, with rows of their own
            self._bind([member for member in self.members if member.together is self])

    def _bind(self, members: Sequence[SimulatedEnvs]) -> None:
        first = 0
        for member in self.members:
            first = member.joins(self, first) if member in members else first + member.num_runs


def simulated(
    config: Mapping[str, Any], ledgers: Sequence[Ledger], bounds: Sequence[str], **others: Any
) -> SimulatedEnvs | None:
    """Return environments that a simulator steps, None where the task has none that is exact here."""
    section = config["env"]
    if int(section.get("processes", 1)) > 1 or set(section.get("wrappers") or ()) - {MASK_VELOCITY}:
        return None
    if not may_have_simulator(versioned(str(section["id"]))):
        return None  # and is not built to be looked at: that may take long, count, or raise when it is closed
    with contextlib.closing(build_one(section)) as sample:
        stepped = simulator_of(sample, section.get("kwargs") or {})
        return None if stepped is None else SimulatedEnvs(sample, stepped, config, ledgers, bounds, **others)


def _parts(array: np.ndarray, size: int) -> Sequence[Tensor]:
    """Return [N, ..] as tensors of ``size`` rows each, which lie where it does."""
    return torch.split_with_sizes(torch.from_numpy(array), [size] * (len(array) // size))
