"""Environments that live on the host, for policies that live on a device: each step takes one copy either way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from worker.envs.base import (
    Cohort,
    EpisodeRecord,
    HeadSpec,
    LockstepEnvs,
    Masks,
    Observation,
    ObsSpec,
    Seen,
    StepResult,
    whole_step,
)
from worker.envs.upload import uploaded


class Placed:
    """The environments of ``host``, whose observations and rewards come on a device.

    Args:
        host: environments on the host that step in one cohort and whose masks never change.
        device: where policies look and learn.

    Attributes:
        host: as above; policies that live on the host need nothing else.
    """

    def __init__(self, host: LockstepEnvs, device: torch.device) -> None:
        self.host, self._device = host, device
        self.obs_spec: ObsSpec = host.obs_spec
        self.heads: Sequence[HeadSpec] = host.heads
        self.num_envs, self.steps_per_round = host.num_envs, host.steps_per_round
        self.resets_each_round, self.limits = host.resets_each_round, host.limits
        self._masks: Masks | None = None

    @property
    def cohorts(self) -> tuple[Cohort, ...]:
        """Return one cohort: these environments step together."""
        return tuple(Cohort(self, cohort.runs, cohort.part, cohort.groups) for cohort in self.host.cohorts)

    def begin_round(self, round_index: int) -> list[tuple[Observation, Masks]]:
        """Start a round on the host."""
        return [
            (self._observation(view, [])[0], self._placed_masks(masks))
            for view, masks in self.host.begin_round(round_index)
        ]

    def rehearse(self) -> None:
        """Rehearse on the host."""
        self.host.rehearse()

    def close(self) -> None:
        """Close what the host holds."""
        self.host.close()

    def issue(self, actions: Sequence[Tensor | None]) -> None:
        """Bring the actions of a step to the host."""
        self.host.issue([None if action is None else action.cpu() for action in actions])

    def collect(self) -> list[Seen | None]:
        """Execute the step that was issued."""
        return [None if seen is None else self._seen(seen) for seen in self.host.collect()]

    def pay(self) -> list[Tensor | None]:
        """Return the rewards of the step that was collected."""
        return [None if reward is None else reward.to(self._device) for reward in self.host.pay()]

    def step(self, actions: Sequence[Tensor | None]) -> list[StepResult | None]:
        """Issue a step, collect it and pay it."""
        return whole_step(self, actions)

    def reward_sums(self, run: int) -> dict[str, Tensor]:
        """Return the sums of the reward components of this round, on the host."""
        return self.host.reward_sums(run)

    def pop_episodes(self, run: int) -> list[EpisodeRecord]:
        """Return and forget the finished episodes."""
        return self.host.pop_episodes(run)

    def pop_events(self, run: int) -> list[dict[str, Any]]:
        """Return and forget the lifecycle events."""
        return self.host.pop_events(run)

    def state_dict(self, run: int) -> dict[str, Any]:
        """Return what a resume needs, on the host."""
        return self.host.state_dict(run)

    def load_state_dict(self, run: int, state: Mapping[str, Any]) -> None:
        """Restore ``state_dict``."""
        self.host.load_state_dict(run, state)

    def _seen(self, seen: Seen) -> Seen:
        flags = [seen.terminated, seen.truncated, seen.valid]
        observation, (terminated, truncated, valid) = self._observation(seen.observation, flags)
        final = None if seen.final_observation is None else self._observation(seen.final_observation, [])[0]
        return Seen(
            observation=observation,
            masks=self._placed_masks(seen.masks),
            terminated=terminated,
            truncated=truncated,
            valid=valid,
            final_observation=final,
            corrections=seen.corrections,
        )

    def _observation(self, view: Observation, beside: Sequence[Tensor]) -> tuple[Observation, list[Tensor]]:
        """Return an observation on the device, and the tensors that travelled beside it."""
        images = [] if view.pixels is None else [view.pixels]
        features, ids, *rest = uploaded([view.features, view.ids, *images, *beside], self._device)
        pixels = rest.pop(0) if images else None
        return Observation(features, ids, pixels), rest

    def _placed_masks(self, masks: Masks) -> Masks:
        if self._masks is None:
            self._masks = {name: mask.to(self._device) for name, mask in masks.items()}
        return self._masks
