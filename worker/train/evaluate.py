"""Frozen-policy evaluation on held-out streams, cross-evaluation and the ungrafted twin (training.md 4).

Weights, normalisers and ledgers of training are only read; every stream carries the prefix ``eval/``,
so training is bit for bit the same with evaluation on and off. All runs of an assignment are evaluated
together, step by step, out of phase where training is. Axes: M evaluation episode, H heads.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lockstep.spec.environments.families import FAMILIES
from worker.envs.base import Cohort, EpisodeRecord, LockstepEnvs, Masks, Observation
from worker.envs.family import Control
from worker.rl.cuda import autocast
from worker.rl.heads import choose
from worker.rl.learner import Learner, Streams, noise_of
from worker.train.cohort_runs import take_steps
from worker.train.environments import cross_rewards, family_of, make_control, make_environments
from worker.train.plan import BlockPlan, Evaluated, RunPlan, owned
from worker.train.runs import Run, TrainedRun

#: How often the log is told how far an evaluation is.
_TELL_SECONDS = 20.0
#: Whoever follows the run is told of an evaluation that takes longer than this.
_LONG_SECONDS = 2.0


class FrozenPolicy:
    """A learner that only acts, greedily or by sampling; no floors, no updates.

    Args:
        learner: read, never changed.
        streams: keys; sampling uses ``eval/action_noise`` by episode. None = greedy.
        num_envs: M.
    """

    def __init__(self, learner: Learner, num_envs: int, streams: Streams | None = None) -> None:
        self.learner = learner
        self.state = learner.net.initial_state(num_envs)
        self._noise: list[np.random.Generator] | None = None
        if streams is not None:
            self._noise = [streams.generator("eval/action_noise", episode=m) for m in range(num_envs)]

    @torch.no_grad()
    def act(self, observation: Observation, masks: Masks) -> Tensor:
        """Return actions [M, H]."""
        learner = self.learner
        features = observation.features if learner.obs_norm is None else learner.obs_norm(observation.features)
        with autocast(features.device, learner.cfg.precision):
            logits, self.state = learner.net.step(features, observation.ids, self.state, observation.pixels)
        actions, _ = choose(learner.heads, logits, masks, self._drawn(features.device))
        return actions

    def _drawn(self, device: torch.device) -> Tensor | None:
        if self._noise is None:
            return None
        heads = self.learner.heads
        rows = [noise_of(draw, (heads.num_columns,), heads.normal_columns) for draw in self._noise]
        return torch.from_numpy(np.stack(rows)).to(device)


class _ControlActor:
    """A control behind the call of ``FrozenPolicy``; it looks at the environments itself."""

    def __init__(self, control: Control) -> None:
        self._control, self._step = control, 0

    def act(self, observation: Observation, masks: Masks) -> Tensor:  # noqa: ARG002 - one call for both
        """Return actions [M, H]."""
        actions = self._control.act(self._step)
        self._step += 1
        return actions


class _OwnedActor:
    """A policy whose memory is its run's own."""

    def __init__(self, plan: RunPlan, policy: FrozenPolicy) -> None:
        self._plan, self._policy = plan, policy

    def act(self, observation: Observation, masks: Masks) -> Tensor:
        """Return actions [M, H]."""
        with owned(self._plan, "evaluation"):
            return self._policy.act(observation, masks)


@dataclass
class Evaluation:
    """Result of one run: metrics by full name, and one row per episode."""

    metrics: dict[str, float] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)


class Evaluator:
    """Evaluates the runs of an assignment on the same episodes every time.

    Args:
        plan: block.
        device: where policies live.
        data_dir: where data sets lie.
        training: environments of the same runs, which rest while an evaluation steps.
        alive: called after every step and everything else that may take long; with how far an evaluation is, where
            that takes long.
    """

    def __init__(
        self,
        plan: BlockPlan,
        device: torch.device,
        data_dir: Path | None,
        training: LockstepEnvs,
        alive: Callable[[Evaluated | None], None] = lambda _: None,
    ) -> None:
        self.plan, self.device, self.data_dir, self.training = plan, device, data_dir, training
        self._tell, self._alive = alive, partial(alive, None)
        self.config = plan.runs[0].config["eval"]
        self.family = family_of(plan)
        self.columns = {
            score.name: score.column
            for score in FAMILIES[plan.runs[0].config["env"]["kind"]].scores
            if score.column is not None
        }
        self.num_envs = int(self.config["episodes"])
        self.xeval = cross_rewards(plan) if self.config["xeval"] else {}
        self._envs: LockstepEnvs | None = None
        #: Mean test accuracy of the ungrafted host, which depends on no policy: it is played once.
        self._twin: float | None = None

    def is_due(self, round_index: int) -> bool:
        """Whether the policies after this round are evaluated."""
        return (round_index + 1) % self.config["every_rounds"] == 0 or round_index + 1 == self.plan.rounds

    def evaluate(self, runs: Sequence[Run], round_index: int) -> dict[str, Evaluation]:
        """Return the evaluation of every live run by run id; ``runs`` in order of issue."""
        modes = ("greedy", "sample") if self.config["mode"] == "both" else (self.config["mode"],)
        is_last = round_index + 1 == self.plan.rounds
        results: dict[str, Evaluation] = {run.plan.run_id: Evaluation() for run in runs if run.diverged is None}
        if not results:
            return results
        began, twin = time.monotonic(), self._due_twin()
        players = [len(results) + (twin is not None), *(len(results) for _ in modes[1:])]

        def reached(position: int, here: Evaluated) -> None:
            before = sum(players[:position]) * self.num_envs
            of_all = replace(here, over=before + here.over, episodes=sum(players) * self.num_envs)
            self._tell(of_all if time.monotonic() - began >= _LONG_SECONDS else None)

        for position, mode in enumerate(modes):
            prefix = "eval/" if position == 0 else "eval/stochastic_"
            episodes = self._play(runs, mode, twin if position == 0 else None, partial(reached, position))
            for run_id, result in results.items():
                self._add(result, episodes[run_id], prefix, (mode, round_index, is_last))
        if not self.family.keeps_evaluation:
            self.close()
        return results

    def close(self) -> None:
        """Close the environments; the next evaluation makes new ones."""
        if self._envs is not None:
            self._envs.close()
            self._envs = None

    def _add(
        self,
        result: Evaluation,
        episodes: Sequence[EpisodeRecord],
        prefix: str,
        when: tuple[str, int, bool],
    ) -> None:
        mode, round_index, is_last = when
        values = [e.values for e in episodes]
        told = {name: column for name, column in self.columns.items() if any(column in v for v in values)}
        for name, column in told.items():
            result.metrics[f"{prefix}{name}"] = mean([v.get(column) for v in values])
        result.metrics[f"{prefix}episodes"] = float(len(values))
        if self._twin is not None and prefix == "eval/":
            result.metrics["eval/gain_over_twin"] = result.metrics["eval/accuracy"] - self._twin
        scored = is_last and prefix == "eval/"
        for name in self.xeval if scored else ():
            result.metrics[f"xeval/return_{name}"] = mean([v["xeval"][name] for v in values])
        for row in values:
            kept = dict(row) if scored else {k: v for k, v in row.items() if k != "xeval"}
            result.rows.append({**kept, "round": round_index, "mode": mode, "split": self.family.split})

    def _due_twin(self) -> RunPlan | None:
        """Return the ungrafted twin as a further run on the same streams, until it has been played."""
        if self.family.twin is None or not self.config["twin"] or self._twin is not None:
            return None
        return replace(self.plan.runs[0], run_id="twin", arm="twin", policy=self.family.twin, static_set=None)

    def _play(
        self, runs: Sequence[Run], mode: str, twin: RunPlan | None, reached: Callable[[Evaluated], None]
    ) -> dict[str, list[EpisodeRecord]]:
        """Return the episodes of every live run by run id, all played together, with the twin where it is due."""
        plans = [*(run.plan for run in runs), *([] if twin is None else [twin])]
        if self._envs is None:
            self._envs = self._make(plans)
        envs = self._envs

        def actor(position: int) -> Any:
            run = runs[position] if position < len(runs) else None
            if run is not None and run.diverged is not None:
                return None
            if isinstance(run, TrainedRun):
                policy = FrozenPolicy(run.learner, self.num_envs, run.streams if mode == "sample" else None)
                return _OwnedActor(run.plan, policy)
            cohort = next(cohort for cohort in envs.cohorts if position in cohort.runs)
            return _ControlActor(make_control(self.plan, plans[position], cohort.envs, cohort.runs.index(position), 0))

        left_out = {run.plan.run_id for run in runs if run.diverged is not None}
        episodes: dict[str, list[EpisodeRecord]] = {}
        for plan, found in zip(plans, play(envs, actor, len(plans), reached), strict=True):
            if plan.run_id in left_out:
                continue
            if len(found) != self.num_envs:
                raise RuntimeError(f"evaluation of {plan.arm} gave {len(found)} episodes, not {self.num_envs}")
            episodes[plan.run_id] = found
        if twin is not None:
            self._twin = mean([float(episode.values["test_accuracy"]) for episode in episodes[twin.run_id]])
            self.close()  # the next environments are without it
        return episodes

    def _make(self, plans: Sequence[RunPlan]) -> LockstepEnvs:
        return make_environments(
            self.plan,
            self.device,
            phase="eval",
            num_envs=self.num_envs,
            data_dir=self.data_dir,
            runs=plans,
            xeval=self.xeval,
            alive=self._alive,
            beside=self.training,
        )


class _Players:
    """The runs of a cohort, of which each plays until all of its episodes are over.

    Args:
        cohort: has begun its episodes.
        views: what each run of it sees.
        actors: of each run; None leaves it out.
    """

    def __init__(self, cohort: Cohort, views: Sequence[tuple[Observation, Masks]], actors: Sequence[Any]) -> None:
        self._envs, self._views, self._actors = cohort.envs, list(views), actors
        #: [M] of each run; of one that is left out all have ended.
        self._over = [torch.full((cohort.envs.num_envs,), actor is None) for actor in actors]
        self._is_stepping, self._is_owed = False, False

    @property
    def counted(self) -> list[Tensor]:
        """Return which episodes have ended, [M] of each run that is not left out."""
        return [over for over, actor in zip(self._over, self._actors, strict=True) if actor is not None]

    def act(self, _t: int) -> None:
        """Act for whoever plays on and start the step, if anybody does."""
        acting = [
            None if over.all() else actor.act(*view)
            for over, actor, view in zip(self._over, self._actors, self._views, strict=True)
        ]
        self._is_stepping = any(actions is not None for actions in acting)
        if self._is_stepping:
            self._envs.issue(acting)

    def collect(self, _t: int) -> None:
        """Wait for the step and look at it."""
        self._is_owed = self._is_stepping
        for i, seen in enumerate(self._envs.collect() if self._is_stepping else ()):
            if seen is not None:
                self._views[i] = (seen.observation, seen.masks)
                self._over[i] |= (seen.terminated | seen.truncated).cpu()

    def pay(self, _t: int) -> None:
        """Have the step paid: rows of episodes tell of it."""
        if self._is_owed:
            self._envs.pay()


def play(
    envs: LockstepEnvs,
    make_actor: Callable[[int], Any],
    num_runs: int,
    reached: Callable[[Evaluated], None] = lambda _: None,
) -> list[list[EpisodeRecord]]:
    """Play one episode in every environment of every run, all runs step by step, cohorts out of phase.

    Args:
        envs: evaluation environments; a run stands in one cohort.
        make_actor: run position to an object with ``act(observation, masks)``, or None to leave it out;
            called once the episodes have begun.
        num_runs: runs in ``envs``.
        reached: called after every step with how far it is.

    How far a long evaluation is goes to the log.

    Returns:
        The episodes per run, in order of the environment: one of each that was played.
    """
    views: list[tuple[Observation, Masks]] = envs.begin_round(0)
    actors = [make_actor(i) for i in range(num_runs)]
    players = [_Players(c, [views[i] for i in c.runs], [actors[i] for i in c.runs]) for c in envs.cohorts]
    told = time.monotonic()

    def taken(step: int) -> bool:
        nonlocal told
        here = _how_far([over for one in players for over in one.counted], step + 1, envs)
        reached(here)
        if time.monotonic() - told >= _TELL_SECONDS:
            told = time.monotonic()
            print(f"evaluation: {here.text}", flush=True)  # noqa: T201 - standard output is the log
        return here.over < here.episodes

    take_steps(players, envs.steps_per_round, taken)
    episodes = [sorted(envs.pop_episodes(i), key=lambda e: e.env) for i in range(num_runs)]
    for i in range(num_runs):
        envs.pop_events(i)
    return episodes


def _how_far(over: Sequence[Tensor], steps: int, envs: LockstepEnvs) -> Evaluated:
    """Return how far the runs are that are evaluated, by which episodes [M] of each have ended."""
    ended = sum(int(ends.sum()) for ends in over)
    return Evaluated(ended, len(over) * envs.num_envs, steps, envs.steps_per_round)


def mean(values: Sequence[float | None]) -> float:
    """Return the mean of the given values; NaN when there is none or one is missing."""
    if not values or any(v is None for v in values):
        return math.nan
    return math.fsum(float(v) for v in values if v is not None) / len(values)
