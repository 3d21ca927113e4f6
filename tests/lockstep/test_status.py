"""The transition table, exhaustively, and the derived status of an experiment."""

from __future__ import annotations

from itertools import product

import pytest

from lockstep import status as s
from lockstep.status import BlockStatus, Cause, Desired, ExperimentStatus, experiment_status

ALLOWED_BLOCK = {
    ("queued", "reserved"),
    ("queued", "paused"),
    ("queued", "cancelled"),
    ("queued", "failed"),
    ("reserved", "running"),
    ("reserved", "stopping"),
    ("running", "stopping"),
    ("running", "succeeded"),
    ("stopping", "succeeded"),
    ("stopping", "cancelled"),
    ("stopping", "paused"),
    ("stopping", "queued"),
    ("stopping", "failed"),
    ("paused", "queued"),
    ("paused", "cancelled"),
}


@pytest.mark.parametrize(("source", "target"), list(product(BlockStatus, BlockStatus)))
def test_block_transition_is_allowed_exactly_where_the_specification_says(
    source: BlockStatus, target: BlockStatus
) -> None:
    assert (source in s.block_sources(target)) is ((source.value, target.value) in ALLOWED_BLOCK)


@pytest.mark.parametrize(
    ("table", "terminal"),
    [
        (s.BLOCK_TRANSITIONS, s.TERMINAL_BLOCK),
        (s.RUN_TRANSITIONS, s.TERMINAL_RUN),
        (s.WORKER_TRANSITIONS, {s.WorkerStatus.RETIRED}),
        (
            s.ASSIGNMENT_TRANSITIONS,
            {s.AssignmentState.RELEASED, s.AssignmentState.EXPIRED, s.AssignmentState.REVOKED},
        ),
    ],
)
def test_terminal_states_have_no_way_out_and_others_have_one(table: dict, terminal: set) -> None:  # type: ignore[type-arg]
    assert {state for state, targets in table.items() if not targets} == set(terminal)
    assert {target for targets in table.values() for target in targets} <= set(table)


B, E = BlockStatus, ExperimentStatus


@pytest.mark.parametrize(
    ("blocks", "desired", "started", "expected"),
    [
        ([B.QUEUED], Desired.RUN, False, E.QUEUED),
        ([B.QUEUED, B.SUCCEEDED], Desired.RUN, True, E.WAITING),
        ([B.RUNNING, B.QUEUED], Desired.RUN, True, E.RUNNING),
        ([B.STOPPING, B.CANCELLED], Desired.CANCEL, True, E.CANCELLING),
        ([B.RESERVED, B.PAUSED], Desired.PAUSE, True, E.PAUSING),
        ([B.PAUSED, B.SUCCEEDED], Desired.PAUSE, True, E.PAUSED),
        ([B.SUCCEEDED, B.SUCCEEDED], Desired.RUN, True, E.SUCCEEDED),
        ([B.SUCCEEDED, B.CANCELLED], Desired.CANCEL, True, E.CANCELLED),
        ([B.FAILED, B.FAILED], Desired.RUN, True, E.FAILED),
        ([B.FAILED, B.SUCCEEDED], Desired.RUN, True, E.PARTIAL),
    ],
)
def test_experiment_status_is_derived_in_the_specified_order(
    blocks: list[BlockStatus], desired: Desired, started: bool, expected: ExperimentStatus
) -> None:
    assert experiment_status([(block, None) for block in blocks], desired, ever_started=started) is expected


def test_blocks_cancelled_as_decided_count_as_success() -> None:
    blocks = [(B.SUCCEEDED, None), (B.CANCELLED, Cause.DECIDED)]
    assert experiment_status(blocks, Desired.RUN, ever_started=True) is E.SUCCEEDED


def test_every_cause_has_a_sentence_for_people() -> None:
    assert set(s.CAUSE_SENTENCES) == set(Cause)
