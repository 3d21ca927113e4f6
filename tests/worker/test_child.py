"""What the training process says of assignments that end in the middle of something."""

from __future__ import annotations

import io
import json
from collections.abc import Callable

from lockstep.protocol import AssignedRun, Assignment
from tests.worker.train.cases import CPU, GYM, GYM_ARMS, block
from worker.child import Pipes, Seat, _rounds
from worker.train.block import BlockPlan, BlockTrainer


def _assignment(plan: BlockPlan) -> Assignment:
    return Assignment(
        **dict.fromkeys(("assignment_id", "lease", "experiment_id", "experiment_name", "block_id"), "x"),
        attempt=1,
        replicate=0,
        root_seed=5,
        rounds=plan.rounds,
        resume_round=0,
        placement="shared_device",
        device_index=0,
        num_arms=plan.num_arms,
        barrier="none",
        spec_hash=plan.spec_hash,
        runs=[AssignedRun(**vars(run) | {"diff": []}, checkpoint=None, diverged=False) for run in plan.runs],
        reward_modes=[],
        checkpoint_every_rounds=1,
        checkpoint_keep=1,
        grace_seconds=1.0,
        barrier_timeout_seconds=60.0,
    )


def _cancelled_in_its_calibration(close: Callable[[], object]) -> list[str]:
    """Return what is told, by kind, of an assignment that ends by calling ``close``."""
    norm = {"enabled": True, "sharing": "shared_frozen", "calibration_episodes": 2}
    plan, frames = block(GYM, GYM_ARMS, obs_norm=norm), io.BytesIO()
    pipes = Pipes(frames)
    seat = Seat(pipes, {"assignment": _assignment(plan).model_dump(), "options": {}}, named=False)
    seat.trainer = BlockTrainer(
        plan,
        CPU,
        # what comes first after it was asked for a round is the calibration of its normalisers
        progress=lambda *_: seat.told("stop", for_good=True) if seat.gos else None,
        unwanted=lambda: seat.unwanted,
    )
    seat.opened.callback(close)
    seat.opened.callback(seat.trainer.close)
    seat.told("go")
    _rounds(pipes, [seat])
    return [json.loads(line)["type"] for line in frames.getvalue().splitlines()]


def test_a_cancel_before_the_first_round_is_told_once() -> None:
    assert _cancelled_in_its_calibration(lambda: None) == ["done", "left"]


def test_an_environment_that_raises_when_it_is_closed_after_a_cancel_ends_its_assignment_alone() -> None:
    assert _cancelled_in_its_calibration(lambda: 1 // 0) == ["failed", "left"]
