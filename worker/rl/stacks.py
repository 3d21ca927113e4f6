"""Acting for several runs at once: their networks as one, and the storage of one round that one forward fills.

A run's numbers are those of ``Rollout.act``, ``see`` and ``pay`` bit for bit, so only what has been shown to give that
is stacked: feed-forward networks without images or ids, in FP32, on one thread of a processor. At the end of a round
every run's part is laid into its own ``Rollout``, which knows nothing of the others. What a run that has failed would
go on to do is computed and dropped. Axes: R run, T step, E environment, O features, H heads, C columns, N outputs.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from worker.envs.base import Seen
from worker.rl.heads import choose
from worker.rl.learner import Learner
from worker.rl.nets import MLPNet, StackedMLP
from worker.rl.normalise import ObsNormalizer
from worker.rl.rollout import Rollout

#: FP32 numbers in 64 bytes, what the memory of a tensor of its own begins at a multiple of.
_ALIGNED = 16


def net_key(learner: Learner) -> Hashable | None:
    """Return what policies must have in common to be one stack; None for one that is not stacked."""
    net, layout = learner.net, learner.net.embed.layout
    if not isinstance(net, MLPNet) or layout.images or layout.num_ids or learner.cfg.precision != "fp32":
        return None
    if learner.device.type != "cpu" or torch.get_num_threads() > 1:
        return None
    shapes = tuple((name, tuple(parameter.shape)) for name, parameter in net.named_parameters())
    return shapes, learner.heads.specs, learner.heads.squashed


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
    for row, vector in zip(rows, vectors, strict=True):
        row[:size] = vector
    return rows


def mlp_of(learner: Learner) -> MLPNet:
    """Return the network of a learner that has a ``net_key``."""
    if not isinstance(learner.net, MLPNet):
        raise TypeError("only feed-forward networks are stacked")
    return learner.net


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
        self._net = StackedMLP(mlp_of(self._learners[0]), rows)
        norms = [learner.obs_norm for learner in self._learners if learner.obs_norm is not None]
        self._norm = ObsNormalizer.stack(norms) if norms else None
        self._noise = torch.stack(list(noise), dim=1).flatten(1, 2).unbind()
        self.failed = [None] * self._num_runs
        self._lay(self._raw[0], [rollout.raw[0] for rollout in self._rollouts])
        self._lay(self._features[0], [rollout.features[0] for rollout in self._rollouts])
        for name, mask in self._masks.items():
            self._lay(mask[0], [rollout.masks[name][0] for rollout in self._rollouts])

    def act(self, t: int) -> list[Tensor | None]:
        """Choose and store the actions of step ``t``; return those of each run [E, C], None once it has failed."""
        with torch.inference_mode():
            logits = self._net.step(self._features[t])
            masks = {name: mask[t].flatten(0, 1) for name, mask in self._masks.items()}
            actions, log_prob = choose(self._heads, logits.flatten(0, 1), masks, self._noise[t])
            self._actions[t].copy_(actions.view_as(self._actions[t]))
            self._log_probs[t].copy_(log_prob.view_as(self._log_probs[t]))
            totals = [sum(of_run) for of_run in self._log_probs[t].tolist()]
        for run, total in enumerate(totals):
            if self.failed[run] is None and not math.isfinite(total):
                self.failed[run] = t
        chosen = self._actions[t].unbind()
        return [action if self.failed[run] is None else None for run, action in enumerate(chosen)]

    def see(self, t: int, results: Sequence[Seen | None]) -> None:
        """Store what step ``t`` led to for each run; None for one that has failed."""
        self._lay(self._terminated[t], [None if seen is None else seen.terminated for seen in results])
        self._lay(self._truncated[t], [None if seen is None else seen.truncated for seen in results])
        self._lay(self._valid[t], [None if seen is None else seen.valid for seen in results])
        self._lay(self._raw[t + 1], [None if seen is None else seen.observation.features for seen in results])
        if self._norm is not None:
            self._features[t + 1].copy_(self._norm(self._raw[t + 1]))
        for name, mask in self._masks.items():
            self._lay(mask[t + 1], [None if seen is None else seen.masks[name] for seen in results])
        for run, seen in enumerate(results):
            if seen is not None and seen.final_observation is not None:
                self._rollouts[run].keep_final(t, seen.final_observation)
            for correction in () if seen is None else seen.corrections:
                step, env = correction.step, correction.env
                self._rewards[step, run, env] = correction.reward
                self._terminated[step, run, env], self._truncated[step, run, env] = True, False
                self._valid[step + 1 :, run, env] = False

    def pay(self, t: int, rewards: Sequence[Tensor | None]) -> None:
        """Store the reward [E] of step ``t`` for each run; None for one that has failed."""
        self._lay(self._rewards[t], rewards)

    def end(self) -> None:
        """Lay what was recorded into the rollout of each run; of a failed one as far as it came."""
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
            rollout.states = [()] * acted

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
        self._allocated = True
