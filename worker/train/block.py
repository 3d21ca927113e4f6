"""The lockstep loop: all runs of a block share step together, then update in a random arm order.

Every env step is issued for every arm (A0 B0 A1 B1 ..); one round of all arms ends before the next
begins. The loop is a generator of round records: barriers, leases, relaying and checkpoints in time
live with its caller. Nothing reduces over runs, and what one run does never reaches another.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from worker.envs.protocol import LockstepEnvs
from worker.keys import generator
from worker.rl.config import LearnerConfig
from worker.rl.heads import Heads
from worker.rl.learner import Streams, build_learner
from worker.train.environments import make_environments, obs_layout, ordered_runs
from worker.train.metrics import episode_rows, round_metrics
from worker.train.plan import BlockPlan, ConfigRefused, RoundRecord, RunPlan, RunRound
from worker.train.runs import Run, TrainedRun

#: Metrics that depend on the clock: outside the digest.
_CLOCK = ("sys/", "ppo/update_seconds")


def update_order(seed: int, round_index: int, num_arms: int) -> list[int]:
    """Return the arm indices in the order of their updates (stream ``update_order``)."""
    return [int(i) for i in generator(seed, "update_order", round=round_index).permutation(num_arms)]


class BlockTrainer:
    """Trains the runs of ``plan`` on one device.

    Args:
        plan: what to train.
        device: where policies live and environments compute.
        data_dir: where data sets lie.
        progress: called with (round, step) after every env step.

    Raises:
        ConfigRefused: a setting cannot be trained.
    """

    def __init__(
        self,
        plan: BlockPlan,
        device: torch.device,
        *,
        data_dir: Path | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.plan, self.device, self.data_dir = plan, device, data_dir
        self._progress = progress or (lambda _round, _step: None)
        config = plan.runs[0].config
        self.num_envs = int(config["env"]["n_envs"])
        self.envs: LockstepEnvs = make_environments(
            plan, device, phase="train", num_envs=self.num_envs, data_dir=data_dir
        )
        self.order = ordered_runs(plan)
        self.runs = [self._build_run(plan.runs[index]) for index in self.order]
        self.update_order: Callable[[int], Sequence[int]] = lambda r: update_order(
            plan.replicate_seed, r, plan.num_arms
        )

    def rounds(self, start: int) -> Iterator[RoundRecord]:
        """Yield the record of every round from ``start`` on; all runs have finished it when it comes."""
        for round_index in range(start, self.plan.rounds):
            yield self._round(round_index)

    def _build_run(self, plan: RunPlan) -> Run:
        try:
            cfg = LearnerConfig.parse(plan.config)
        except ValueError as error:
            raise ConfigRefused(f"arms[{plan.arm}]", str(error), "correct the named field") from error
        arm = plan.arm_index if plan.config["lockstep"]["crn"] == "environment" else None
        streams = Streams(self.plan.replicate_seed, arm)
        learner = build_learner(
            cfg,
            obs_layout(self.envs.obs_spec),
            list(self.envs.heads),
            streams,
            num_envs=self.num_envs,
            device=self.device,
        )
        return TrainedRun(plan, learner, streams, self.envs.steps_per_round, {})

    def _round(self, round_index: int) -> RoundRecord:
        began = time.perf_counter()
        fresh = self.envs.resets_each_round or round_index == 0
        for run, (observation, masks) in zip(self.runs, self.envs.begin_round(round_index), strict=True):
            if run.diverged is None:
                run.begin(round_index, observation, masks, fresh=fresh)
        live = [run.diverged is None for run in self.runs]
        self._roll(round_index)
        rolled = time.perf_counter()
        order = list(self.update_order(round_index))
        by_arm = {run.plan.arm_index: run for run in self.runs}
        updates = {
            arm: by_arm[arm].update() for arm in order if arm in by_arm and by_arm[arm].diverged is None
        }
        updated = time.perf_counter()
        records = [
            self._record(position, updates.get(run.plan.arm_index, {}))
            for position, run in enumerate(self.runs)
            if live[position]
        ]
        planned = {run.run_id: i for i, run in enumerate(self.plan.runs)}
        records.sort(key=lambda record: planned[record.run_id])
        ended = time.perf_counter()
        return RoundRecord(
            round_index, records, order, ended - began, rolled - began, updated - rolled, ended - updated
        )

    def _roll(self, round_index: int) -> None:
        for t in range(self.envs.steps_per_round):
            results = self.envs.step([run.act(t) for run in self.runs])
            for run, result in zip(self.runs, results, strict=True):
                if result is not None:
                    run.record(t, result)
            self._progress(round_index, t)

    def _record(self, position: int, update_metrics: dict[str, float]) -> RunRound:
        run = self.runs[position]
        episodes = self.envs.pop_episodes(position)
        metrics = round_metrics(run, episodes, self.envs.reward_sums(position), update_metrics)
        env_steps = (run.round + 1) * self.num_envs * self.envs.steps_per_round
        metrics["sys/env_steps"] = float(env_steps)
        digest = hashlib.sha256()
        run.hash_into(digest)
        for name, value in sorted(metrics.items()):
            if not name.startswith(_CLOCK):
                digest.update(f"{name}={value!r};".encode())
        return RunRound(
            run_id=run.plan.run_id,
            metrics=metrics,
            episodes=episode_rows(episodes, run.round),
            eval_episodes=[],
            events=self.envs.pop_events(position),
            digest=digest.hexdigest(),
            diverged=run.diverged,
            env_steps=env_steps,
            batch_position=position,
        )
