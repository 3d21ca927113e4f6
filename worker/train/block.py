"""The lockstep loop: all runs of an assignment step together, then update in a random arm order.

Every env step is issued for every arm (A0 B0 A1 B1 ..); one round of all arms ends before the next begins
(``worker.train.rounds``, where several blocks are trained side by side too).
Where a device trains the hosts, the environments of every arm form a cohort of their own (those of an arm alone two),
and the hosts of all others train while the loop judges and acts for one. A training process (``worker.child``) asks for
one round after another; whoever trains one block alone iterates over ``BlockTrainer.rounds``. Barriers, leases,
relaying and checkpoints in time live with the caller. Nothing reduces over runs, and what one run does never reaches
another.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from lockstep.keys import derive, generator
from worker import checkpoint
from worker.checkpoint import CheckpointInfo
from worker.envs.base import Cohort, LockstepEnvs
from worker.envs.family import Control
from worker.numerics import keep_freed_memory
from worker.rl.algorithms import ALGORITHMS
from worker.rl.config import LearnerConfig
from worker.rl.heads import Heads
from worker.rl.learner import Learner, Streams, build_learner
from worker.train.calibrate import calibrate
from worker.train.environments import (
    family_of,
    home_of,
    make_control,
    make_environments,
    obs_layout,
    ordered_runs,
    refuse_taken_names,
)
from worker.train.evaluate import Evaluation, Evaluator
from worker.train.events import evaluation_events, run_started, update_completed
from worker.train.metrics import (
    episode_rows,
    gradient_metrics,
    kept_metrics,
    policy_metrics,
    reward_metrics,
    std_metrics,
    system_metrics,
    train_metrics,
)
from worker.train.plan import (
    ArmOutOfMemory,
    BlockPlan,
    ConfigRefused,
    Evaluated,
    GivenUp,
    RoundRecord,
    RunPlan,
    RunRound,
    owned,
)
from worker.train.policies import restore, save_policy, snapshot
from worker.train.rounds import Done, Rounds
from worker.train.runs import ControlledRun, Run, TrainedRun

__all__ = [
    "ArmOutOfMemory",
    "BlockPlan",
    "BlockTrainer",
    "CheckpointInfo",
    "ConfigRefused",
    "GivenUp",
    "RoundRecord",
    "RunPlan",
    "RunRound",
    "update_order",
]


def update_order(seed: int, round_index: int, num_arms: int) -> list[int]:
    """Return the arm indices in the order of their updates (stream ``update_order``)."""
    return [int(i) for i in generator(seed, "update_order", round=round_index).permutation(num_arms)]


class BlockTrainer:
    """Trains the runs of ``plan`` on one device.

    Args:
        plan: what to train.
        device: where policies live and environments compute.
        data_dir: where data sets lie.
        progress: called with (round, step, how far an evaluation is if one takes long) after every env step.
        unwanted: asked after every step of an evaluation whether nobody wants its result any more.
        entered: called when work of this block begins; other blocks may be trained in between.
        stacked: whether runs are acted for and updated together where they can be; no number depends on it.
        at_home: whether small policies of environments on the host live there too (``home_of``), not on the device.

    Raises:
        ConfigRefused: a setting cannot be trained.

    Attributes:
        device: where policies live.
    """

    def __init__(
        self,
        plan: BlockPlan,
        device: torch.device,
        *,
        data_dir: Path | None = None,
        progress: Callable[[int, int, Evaluated | None], None] | None = None,
        unwanted: Callable[[], bool] = lambda: False,
        entered: Callable[[], None] = lambda: None,
        stacked: bool = True,
        at_home: bool = False,
    ) -> None:
        self._rounds = Rounds(stacked=stacked)
        self.plan, self.device, self.data_dir = plan, device, data_dir
        self._progress = progress or (lambda _round, _step, _evaluated: None)
        self._unwanted = unwanted
        self.enter = entered
        self._at = 0, 0
        config = plan.runs[0].config
        self.num_envs = int(config["env"]["n_envs"])
        self.family = family_of(plan)
        refuse_taken_names(plan)
        self.envs: LockstepEnvs = make_environments(
            plan, device, phase="train", num_envs=self.num_envs, data_dir=data_dir, overlaps=True, alive=self.alive
        )
        home = home_of(plan.runs, self.envs) if at_home else None
        if home is not None:
            self.envs, self.device = home, torch.device("cpu")
            keep_freed_memory()
        self._issued = [plan.runs[index] for index in ordered_runs(plan)]
        with contextlib.ExitStack() as unfinished:
            unfinished.callback(self.envs.close)
            alike: dict[Hashable, Learner] = {}
            self.runs: list[Run] = [self._build_run(run, i, alike) for i, run in enumerate(self._issued)]
            unfinished.pop_all()
        self.evaluator = Evaluator(plan, self.device, data_dir, self.envs, self._evaluating)
        #: Replaceable, to show that the order of updates changes nothing.
        self.update_order: Callable[[int], Sequence[int]] = lambda r: update_order(
            plan.replicate_seed, r, plan.num_arms
        )

    def close(self) -> None:
        """Close all environments; nothing is trained any more."""
        self.evaluator.close()
        self.envs.close()

    def alive(self) -> None:
        """Say that the work goes on where it was."""
        self._progress(*self._at, None)

    def _evaluating(self, how_far: Evaluated | None = None) -> None:
        """Say that an evaluation goes on, and how far it is.

        Raises:
            GivenUp: nobody wants its result.
        """
        if self._unwanted():
            raise GivenUp
        self._progress(*self._at, how_far)

    def reached(self, round_index: int, step: int) -> None:
        """Say that a step of a round has been taken."""
        self._at = round_index, step
        self._progress(round_index, step, None)

    def warm_up(self, *, rehearse: bool = True) -> dict[str, Any]:
        """Touch every shape once and return the record of it, with the arms that are acted for together.

        The policies look without acting; the environments rehearse what a device has to load and take a step (two
        on CUDA) in which no policy acts. Streams are keyed, so nothing of this reaches round 0.

        Args:
            rehearse: whether to rehearse; without, what earlier blocks compiled is loaded when it is first needed.
        """
        began = time.perf_counter()
        if self.envs.resets_each_round:
            steps = self._touch(self.envs, rehearse=rehearse)
        else:
            scratch = make_environments(
                self.plan,
                self.device,
                phase="train",
                num_envs=self.num_envs,
                seed=derive(self.plan.replicate_seed, "warmup"),
                data_dir=self.data_dir,
                alive=self.alive,
            )
            with contextlib.closing(scratch):
                steps = self._touch(scratch, rehearse=rehearse)
        return {
            "seconds": time.perf_counter() - began,
            "steps": float(steps),
            "compiled": False,
            "rehearsed": rehearse,
            "stacks": [[run.plan.arm for run in group] for group in self._rounds.groups([self])],
        }

    def _touch(self, envs: LockstepEnvs, *, rehearse: bool) -> int:
        """Look and step once in every environment; return the number of steps."""
        if rehearse:
            envs.rehearse()
        self.alive()
        views = envs.begin_round(0)
        heads = Heads.build(list(envs.heads), self.device)
        idle = heads.canonical.expand(self.num_envs, -1)
        for run, (view, _) in zip(self.runs, views, strict=True):
            if isinstance(run, TrainedRun):
                with torch.no_grad():
                    run.learner.net.step(view.features, view.ids, run.learner.carry, view.pixels)
        steps = 1 if self.device.type == "cpu" else min(2, envs.steps_per_round)
        for _ in range(steps):
            envs.step([idle for _ in self.runs])
        for position in range(len(self.runs)):
            envs.pop_episodes(position)
            envs.pop_events(position)
        return steps

    def rounds(self, start: int) -> Iterator[RoundRecord]:
        """Yield the record of every round from ``start`` on; all runs have finished it when it comes."""
        self.prepare(start)
        for round_index in range(start, self.plan.rounds):
            if all(run.diverged is not None for run in self.runs):
                return
            [outcome] = self._rounds.train([(self, round_index)])
            if isinstance(outcome, Exception):
                raise outcome
            yield outcome

    def prepare(self, start: int) -> None:
        """Calibrate what frozen statistics need before round 0; ``start`` is the first round that is trained."""
        if start == 0:
            self._calibrate()

    def save_checkpoint(self, root: Path, next_round: int) -> CheckpointInfo:
        """Write all runs held here, at the border before ``next_round``."""
        snapshots = {
            run.plan.arm: snapshot(self.plan, run, self.envs.state_dict(i), next_round)
            for i, run in enumerate(self.runs)
        }
        keep = int(self.plan.runs[0].config["checkpoint"]["keep"])
        return checkpoint.save(root, next_round, snapshots, keep=keep)

    def load_checkpoint(self, path_or_root: Path) -> int:
        """Restore the newest valid checkpoint and return the round to go on with.

        Raises:
            NoCheckpoint: none is valid.
            CheckpointRefused: it is another run's, or the spec changed.
        """
        info, snapshots = checkpoint.load(path_or_root)
        missing = sorted({run.plan.arm for run in self.runs} - set(snapshots))
        if missing:
            raise checkpoint.CheckpointRefused(f"{info.path.name} holds {sorted(snapshots)}, not {missing}")
        for position, run in enumerate(self.runs):
            state = restore(self.plan, run, snapshots[run.plan.arm])
            if run.diverged is None:
                self.envs.load_state_dict(position, state)
        return info.next_round

    def save_policies(self, root: Path) -> list[Path]:
        """Write the policies that were trained here as separate files."""
        return [save_policy(root, self.plan, run, self.envs) for run in self.runs if isinstance(run, TrainedRun)]

    def _build_run(self, plan: RunPlan, position: int, alike: dict[Hashable, Learner]) -> Run:
        steps = self.envs.steps_per_round
        parts = [cohort.groups or (cohort.envs.num_envs,) for cohort in self._cohorts_of(position)]
        algorithm = ALGORITHMS.get(plan.policy)
        if algorithm is None:
            heads = Heads.build(list(self.envs.heads), self.device)
            make = partial(self._control, plan, position)
            return ControlledRun(plan, heads, steps, make, parts)
        never = self.family.never_floored
        return TrainedRun(plan, algorithm, self._learner(plan, alike), self._streams(plan), steps, never, parts)

    def _control(self, plan: RunPlan, position: int, round_index: int, part: int) -> Control:
        cohort = self._cohorts_of(position)[part]
        return make_control(self.plan, plan, cohort.envs, cohort.runs.index(position), round_index)

    def _cohorts_of(self, position: int) -> list[Cohort]:
        return [cohort for cohort in self.envs.cohorts if position in cohort.runs]

    def _streams(self, plan: RunPlan) -> Streams:
        arm = plan.arm_index if plan.config["lockstep"]["crn"] == "environment" else None
        return Streams(self.plan.replicate_seed, arm)

    def _learner(self, plan: RunPlan, alike: dict[Hashable, Learner]) -> Learner:
        try:
            cfg = LearnerConfig.parse(plan.config)
        except ValueError as error:
            raise ConfigRefused(f"arms[{plan.arm}]", str(error), "correct the named field") from error
        layout, heads = obs_layout(self.envs.obs_spec), list(self.envs.heads)
        names = [head.name for head in heads]
        for field, given in (
            ("prob_floor", cfg.ppo.prob_floor),
            ("entropy_head_weights", cfg.ppo.entropy_head_weights),
        ):
            if unknown := sorted(set(given) - set(names)):
                told = f"no head {', '.join(map(repr, unknown))} here"
                raise ConfigRefused(f"ppo.{field}", told, f"use one of {', '.join(names)}")
        streams, device = self._streams(plan), self.device
        return build_learner(cfg, layout, heads, streams, num_envs=self.num_envs, device=device, alike=alike)

    def _calibrate(self) -> None:
        learners = [run.learner for run in self.runs if isinstance(run, TrainedRun)]
        frozen = [x for x in learners if x.obs_norm is not None and x.obs_norm_frozen]
        if frozen:
            episodes = frozen[0].cfg.obs_norm.calibration_episodes
            normalisers = [x.obs_norm for x in frozen if x.obs_norm is not None]
            calibrate(self.plan, normalisers, episodes, self.device, self.data_dir, self._evaluating)

    def begin_round(self, round_index: int) -> None:
        """Begin a round in every live run."""
        fresh = self.envs.resets_each_round or round_index == 0
        for run, (observation, masks) in zip(self.runs, self.envs.begin_round(round_index), strict=True):
            if run.diverged is None:
                with owned(run.plan, "start of a round"):
                    run.begin(round_index, observation, masks, fresh=fresh)

    def arms_in_order(self, round_index: int) -> list[int]:
        """Return the arm indices in the order of their updates."""
        return list(self.update_order(round_index))

    def evaluate(self, round_index: int) -> dict[str, Evaluation]:
        """Return the evaluation of every live run by run id; none where it is not due."""
        return self.evaluator.evaluate(self.runs, round_index) if self.evaluator.is_due(round_index) else {}

    def record(self, done: Done) -> RoundRecord:
        """Return the record of a finished round."""
        rollout, update, evaluation = done.seconds
        steps = self.num_envs * self.envs.steps_per_round
        clock = system_metrics(done.round, steps, len(self.runs), done.seconds, self.device)
        records = {
            run.plan.run_id: self._record(i, done.updates.get(run.plan.arm_index, {}), done.evaluations, clock)
            for i, run in enumerate(self.runs)
            if done.live[i]
        }
        return RoundRecord(
            round=done.round,
            runs=[records[run.run_id] for run in self.plan.runs if run.run_id in records],
            update_order=done.order,
            seconds=sum(done.seconds),
            rollout_seconds=rollout,
            update_seconds=update,
            eval_seconds=evaluation,
        )

    def _record(
        self,
        position: int,
        update: dict[str, float],
        evaluations: dict[str, Evaluation],
        clock: dict[str, float],
    ) -> RunRound:
        run = self.runs[position]
        episodes = self.envs.pop_episodes(position)
        evaluation = evaluations.get(run.plan.run_id, Evaluation())
        first = run.rollout.heads.specs[0]
        names = [] if first.is_gaussian else self.family.op_names(first.size)
        metrics = train_metrics(episodes) | reward_metrics(self.envs.reward_sums(position), episodes)
        metrics |= policy_metrics(run.rollout.heads, run.rollout, run.prepared, names)
        metrics |= update
        if isinstance(run, TrainedRun):
            metrics |= std_metrics(run.learner)
        digest = hashlib.sha256()
        run.hash_into(digest)
        # what depends on the clock is outside the digest, and so is evaluation, which is no training
        for name, value in sorted(metrics.items()):
            if not name.startswith("sys/") and not name.endswith("/update_seconds"):
                digest.update(f"{name}={value!r};".encode())
        metrics |= clock | evaluation.metrics
        if update and isinstance(run, TrainedRun):
            metrics |= gradient_metrics(run.learner, run.algorithm, run.plan.config["telemetry"], run.round)
        events = [run_started(self.plan, run.plan, self.device, position)] if run.round == 0 else []
        events += self.envs.pop_events(position)
        if update and run.algorithm is not None:
            events += [update_completed(run.algorithm.name, update), *run.detectors.observe(run.round, metrics)]
        events += evaluation_events(evaluation.metrics, evaluation.rows)
        return RunRound(
            run_id=run.plan.run_id,
            metrics=kept_metrics(metrics, run.plan.config["telemetry"]["level"], run.algorithm),
            episodes=episode_rows(episodes, run.round),
            eval_episodes=evaluation.rows,
            events=events,
            digest=digest.hexdigest(),
            diverged=run.diverged,
            env_steps=int(clock["sys/env_steps"]),
            batch_position=position,
        )
