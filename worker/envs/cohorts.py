"""Environments that step out of phase: while the hosts of one cohort train, the loop acts for the next.

A cohort holds some of the environments of *every* run, so no run is nearer to the device than another, and
draws are keyed by the number of the environment in its run, so where a cohort begins changes nothing in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from worker.envs.protocol import Correction, EpisodeRecord, LockstepEnvs, Masks, Observation, StepResult


class Cohorts:
    """Several ``LockstepEnvs`` of the same runs as one; see the protocol.

    Args:
        cohorts: in the order of their environments.

    Raises:
        ValueError: episodes go on over round borders, so a cohort has state of its own there.
    """

    resets_each_round: bool = True

    def __init__(self, cohorts: Sequence[LockstepEnvs]) -> None:
        first = cohorts[0]
        if not first.resets_each_round:
            raise ValueError("environments that go on over rounds step as one cohort")
        self.cohorts: Sequence[LockstepEnvs] = tuple(cohorts)
        self.obs_spec, self.heads = first.obs_spec, first.heads
        self.steps_per_round = first.steps_per_round
        self._sizes = [cohort.num_envs for cohort in cohorts]
        self.num_envs = sum(self._sizes)
        self._starts = [stop - size for stop, size in zip(accumulate(self._sizes), self._sizes, strict=True)]

    def begin_round(self, round_index: int) -> list[tuple[Observation, Masks]]:
        """Start a round in every cohort."""
        views = [cohort.begin_round(round_index) for cohort in self.cohorts]
        return [
            (_joined_observation([view for view, _ in run]), _joined_masks([masks for _, masks in run]))
            for run in zip(*views, strict=True)
        ]

    def step(self, actions: Sequence[Tensor | None]) -> list[StepResult | None]:
        """Execute one action [E, H] per run in all cohorts and wait for all."""
        self.issue(actions)
        return self.collect()

    def issue(self, actions: Sequence[Tensor | None]) -> None:
        """Start a step in every cohort."""
        for cohort, start, size in zip(self.cohorts, self._starts, self._sizes, strict=True):
            rows = slice(start, start + size)
            cohort.issue([None if action is None else action[rows] for action in actions])

    def collect(self) -> list[StepResult | None]:
        """Wait for the step of every cohort."""
        found = zip(*[cohort.collect() for cohort in self.cohorts], strict=True)
        return [self._joined([result for result in results if result is not None]) for results in found]

    def reward_sums(self, run: int) -> dict[str, Tensor]:
        """Return the sums of the reward components of this round so far, {component: [E]}."""
        sums = [cohort.reward_sums(run) for cohort in self.cohorts]
        samples = {name: total for found in sums for name, total in found.items()}
        # a run that failed before a cohort's first step was paid nothing there
        return {
            name: torch.cat(
                [found.get(name, sample.new_zeros(size)) for found, size in zip(sums, self._sizes, strict=True)]
            )
            for name, sample in samples.items()
        }

    def pop_episodes(self, run: int) -> list[EpisodeRecord]:
        """Return and forget the finished episodes of a run."""
        return [episode for cohort in self.cohorts for episode in cohort.pop_episodes(run)]

    def pop_events(self, run: int) -> list[dict[str, Any]]:
        """Return and forget the events of a run, in the order of their steps."""
        events = [event for cohort in self.cohorts for event in cohort.pop_events(run)]
        return sorted(events, key=lambda event: int(event["step"]))

    def state_dict(self, run: int) -> dict[str, Any]:
        """Return what a resume needs: at a border episodes start, so it is the same for every cohort."""
        return self.cohorts[0].state_dict(run)

    def load_state_dict(self, run: int, state: Mapping[str, Any]) -> None:
        """Restore ``state_dict``; a mismatch raises ValueError."""
        for cohort in self.cohorts:
            cohort.load_state_dict(run, state)

    def _joined(self, results: Sequence[StepResult]) -> StepResult | None:
        if not results:
            return None
        finals = [result.final_observation or result.observation for result in results]
        ended = any(result.final_observation is not None for result in results)
        return StepResult(
            observation=_joined_observation([result.observation for result in results]),
            masks=_joined_masks([result.masks for result in results]),
            reward=torch.cat([result.reward for result in results]),
            terminated=torch.cat([result.terminated for result in results]),
            truncated=torch.cat([result.truncated for result in results]),
            valid=torch.cat([result.valid for result in results]),
            final_observation=_joined_observation(finals) if ended else None,
            corrections=[
                Correction(start + item.env, item.step, item.reward)
                for start, result in zip(self._starts, results, strict=True)
                for item in result.corrections
            ],
        )


def _joined_observation(parts: Sequence[Observation]) -> Observation:
    return Observation(torch.cat([part.features for part in parts]), torch.cat([part.ids for part in parts]))


def _joined_masks(parts: Sequence[Masks]) -> Masks:
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
