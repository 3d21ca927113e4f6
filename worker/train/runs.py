"""One run inside a block: begins a round, acts, records, updates. A policy that learns or a control.

The loop in ``block`` treats both alike. A failed run keeps its cause and is not stepped any more. Each part of
its environments (those in one cohort) is acted for on its own, and fills a rollout of its own.
Axes: T step, E environment, H heads.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from worker.envs.base import Masks, Observation, Seen
from worker.envs.family import Control
from worker.rl.algorithms.base import Algorithm, Due, Prepared
from worker.rl.heads import Heads
from worker.rl.learner import Learner, Streams
from worker.rl.nets import State
from worker.rl.rollout import PolicyError, Rollout, joined
from worker.train.anomalies import Detectors
from worker.train.plan import RunPlan

#: Updates in a row without one finite step after which a run has diverged.
_DEAD_UPDATES = 3


class PartRollouts:
    """Rollouts of a run, one for each part of its environments that is stepped on its own.

    Args:
        parts: sizes of the groups that each part is acted for one by one.
        make: makes an empty rollout of such groups.
    """

    def __init__(self, parts: Sequence[Sequence[int]], make: Callable[[Sequence[int]], Rollout]) -> None:
        sizes = [sum(groups) for groups in parts]
        stops = list(accumulate(sizes))
        self.rows = [slice(stop - size, stop) for stop, size in zip(stops, sizes, strict=True)]
        self.rollouts = [make(groups) for groups in parts]

    def begin(self, observation: Observation, masks: Masks, state: State) -> None:
        """Start a round; every part begins at its rows of observation [E, ..], masks [E, ..] and state [L, E, ..]."""
        for rows, rollout in zip(self.rows, self.rollouts, strict=True):
            pixels = None if observation.pixels is None else observation.pixels[rows]
            view = Observation(observation.features[rows], observation.ids[rows], pixels)
            own = {name: mask[rows] for name, mask in masks.items()}
            rollout.begin(view, own, tuple(part[:, rows].contiguous() for part in state))


class TrainedRun:
    """A run whose policy an algorithm trains.

    Args:
        plan: the arm.
        algorithm: what trains it.
        learner: its policy.
        streams: keys of its draws.
        num_steps: T.
        never_floored: choices per head that probability floors must not touch.
        parts: of each part of its environments, sizes of the groups that are acted for one by one.

    Attributes:
        rollout: of the last round that was updated from, all environments.
    """

    def __init__(
        self,
        plan: RunPlan,
        algorithm: Algorithm,
        learner: Learner,
        streams: Streams,
        num_steps: int,
        never_floored: Mapping[str, tuple[int, ...]],
        parts: Sequence[Sequence[int]],
    ) -> None:
        self.plan, self.algorithm, self.learner, self.streams = plan, algorithm, learner, streams
        self.num_steps = num_steps
        made = (num_steps, learner.heads, learner.obs_norm, learner.cfg.precision)
        self._parts = PartRollouts(parts, lambda groups: Rollout(*made, groups))
        self.diverged: str | None = None
        self._never_floored = never_floored
        self.prepared: Prepared | None = None
        self.detectors = Detectors(learner.cfg.rounds, algorithm)

    def begin(self, round_index: int, observation: Observation, masks: Masks, *, fresh: bool) -> None:
        """Start a round; ``fresh`` = the recurrent state is that of an episode start."""
        learner = self.learner
        self.round = round_index
        state = learner.net.initial_state(learner.num_envs) if fresh else learner.carry
        self._parts.begin(observation, masks, state)
        shape = (self.num_steps, learner.num_envs, learner.heads.num_columns)
        noise = self.streams.action_noise(round_index, shape, learner.heads.normal_columns).to(learner.device)
        #: [T, E, C] of the round, all environments.
        self.draws = noise
        self._noise: list[tuple[Tensor, ...]] | None = None
        self.floors = self.algorithm.floors(learner, round_index, self._never_floored)

    def choose(self, t: int, part: int = 0) -> None:
        """Begin to act for a part in step ``t``."""
        if self.diverged is not None:
            return
        if self._noise is None:  # which a run in a stack does not need
            self._noise = [self.draws[:, rows].unbind() for rows in self._parts.rows]
        self.rollouts[part].choose(self.learner.net, t, self._noise[part][t], self.floors)

    def chosen(self, t: int, part: int = 0) -> Tensor | None:
        """Return the actions that were chosen for a part in step ``t``, or None once the run has failed."""
        if self.diverged is not None:
            return None
        try:
            return self.rollouts[part].chosen(t)
        except PolicyError as error:
            self.fail(error)
            return None

    @property
    def rollouts(self) -> Sequence[Rollout]:
        """What each part has recorded of the round."""
        return self._parts.rollouts

    def fail(self, error: PolicyError) -> None:
        """End the run: its policy is of no use any more."""
        self.diverged = f"non-finite policy: {error}"

    def see(self, t: int, seen: Seen, part: int = 0) -> None:
        """Store what a step of a part led to."""
        self._parts.rollouts[part].see(t, seen)

    def pay(self, t: int, reward: Tensor, part: int = 0) -> None:
        """Store what a step of a part paid."""
        self._parts.rollouts[part].pay(t, reward)

    def end(self) -> None:
        """Join what the parts recorded in a round."""
        self.rollout = joined(self._parts.rollouts)

    def update(self) -> dict[str, float]:
        """Update the policy with the round's rollout and return the algorithm's group of metrics."""
        started = time.perf_counter()
        due = self.due()
        if due is None:
            return {}
        metrics = self.algorithm.update(due.learner, due.rollout, due.prepared, due.round_index, due.order)
        return self.updated(metrics, started)

    def due(self) -> Due | None:
        """Make the round's rollout ready for the update; None when the policy is of no use any more."""
        try:
            prepared = self.algorithm.prepare(self.learner, self.rollout, self.round, self.floors)
        except PolicyError as error:
            self.fail(error)
            return None
        return self.ready(prepared)

    def ready(self, prepared: Prepared) -> Due:
        """Return the update that is due with the round's rollout."""
        self.prepared = prepared
        order = self.streams.generator("minibatch_order", round=self.round)
        return Due(self.learner, self.rollout, prepared, self.round, order)

    def updated(self, metrics: dict[str, float], started: float) -> dict[str, float]:
        """Move what follows an update and return the algorithm's group of metrics.

        Args:
            metrics: of the algorithm.
            started: when the update began, by ``time.perf_counter``.
        """
        learner, rollout = self.learner, self.rollout
        features = rollout.features[: rollout.num_steps]
        clipped = 0.0 if learner.obs_norm is None else float(learner.obs_norm.clipped_share(features))
        learner.refresh_observations(rollout.raw[: rollout.num_steps], rollout.valid)
        learner.carry = rollout.state
        if learner.dead_updates >= _DEAD_UPDATES:
            self.diverged = f"{_DEAD_UPDATES} updates in a row without a finite step"
        elif not bool(torch.isfinite(learner.flat.data).all()):
            self.diverged = "non-finite parameters after an update"
        metrics["lstm_h_rms"] = _rms(rollout.states[-1][0]) if rollout.state else math.nan
        metrics["obs_clip_frac"] = clipped
        metrics["update_seconds"] = time.perf_counter() - started
        return {f"{self.algorithm.name}/{name}": value for name, value in metrics.items()}

    def header(self) -> dict[str, Any]:
        """Return what a checkpoint keeps besides tensors."""
        return {"diverged": self.diverged, "detectors": self.detectors.state_dict()}

    def hash_into(self, digest: hashlib._Hash) -> None:
        """Feed learner and actions to ``digest``."""
        self.learner.hash_into(digest)
        digest.update(self.rollout.actions.cpu().numpy().tobytes())


class ControlledRun:
    """A run whose actions come from a control: same loop, no update.

    Args:
        plan: the arm.
        heads: action layout.
        num_steps: T.
        make: builds the control of a round for a part, once the environments have begun it.
        parts: as of ``TrainedRun``.
    """

    algorithm = None
    prepared = None

    def __init__(
        self,
        plan: RunPlan,
        heads: Heads,
        num_steps: int,
        make: Callable[[int, int], Control],
        parts: Sequence[Sequence[int]],
    ) -> None:
        self.plan, self._make = plan, make
        self.detectors = Detectors(0, None)
        self._parts = PartRollouts(parts, lambda groups: Rollout(num_steps, heads, None, groups=groups))
        self.diverged: str | None = None

    def begin(self, round_index: int, observation: Observation, masks: Masks, *, fresh: bool) -> None:  # noqa: ARG002 - same call for both kinds
        """Start a round with fresh controls."""
        self.round = round_index
        self._parts.begin(observation, masks, ())
        self._controls = [self._make(round_index, part) for part in range(len(self._parts.rows))]

    def choose(self, t: int, part: int = 0) -> None:
        """Do nothing: a control acts at once."""

    def chosen(self, t: int, part: int = 0) -> Tensor | None:
        """Return the actions of a part's control."""
        actions = self._controls[part].act(t)
        self._parts.rollouts[part].actions[t] = actions
        return actions

    def see(self, t: int, seen: Seen, part: int = 0) -> None:
        """Store what a step of a part led to."""
        self._parts.rollouts[part].see(t, seen)

    def pay(self, t: int, reward: Tensor, part: int = 0) -> None:
        """Store what a step of a part paid."""
        self._parts.rollouts[part].pay(t, reward)

    def end(self) -> None:
        """Join what the parts recorded in a round."""
        self.rollout = joined(self._parts.rollouts)

    def update(self) -> dict[str, float]:
        """Do nothing: controls do not learn."""
        return {}

    def header(self) -> dict[str, Any]:
        """Return what a checkpoint keeps besides tensors."""
        return {"diverged": self.diverged, "detectors": self.detectors.state_dict()}

    def hash_into(self, digest: hashlib._Hash) -> None:
        """Feed the actions to ``digest``."""
        digest.update(self.rollout.actions.cpu().numpy().tobytes())


Run = TrainedRun | ControlledRun


def _rms(x: Tensor) -> float:
    return float((x**2).mean().sqrt())
