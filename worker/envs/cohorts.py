"""Environments that step out of phase: while the hosts of one cohort train, the loop acts for the next.

A cohort holds some of the environments of some runs; the runs are divided alike and their cohorts alternate, so
no run is nearer to the device than another. Draws are keyed by the number of the environment in its run, so where
a cohort begins changes nothing in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from worker.envs.base import Cohort, Correction, EpisodeRecord, Masks, Observation, Seen, StepResult, whole_step


class Cohorts:
    """Several ``LockstepEnvs`` as one; see the protocol.

    Args:
        cohorts: for every run in the order of its environments; all runs divided alike.

    Raises:
        ValueError: episodes go on over round borders, so a cohort has state of its own there.
    """

    resets_each_round: bool = True

    def __init__(self, cohorts: Sequence[Cohort]) -> None:
        first = cohorts[0].envs
        if not first.resets_each_round:
            raise ValueError("environments that go on over rounds step as one cohort")
        self.cohorts: Sequence[Cohort] = tuple(cohorts)
        self.obs_spec, self.heads = first.obs_spec, first.heads
        self.steps_per_round, self.limits = first.steps_per_round, first.limits
        positions = [run for cohort in cohorts for run in cohort.runs]
        #: Of every run: its cohorts, each with the index of the run in it.
        self._parts = [
            [(cohort.envs, cohort.runs.index(run)) for cohort in cohorts if run in cohort.runs]
            for run in range(max(positions) + 1)
        ]
        self._sizes = [envs.num_envs for envs, _ in self._parts[0]]
        self._starts = [stop - size for stop, size in zip(accumulate(self._sizes), self._sizes, strict=True)]
        self.num_envs = sum(self._sizes)

    def begin_round(self, round_index: int) -> list[tuple[Observation, Masks]]:
        """Start a round in every cohort."""
        begun = [cohort.envs.begin_round(round_index) for cohort in self.cohorts]
        views = self._by_run(begun)
        return [
            (_joined_observation([view for view, _ in run]), _joined_masks([masks for _, masks in run]))
            for run in views
        ]

    def rehearse(self) -> None:
        """Rehearse in the first cohort of each run: what is loaded serves its others."""
        for parts in self._parts:
            parts[0][0].rehearse()

    def close(self) -> None:
        """Close every cohort."""
        for cohort in self.cohorts:
            cohort.envs.close()

    def step(self, actions: Sequence[Tensor | None]) -> list[StepResult | None]:
        """Execute one action [E, H] per run in all cohorts and wait for all."""
        return whole_step(self, actions)

    def issue(self, actions: Sequence[Tensor | None]) -> None:
        """Start a step in every cohort."""
        for cohort in self.cohorts:
            start, size = self._starts[cohort.part], self._sizes[cohort.part]
            taken = [actions[run] for run in cohort.runs]
            cohort.envs.issue([None if action is None else action[start : start + size] for action in taken])

    def collect(self) -> list[Seen | None]:
        """Wait for the step of every cohort."""
        return [self._joined(found) for found in self._by_run([cohort.envs.collect() for cohort in self.cohorts])]

    def pay(self) -> list[Tensor | None]:
        """Return what the step of every cohort pays."""
        paid = self._by_run([cohort.envs.pay() for cohort in self.cohorts])
        return [None if parts[0] is None else torch.cat(parts) for parts in paid]

    def reward_sums(self, run: int) -> dict[str, Tensor]:
        """Return the sums of the reward components of this round so far, {component: [E]}."""
        sums = [envs.reward_sums(own) for envs, own in self._parts[run]]
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
        return [episode for envs, own in self._parts[run] for episode in envs.pop_episodes(own)]

    def pop_events(self, run: int) -> list[dict[str, Any]]:
        """Return and forget the events of a run, in the order of their steps, and of environments within one."""
        events = [event for envs, own in self._parts[run] for event in envs.pop_events(own)]
        return sorted(events, key=lambda event: (int(event["step"]), int(event["env_id"])))

    def state_dict(self, run: int) -> dict[str, Any]:
        """Return what a resume needs: at a border episodes start, so it is the same for every cohort of a run."""
        envs, own = self._parts[run][0]
        return envs.state_dict(own)

    def load_state_dict(self, run: int, state: Mapping[str, Any]) -> None:
        """Restore ``state_dict``; a mismatch raises ValueError."""
        for envs, own in self._parts[run]:
            envs.load_state_dict(own, state)

    def _by_run(self, by_cohort: Sequence[Sequence[Any]]) -> list[list[Any]]:
        """Return what every cohort gave for each of its runs, as one list for each run."""
        parts: list[list[Any]] = [[] for _ in self._parts]
        for cohort, values in zip(self.cohorts, by_cohort, strict=True):
            for run, value in zip(cohort.runs, values, strict=True):
                parts[run].append(value)
        return parts

    def _joined(self, parts: Sequence[Seen | None]) -> Seen | None:
        seen = [part for part in parts if part is not None]
        if not seen:  # a run takes part with all its cohorts or with none
            return None
        finals = [part.final_observation or part.observation for part in seen]
        ended = any(part.final_observation is not None for part in seen)
        return Seen(
            observation=_joined_observation([part.observation for part in seen]),
            masks=_joined_masks([part.masks for part in seen]),
            terminated=torch.cat([part.terminated for part in seen]),
            truncated=torch.cat([part.truncated for part in seen]),
            valid=torch.cat([part.valid for part in seen]),
            final_observation=_joined_observation(finals) if ended else None,
            corrections=[
                Correction(start + item.env, item.step, item.reward)
                for start, part in zip(self._starts, seen, strict=True)
                for item in part.corrections
            ],
        )


def _joined_observation(parts: Sequence[Observation]) -> Observation:
    return Observation(torch.cat([part.features for part in parts]), torch.cat([part.ids for part in parts]))


def _joined_masks(parts: Sequence[Masks]) -> Masks:
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
