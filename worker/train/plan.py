"""What an assignment is asked to train, and what it hands back after every round. Plain records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch


class ConfigRefused(Exception):  # noqa: N818 - the configuration is refused, which is no error of ours
    """The configuration cannot be trained; raised before round 0.

    Attributes:
        field: dot path of the field.
        message: what is wrong, with the value.
        remedy: what to do.
    """

    def __init__(self, field: str, message: str, remedy: str) -> None:
        super().__init__(f"{field}: {message}; {remedy}")
        self.field, self.message, self.remedy = field, message, remedy


@dataclass(frozen=True)
class RunPlan:
    """One arm of a block.

    Attributes:
        run_id: identity of the run.
        arm: label (``group_id``).
        arm_index: position among all arms of the experiment.
        policy: ``ppo`` or a control's name.
        static_set: {slot: blueprint} of a static control, else None.
        config: resolved spec with this arm's overrides applied.
        diff: where the arm departs from the base, each ``path``, ``base`` and ``value``.
    """

    run_id: str
    arm: str
    arm_index: int
    policy: str
    static_set: Mapping[str, str] | None
    config: Mapping[str, Any]
    diff: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class BlockPlan:
    """The runs a trainer holds: all arms of a replicate, or one of them.

    Attributes:
        experiment_id: identity.
        block_id: identity.
        attempt: how often this block has been started, from 1.
        replicate: r.
        replicate_seed: root of every draw of the block.
        rounds: planned rounds.
        spec_hash: SHA-256 of the resolved spec.
        runs: what is held here.
        num_arms: arms of the experiment, held here or not.
        reward_modes: (mode, reward section, discount) of every arm of the experiment, held here or not, in
            their order, for cross-evaluation.
    """

    experiment_id: str
    block_id: str
    attempt: int
    replicate: int
    replicate_seed: int
    rounds: int
    spec_hash: str
    runs: tuple[RunPlan, ...]
    num_arms: int
    reward_modes: tuple[tuple[str, Mapping[str, Any], float], ...] = ()


class GivenUp(Exception):  # noqa: N818 - a state of affairs, not an error of ours
    """Nobody wants what an evaluation would give any more: the experiment was cancelled."""


@dataclass(frozen=True)
class Evaluated:
    """How far an evaluation is.

    Attributes:
        over: episodes that have ended.
        episodes: all that are played.
        steps: env steps taken of each episode that goes on.
        max_steps: after which an episode is cut.
    """

    over: int
    episodes: int
    steps: int
    max_steps: int

    @property
    def text(self) -> str:
        """The same in words."""
        limit = f"{self.steps:,} of at most {self.max_steps:,} steps"
        return f"{self.over} of {self.episodes} episodes are over after {limit}"


class ArmOutOfMemory(RuntimeError):  # noqa: N818 - says what happened
    """The device ran out of memory in the work of one run alone.

    Attributes:
        run_id: whose work it was.
    """

    def __init__(self, run_id: str, message: str) -> None:
        super().__init__(message)
        self.run_id = run_id


class owned:  # noqa: N801 - reads as a statement
    """Context of work that one run alone does: memory that runs out there is that run's own doing.

    Args:
        run: whose work it is.
        work: what it does, in words.
    """

    __slots__ = ("_run", "_work")

    def __init__(self, run: RunPlan, work: str) -> None:
        self._run, self._work = run, work

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, torch.OutOfMemoryError):
            told = f"the {self._work} of arm {self._run.arm} ran out of memory: {error}"
            raise ArmOutOfMemory(self._run.run_id, told) from error


@dataclass
class RunRound:
    """What one run did in one round.

    Attributes:
        run_id: identity.
        metrics: name to value of training.md 7.1; non-finite means "not available".
        episodes: training episodes that finished.
        eval_episodes: evaluation episodes, when this round was evaluated.
        events: lifecycle events and anomalies.
        digest: SHA-256 over parameters, optimiser, normalisers, actions and deterministic metrics.
        diverged: cause, or None; a diverged run appears in no later round.
        env_steps: env steps consumed since round 0.
        batch_position: position of the run in the order of issue.
    """

    run_id: str
    metrics: dict[str, float]
    episodes: list[dict[str, Any]]
    eval_episodes: list[dict[str, Any]]
    events: list[dict[str, Any]]
    digest: str
    diverged: str | None
    env_steps: int
    batch_position: int


@dataclass
class RoundRecord:
    """One finished round of the runs held here.

    Attributes:
        round: index.
        runs: in the order of the plan.
        update_order: arm indices in the order in which their policies were updated.
        seconds: wall time of the round.
        rollout_seconds: of that, acting and environments.
        update_seconds: of that, updates.
        eval_seconds: of that, evaluation.
    """

    round: int
    runs: list[RunRound]
    update_order: list[int]
    seconds: float
    rollout_seconds: float
    update_seconds: float
    eval_seconds: float
