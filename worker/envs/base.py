"""What the lockstep loop asks of an environment, and the plain records they exchange.

One ``LockstepEnvs`` object holds environments of *all* runs of an assignment, so that each step can be
issued for every arm together (A0 B0 A1 B1 ..); its cohorts are such objects too and may hold fewer runs.
Axes: E environments of a run, O observation features, I id features, P bytes of all images, H action heads, C columns
of a row of actions: one for each head of choices, one for each component of a Gaussian head. Rows of actions are int64
where all heads are choices, else float32, with choices as whole numbers. Runs are indexed 0..K-1 in the order in which
they were given; nothing here may reduce over runs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from torch import Tensor

#: One legality tensor (bool) per head, shape [E, *sizes of the head's parents, outputs of the head]; that of a Gaussian
#: head is true everywhere.
Masks = Mapping[str, Tensor]


@dataclass(frozen=True)
class HeadSpec:
    """One action head; head 0 of a list decides which of the others are relevant.

    Attributes:
        name: head name, unique.
        size: number of choices; of a Gaussian head the number of its components.
        parents: earlier heads whose choices select the row of this head's mask.
        relevant_ops: choices of head 0 for which this head enters log-prob and entropy; None = always.
        canonical: index stored when the head is irrelevant.
        bounds: (low, high) of each component of a Gaussian head, between which a uniform control draws; None for
            a head of choices.
    """

    name: str
    size: int
    parents: tuple[str, ...] = ()
    relevant_ops: tuple[int, ...] | None = None
    canonical: int = 0
    bounds: tuple[tuple[float, float], ...] | None = None

    @property
    def is_gaussian(self) -> bool:
        """Whether actions are real numbers, drawn from a diagonal Gaussian."""
        return self.bounds is not None

    @property
    def columns(self) -> int:
        """Return how many columns of a row of actions the head has."""
        return self.size if self.is_gaussian else 1

    @property
    def outputs(self) -> int:
        """Return how many of the network's outputs it reads: logits, or mean and log-std of each component."""
        return 2 * self.size if self.is_gaussian else self.size


@dataclass(frozen=True)
class ObsSpec:
    """Layout of an observation.

    Attributes:
        num_features: O.
        continuous: [O] bool, features that running statistics may normalise.
        sentinel: [O] bool, features where -1 means "unknown" and is then exempt.
        num_ids: I, categorical features (-1 = none), each embedded.
        id_vocab: number of distinct ids (ids are 0..id_vocab-1).
        id_dim: embedding width.
        images: (channels, height, width) of each image.
    """

    num_features: int
    continuous: Tensor
    sentinel: Tensor
    num_ids: int = 0
    id_vocab: int = 0
    id_dim: int = 4
    images: tuple[tuple[int, int, int], ...] = ()


@dataclass
class Observation:
    """Observations of one run: features [E, O] float32, ids [E, I] int64 and the bytes of its images [E, P] uint8."""

    features: Tensor
    ids: Tensor
    pixels: Tensor | None = None


@dataclass(frozen=True)
class Correction:
    """A past transition that the environment rewrites: it became terminal with this reward.

    Later transitions of the same environment in this round become invalid.
    """

    env: int
    step: int
    reward: float


@dataclass(kw_only=True)
class Seen:
    """What one step of one run led to, all but what it pays.

    Attributes:
        observation: what the policy sees next (after an auto-reset, of the new episode).
        masks: legality for that observation.
        terminated: [E] bool, the task ended here: no bootstrap.
        truncated: [E] bool, cut by a limit: bootstrap V(final observation).
        valid: [E] bool, False where the environment had ended before and idles.
        final_observation: true next observation where an episode ended and was reset; None when
            it equals ``observation``.
        corrections: past transitions to rewrite.
    """

    observation: Observation
    masks: Masks
    terminated: Tensor
    truncated: Tensor
    valid: Tensor
    final_observation: Observation | None = None
    corrections: Sequence[Correction] = ()


@dataclass(kw_only=True)
class StepResult(Seen):
    """What one step of one run produced.

    Attributes:
        reward: [E] float32, in the run's own reward.
    """

    reward: Tensor


@dataclass
class EpisodeRecord:
    """A finished episode: ``values`` holds the fields of the environment's episode row."""

    env: int
    values: dict[str, Any] = field(default_factory=dict)


class LockstepEnvs(Protocol):
    """Environments of all runs of an assignment, stepped together."""

    obs_spec: ObsSpec
    heads: Sequence[HeadSpec]
    num_envs: int
    #: Steps of one round (an episode, or a rollout for continuing environments).
    steps_per_round: int
    #: True when a round begins with fresh episodes (recurrent state starts at zero).
    resets_each_round: bool
    #: What of a paired comparison holds only in part with these environments, by subject
    #: (``lockstep.spec.environments.gymnasium``).
    limits: Mapping[str, str]

    def begin_round(self, round_index: int) -> list[tuple[Observation, Masks]]:
        """Start a round: reset (or carry on) every environment of every run."""
        ...

    @property
    def cohorts(self) -> Sequence[Cohort]:
        """Return the parts that may be stepped out of phase, for every run in the order of its environments."""
        ...

    def rehearse(self) -> None:
        """Load what a step may need, on a device, before the first round; what is in the environments is lost."""
        ...

    def close(self) -> None:
        """Give back what the environments hold outside of this process's memory; they are not used any more."""
        ...

    def issue(self, actions: Sequence[Tensor | None]) -> None:
        """Start a step with one action [E, C] per run; None stands for a run that has ended."""
        ...

    def collect(self) -> list[Seen | None]:
        """Wait for the step that was issued and return what it led to for each run."""
        ...

    def pay(self) -> list[Tensor | None]:
        """Return what the step collected last pays each run, [E] float32; once, before the next is collected."""
        ...

    def step(self, actions: Sequence[Tensor | None]) -> list[StepResult | None]:
        """Issue a step, collect it and pay it."""
        ...

    def reward_sums(self, run: int) -> dict[str, Tensor]:
        """Sums of the reward components of this round so far, {component: [E]}."""
        ...

    def pop_episodes(self, run: int) -> list[EpisodeRecord]:
        """Return and forget the episodes of a run that finished since the last call."""
        ...

    def pop_events(self, run: int) -> list[dict[str, Any]]:
        """Return and forget the lifecycle events of a run ({"type", "env_id", "step", ...})."""
        ...

    def state_dict(self, run: int) -> dict[str, Any]:
        """What a resume at a round border needs: tensors and JSON scalars, nested dicts."""
        ...

    def load_state_dict(self, run: int, state: Mapping[str, Any]) -> None:
        """Restore ``state_dict``; a mismatch raises."""
        ...


@dataclass(frozen=True)
class Taken:
    """A step that blocks took in one call on the host: of all their R runs, one after the other, until the next one.

    Every environment has taken it, and masks are as they were.

    Attributes:
        features: [R, E, O] float32, what policies see next (after an auto-reset, of the new episode).
        rewards: [R, E] float32.
        terminated, truncated: [R, E] bool, as in ``Seen``.
        finals: of each run in which an episode was truncated the features [E, O] that the step led to, before a reset.
    """

    features: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    finals: dict[int, Tensor]


class Companion(ABC):
    """Environments of a block that can take a step in one call with those of other blocks."""

    @property
    @abstractmethod
    def kind(self) -> Hashable:
        """Return what blocks have in common that take their steps together."""

    @abstractmethod
    def take_with(self, others: Sequence[Companion]) -> None:
        """Take the step that was issued to these and to others of their kind; each hands it out when it is asked."""

    @property
    @abstractmethod
    def is_whole(self) -> bool:
        """Return whether ``take_all`` may be asked of these: nothing of a step is each run's own."""

    @abstractmethod
    def take_all(
        self, others: Sequence[Companion], actions: Tensor, alone: Callable[[int], AbstractContextManager[object]]
    ) -> Taken:
        """Take a step that was not issued, with these and others of their kind; nobody is asked for its part then.

        Args:
            others: after these.
            actions: [R, E, C] of all runs.
            alone: context of what is done for one of them (0: these); where it keeps an error, that part of what is
                returned is of no use.
        """


@dataclass(frozen=True)
class Cohort:
    """Environments that step together.

    Attributes:
        envs: some of the environments of some runs; these are counted from 0 there.
        runs: positions of these runs among all.
        part: which part of the environments of each of its runs it holds.
        groups: sizes of the groups of environments that a run is acted for one by one, whatever steps together;
            empty where it is acted for all at once.
    """

    envs: LockstepEnvs
    runs: tuple[int, ...]
    part: int = 0
    groups: tuple[int, ...] = ()


def whole_step(envs: LockstepEnvs, actions: Sequence[Tensor | None]) -> list[StepResult | None]:
    """Issue a step, collect it and pay it."""
    envs.issue(actions)
    seen, paid = envs.collect(), envs.pay()
    return [None if view is None else _paid(view, reward) for view, reward in zip(seen, paid, strict=True)]


def _paid(seen: Seen, reward: Tensor | None) -> StepResult:
    if reward is None:
        raise RuntimeError("a step that was taken is paid")
    return StepResult(**vars(seen), reward=reward)
