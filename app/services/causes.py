"""Why blocks gave no result, each reason told once, for whoever asks: the experiment, its page, the report.

A reason that failed one block before its first round fails those that wait with it; their texts point to the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.store.rows import BlockRow, RunRow
from lockstep.status import BlockStatus, Cause

_SAME = "same cause as replicate "
#: Stops that somebody asked for; nothing is wrong.
_WANTED = (Cause.USER, Cause.DECIDED, Cause.PREEMPTED)


def same_as(block: BlockRow, text: str) -> str:
    """Return the account of a block that fails because another one did."""
    return f"{_SAME}{block.replicate}: {text}"


def told(rows: Sequence[BlockRow], runs: Sequence[RunRow]) -> list[dict[str, Any]]:
    """Return one account for each reason, by the first replicate that has it.

    Args:
        rows: blocks; those that failed, or go on after a failure, are told.
        runs: of these blocks; the first of a block has its log.
    """
    log_of: dict[str, str] = {}
    for run in runs:
        log_of.setdefault(run.block_id, run.id)
    accounts: dict[tuple[str, str, str], dict[str, Any]] = {}
    for row in rows:
        if row.cause is None or row.cause in _WANTED or row.status in (BlockStatus.SUCCEEDED, BlockStatus.CANCELLED):
            continue
        text = row.cause_text or ""
        if text.startswith(_SAME):
            text = text.partition(": ")[2]
        first: dict[str, Any] = {
            "cause": row.cause,
            "status": row.status,
            "text": text,
            "replicates": [],
            "run_id": log_of.get(row.id),
        }
        accounts.setdefault((row.cause, row.status, text), first)["replicates"].append(row.replicate)
    return list(accounts.values())
