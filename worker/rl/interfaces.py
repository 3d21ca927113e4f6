"""What the learner reads of an environment, structurally: it imports none (see ``worker.envs.base``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from torch import Tensor


class HeadLike(Protocol):
    """One discrete action head."""

    @property
    def name(self) -> str:
        """Unique name."""

    @property
    def size(self) -> int:
        """Number of choices."""

    @property
    def parents(self) -> tuple[str, ...]:
        """Earlier heads whose choices select the row of this head's mask."""

    @property
    def relevant_ops(self) -> tuple[int, ...] | None:
        """Choices of head 0 for which this head counts; None = always."""

    @property
    def canonical(self) -> int:
        """Index stored when irrelevant."""


class ObservationLike(Protocol):
    """Observations of one run."""

    @property
    def features(self) -> Tensor:
        """[E, O] float32."""

    @property
    def ids(self) -> Tensor:
        """[E, I] int64."""


class CorrectionLike(Protocol):
    """A past transition that became terminal."""

    @property
    def env(self) -> int:
        """Environment index."""

    @property
    def step(self) -> int:
        """Step of this round."""

    @property
    def reward(self) -> float:
        """The reward that replaces the recorded one."""


class SeenLike(Protocol):
    """What one environment step of one run led to, but for what it pays."""

    @property
    def observation(self) -> ObservationLike:
        """What the policy sees next."""

    @property
    def masks(self) -> Mapping[str, Tensor]:
        """Legality for that observation."""

    @property
    def terminated(self) -> Tensor:
        """[E] bool."""

    @property
    def truncated(self) -> Tensor:
        """[E] bool."""

    @property
    def valid(self) -> Tensor:
        """[E] bool, False where the environment idles."""

    @property
    def final_observation(self) -> ObservationLike | None:
        """True next observation where an episode ended and was reset."""

    @property
    def corrections(self) -> Sequence[CorrectionLike]:
        """Past transitions to rewrite."""
