"""Acting for several runs at once: their networks as one, and the storage of one round that one forward fills.

A run's numbers are those of ``Rollout.act``, ``see`` and ``pay`` bit for bit, so only what has been shown to give that
is stacked: networks without images or ids, in FP32, on one thread of a processor. At the end of a round
every run's part is laid into its own ``Rollout``, which knows nothing of the others. What a run that has failed would
go on to do is computed and dropped. Axes: R run, T step, E environment, O features, H heads, C columns, N outputs.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from worker.envs.base import Observation, Seen, Taken
from worker.rl.affine import ALIGNED_BYTES
from worker.rl.heads import choose
from worker.rl.learner import Learner
from worker.rl.nets import LSTMNet, State
from worker.rl.normalise import ObsNormalizer
from worker.rl.rollout import Rollout
from worker.rl.stacked_nets import StackedLSTM, StackedMLP, StackedNet

#: FP32 numbers from one such address to the next.
_ALIGNED = ALIGNED_BYTES // 4


def net_key(learner: Learner) -> Hashable | None:
    """Return what policies must have in common to be one stack; None for one that is not stacked."""
    net, layout = learner.net, learner.net.embed.layout
    if layout.images or layout.num_ids or learner.cfg.precision != "fp32":
        return None
    if learner.device.type != "cpu" or torch.get_num_threads() > 1:
        return None
    return net.recurrent, learner.shapes, learner.heads.specs, learner.heads.squashed


def acting_key(learner: Learner) -> Hashable | None:
    """Return what runs must have in common to be acted for together; None where this run is acted for alone."""
    common, norm = net_key(learner), learner.obs_norm
    if common is None or any(floor > 0 for floor in learner.cfg.ppo.prob_floor.values()):
        return None
    return common, learner.num_envs, None if norm is None else norm.clip


def rows_of(vectors: Sequence[Tensor]) -> Tensor:
    """Return vectors [P] as rows of [R, S], S >= P; the rest is zero.

    A row begins at an address like that of a vector of its own, so that a product has the same bits.
    """
    size = vectors[0].numel()
    rows = torch.zeros(len(vectors), -(-size // _ALIGNED) * _ALIGNED)
    rows[:, :size] = torch.stack(list(vectors))
    return rows


def stacked(learner: Learner, data: Tensor, grad: Tensor | None = None) -> StackedNet:
    """Return networks like that of a learner that has a ``net_key``, of several runs: see ``StackedMLP``."""
    net = learner.net
    return StackedLSTM(net, data, grad) if isinstance(net, LSTMNet) else StackedMLP(net, data, grad)


def stack_of_one(learner: Learner) -> StackedNet | None:
    """Return the networks of a learner as a stack, whose gradients go where its own do; None for one never stacked.

    Its layers are views of the flat parameters: it sees them change in place.
    """
    layout, flat = learner.net.embed.layout, learner.flat
    if layout.images or layout.num_ids or learner.cfg.precision != "fp32" or learner.device.type != "cpu":
        return None
    return stacked(learner, flat.data.unsqueeze(0), flat.grad.unsqueeze(0))


class _Row:
    """What is stored of one step of all runs, as views made once: indexing a buffer costs as much as filling it."""

    def __init__(
        self,
        raw: Tensor,
        features: Tensor,
        masks: dict[str, Tensor],
        actions: Tensor,
        log_probs: Tensor,
        rewards: Tensor,
        *flags: Tensor,
    ) -> None:
        self.raw, self.features, self.masks = raw, features, masks
        self.actions, self.log_probs, self.rewards = actions, log_probs, rewards
        self.terminated, self.truncated, self.valid = flags
        #: The same for rows [R E, ..].
        self.flat_masks = {name: mask.flatten(0, 1) for name, mask in masks.items()}
        self.flat_actions, self.flat_log_probs = actions.flatten(0, 1), log_probs.flatten(0, 1)
        #: Raw features, rewards and the flags of ends as arrays: to fill these costs a third.
        self.raw_array, self.rewards_array = raw.numpy(), rewards.numpy()
        self.terminated_array, self.truncated_array = self.terminated.numpy(), self.truncated.numpy()


class RolloutStack:
    """One round of several runs.

    Args:
        learners: of each run, all of one ``acting_key``.
        rollouts: of each run, filled by ``end``.
    """

    def __init__(self, learners: Sequence[Learner], rollouts: Sequence[Rollout]) -> None:
        self._learners, self._rollouts = list(learners), list(rollouts)
        self._heads = learners[0].heads
        self._num_runs = len(rollouts)
        self._allocated = False
        #: Of each run the step in which its policy gave no usable action.
        self.failed: list[int | None] = []

    def begin(self, noise: Sequence[Tensor]) -> None:
        """Start a round that every rollout has begun.

        Args:
            noise: [T, E, C] of each run.
        """
        if not self._allocated:
            self._allocate()
        rows = rows_of([learner.flat.data for learner in self._learners])
        self._net = stacked(self._learners[0], rows)
        first = zip(*(rollout.initial_state for rollout in self._rollouts), strict=True)
        self._state: State = tuple(torch.stack(parts) for parts in first)
        #: The recurrent state after each step, before any reset; each part [R, layers, E, hidden].
        self._states: list[State] = []
        norms = [learner.obs_norm for learner in self._learners if learner.obs_norm is not None]
        self._norm = ObsNormalizer.stack(norms) if norms else None
        self._noise = torch.stack(list(noise), dim=1).flatten(1, 2).unbind()
        self.failed = [None] * self._num_runs
        self._lay(self._raw[0], [rollout.raw[0] for rollout in self._rollouts])
        self._lay(self._features[0], [rollout.features[0] for rollout in self._rollouts])
        for name, mask in self._masks.items():
            self._lay(mask[0], [rollout.masks[name][0] for rollout in self._rollouts])
            # as they stay where a step is seen whole
            mask[1:] = mask[0]
        self._valid.fill_(True)

    def act(self, t: int) -> list[Tensor | None]:
        """Choose and store the actions of step ``t``; return those of each run [E, C], None once it has failed."""
        self.choose(t)
        return self.chosen(t)

    def chosen(self, t: int) -> list[Tensor | None]:
        """Return the actions of step ``t`` of each run [E, C], once they have been chosen; None of one that failed."""
        chosen = self._rows[t].actions.unbind()
        return [action if self.failed[run] is None else None for run, action in enumerate(chosen)]

    def choose(self, t: int) -> Tensor | None:
        """Choose and store the actions of step ``t``; return those of all runs [R, E, C], None if one has failed."""
        row = self._rows[t]
        with torch.inference_mode():
            logits, self._state = self._net.step(row.features, self._state)
            actions, log_prob = choose(self._heads, logits.flatten(0, 1), row.flat_masks, self._noise[t])
            row.flat_actions.copy_(actions)
            row.flat_log_probs.copy_(log_prob)
            usable = math.isfinite(float(log_prob.sum()))
        self._states.append(self._state)
        if not usable:
            for run, of_run in enumerate(row.log_probs.tolist()):
                if self.failed[run] is None and not math.isfinite(sum(of_run)):
                    self.failed[run] = t
        return row.actions if all(failed is None for failed in self.failed) else None

    def see(self, t: int, results: Sequence[Seen | None]) -> None:
        """Store what step ``t`` led to for each run; None for one that has failed."""
        row, after = self._rows[t], self._rows[t + 1]
        self._lay(row.terminated, [None if seen is None else seen.terminated for seen in results])
        self._lay(row.truncated, [None if seen is None else seen.truncated for seen in results])
        self._lay(row.valid, [None if seen is None else seen.valid for seen in results])
        self._lay(after.raw, [None if seen is None else seen.observation.features for seen in results])
        self._carry_on(row, after)
        for name, mask in after.masks.items():
            self._lay(mask, [None if seen is None else seen.masks[name] for seen in results])
        for run, seen in enumerate(results):
            if seen is not None and seen.final_observation is not None:
                self._rollouts[run].keep_final(t, seen.final_observation)
            for correction in () if seen is None else seen.corrections:
                step, env = correction.step, correction.env
                self._rewards[step, run, env] = correction.reward
                self._terminated[step, run, env], self._truncated[step, run, env] = True, False
                self._valid[step + 1 :, run, env] = False

    def see_all(self, t: int, taken: Taken) -> None:
        """Store what step ``t`` led to and paid, of all runs in one piece; none has failed since the round began."""
        row, after = self._rows[t], self._rows[t + 1]
        row.terminated_array[:] = taken.terminated
        row.truncated_array[:] = taken.truncated
        row.rewards_array[:] = taken.rewards
        after.raw_array[:] = taken.features
        self._carry_on(row, after)
        for run, features in taken.finals.items():
            self._rollouts[run].keep_final(t, Observation(features, self._rollouts[run].ids[t + 1]))

    def pay(self, t: int, rewards: Sequence[Tensor | None]) -> None:
        """Store the reward [E] of step ``t`` for each run; None for one that has failed."""
        self._lay(self._rows[t].rewards, rewards)

    def _carry_on(self, row: _Row, after: _Row) -> None:
        """Normalise what a step led to, and carry the recurrent state over ends of episodes."""
        if self._norm is not None:
            after.features.copy_(self._norm(after.raw))
        if self._state:
            keep = (~(row.terminated | row.truncated)).to(self._state[0].dtype).unsqueeze(1).unsqueeze(-1)
            self._state = tuple(part * keep for part in self._state)

    def end(self) -> None:
        """Lay what was recorded into the rollout of each run; of a failed one as far as it came."""
        states = [list(zip(*(part.unbind() for part in state), strict=True)) for state in self._states]
        lasts = list(zip(*(part.unbind() for part in self._state), strict=True))
        for run, (rollout, failed) in enumerate(zip(self._rollouts, self.failed, strict=True)):
            seen = rollout.num_steps if failed is None else failed
            acted = seen if failed is None else failed + 1
            for name in ("actions", "log_probs"):
                getattr(rollout, name)[:acted] = getattr(self, f"_{name}")[:acted, run]
            for name in ("rewards", "terminated", "truncated", "valid"):
                getattr(rollout, name)[:seen] = getattr(self, f"_{name}")[:seen, run]
            later = slice(1, seen + 1)
            rollout.raw[later] = self._raw[later, run]
            if self._norm is not None:
                rollout.features[later] = self._features[later, run]
            for name, mask in self._masks.items():
                rollout.masks[name][later] = mask[later, run]
            rollout.states = [of_runs[run] if of_runs else () for of_runs in states[:acted]]
            rollout.state = lasts[run] if lasts else ()

    @staticmethod
    def _lay(into: Tensor, parts: Sequence[Tensor | None]) -> None:
        """Copy what there is of each run into [R, ..]."""
        given = [part for part in parts if part is not None and part.dtype is into.dtype]
        if len(given) == len(parts):
            torch.stack(given, out=into)
            return
        for row, part in zip(into, parts, strict=True):
            if part is not None:
                row.copy_(part)

    def _allocate(self) -> None:
        """Make buffers like those of the rollouts, with an axis of runs after that of steps."""
        like = self._rollouts[0]

        def wide(buffer: Tensor) -> Tensor:
            return buffer.new_zeros(len(buffer), self._num_runs, *buffer.shape[1:])

        self._raw = wide(like.raw)
        self._features = self._raw if like.features is like.raw else wide(like.raw)
        self._masks = {name: wide(mask) for name, mask in like.masks.items()}
        self._actions, self._log_probs, self._rewards = wide(like.actions), wide(like.log_probs), wide(like.rewards)
        self._terminated, self._truncated, self._valid = (
            wide(flags) for flags in (like.terminated, like.truncated, like.valid)
        )
        steps = zip(*(mask.unbind() for mask in self._masks.values()), strict=True)
        masks = [dict(zip(self._masks, parts, strict=True)) for parts in steps]
        acted = (self._actions, self._log_probs, self._rewards, self._terminated, self._truncated, self._valid)
        # the observation after the last step has a row, in which nothing is done
        views = zip(*([*part.unbind(), part[-1]] for part in acted), strict=True)
        seen = zip(self._raw.unbind(), self._features.unbind(), masks, strict=True)
        self._rows = [_Row(*first, *parts) for first, parts in zip(seen, views, strict=True)]
        self._allocated = True
