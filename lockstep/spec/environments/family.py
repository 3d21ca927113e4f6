"""What the control plane must know of an environment family without loading it: the record each family fills.

The worker's half, which builds environments, has the same name in ``worker.envs.families``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.spec.arms import ResolvedArm
from lockstep.spec.sections import Env
from lockstep.spec.text.problems import Problem


@dataclass(frozen=True)
class Shown:
    """What live views show of a primary metric: an evaluation may be rare, training is recorded every round.

    Attributes:
        primary: the metric that is judged.
        training: its counterpart among the metrics of every round, or the nearest one.
        field: where the live comparison of arms holds its mean over the last episodes.
        label, unit: of that field, for people.
    """

    primary: str
    training: str
    field: str
    label: str
    unit: str


@dataclass(frozen=True)
class Score:
    """A score that the frozen evaluator gives an episode; metrics are its means over episodes.

    Attributes:
        name: name under ``eval/``; scored under sampled actions too, as ``eval/stochastic_<name>``.
        column: column of the episode row, of which the mean is taken; None where the evaluator computes it otherwise.
        unit, direction: for people; ``max`` or ``min``.
        lower, upper: bounds of attainable values (None: unbounded).
        reward_dependent: whether the arm's own training reward enters.
        description: a sentence's worth.
        training, field, label: as in ``Shown``.
    """

    name: str
    column: str | None
    unit: str
    direction: str
    lower: float | None
    upper: float | None
    reward_dependent: bool
    description: str
    training: str
    field: str
    label: str


@dataclass(frozen=True)
class Family:
    """One environment family, the half that needs no environment.

    Attributes:
        name: ``env.kind``.
        scores: what its evaluator measures; the first that no reward enters is the default primary metric.
        controls: policies that do not learn, by the name an arm gives them.
        reward_modes: built-in reward modes.
        default_reward: the mode where a spec has no reward section.
        heads: names of the action heads where they are known beforehand; else None, and any name is taken.
        eval_episodes: default of ``eval.episodes``.
        eval_max_steps: steps after which an episode of evaluation is cut where neither ``eval.max_steps`` nor the
            environment has a limit; None where episodes have a fixed length, so that ``eval.max_steps`` is refused.
        return_norm: default of ``return_norm``.
        keyed_by: purpose of the key of an episode's start, for the record of evaluation seeds.
        fill: lay the task's defaults into the plain data of a spec; raise ``InvalidSpecError`` on an unknown task.
        rules: what the ``env`` section and the arms must keep, beyond their schema.
        steps_per_round: steps that each environment takes in a round.
        memory_bytes: device memory that so many arms need.
        seconds: rough time of so many env steps on one CPU slot; None where nothing is known.
        dataset: the data set that a worker must have, or None.
        packs: whether one process may train several blocks side by side.
        on_host: whether simulators compute on the host, unless they are batched.
        shows_images: whether observations are images, as far as the ``env`` section tells.
        usual_preset: the preset whose published budget counts where a spec names none; "" for none.
        is_package: whether a worker announces the family (or the registered environment) because its package is
            optional.
    """

    name: str
    scores: tuple[Score, ...]
    controls: tuple[str, ...]
    reward_modes: tuple[str, ...]
    default_reward: str
    heads: tuple[str, ...] | None
    eval_episodes: int
    eval_max_steps: int | None
    return_norm: str
    keyed_by: str
    fill: Callable[[dict[str, Any]], None]
    rules: Callable[[Env, Sequence[ResolvedArm]], Iterator[Problem]]
    steps_per_round: Callable[[Env], int]
    memory_bytes: Callable[[Env, int], int]
    seconds: Callable[[Env, int], float | None]
    dataset: Callable[[Env], str | None]
    packs: bool
    is_package: bool
    usual_preset: str = ""
    on_host: bool = False
    shows_images: Callable[[Env], bool] = lambda _env: False

    @property
    def primary(self) -> str:
        """Return the metric that judges where a spec names none."""
        return f"eval/{next(score.name for score in self.scores if not score.reward_dependent)}"
