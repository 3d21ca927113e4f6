"""Why blocks gave no result, each reason told once, for whoever asks: the experiment, its page, the report.

A reason that failed one block before its first round fails those that wait with it; their texts point to the first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from app.store.rows.experiments import BlockRow, RunOfArm
from app.store.rows.records import EventRow
from lockstep.status import BlockStatus, Cause

_SAME = "same cause as replicate "
#: Stops that somebody asked for; nothing is wrong.
_WANTED = (Cause.USER, Cause.DECIDED, Cause.PREEMPTED)


#: What differs between accounts of one fault: numbers of episodes, steps and seeds, addresses. Names keep their digits.
_NUMBER = re.compile(r"(?<![\w-])(?:0x[0-9a-f]+|-?\d+(?:[.,]\d+)*(?:e[+-]?\d+)?)(?!\w)")
#: What is added to the account of a block that was tried again, or that failed after another one.
_TRIED = re.compile(r" \((?:already requeued|replicate \d+ failed in the same way)[^()]*\)$")
_ALIKE = re.compile(r" \(replicate \d+ failed in the same way\)$")
_REWARD_MODE = re.compile(r"reward mode '([^']+)'")


def fault_of(text: str) -> str:
    """Return what an account has in common with those of the same fault in other blocks, episodes and steps."""
    return _NUMBER.sub("#", _TRIED.sub("", text))


def arms_at_fault(text: str, runs: Sequence[RunOfArm]) -> list[str]:
    """Return the arms whose own code an account names, in order; none where it is the code of all of them, or of none.

    Only a reward may be an arm's own: environments are the same for all arms of an experiment.
    """
    named = _REWARD_MODE.match(text)
    arms = {run.label: run.reward_mode for run in sorted(runs, key=lambda run: run.arm_index)}
    own = [label for label, mode in arms.items() if named is not None and mode == named[1]]
    return own if len(own) < len(arms) else []


def same_as(block: BlockRow, text: str) -> str:
    """Return the account of a block that fails because another one did."""
    return f"{_SAME}{block.replicate}: {text}"


def account_of(event: EventRow) -> str:
    """Return why an attempt stopped, from the event that says so."""
    return event.text.partition(f"{BlockStatus.STOPPING.value}: ")[2]


def repeated(rows: Sequence[BlockRow], stops: Sequence[EventRow]) -> list[dict[str, Any]]:
    """Return why attempts stopped that a later one made up for, each reason once, by the first replicate that has it.

    Args:
        rows: blocks; those that failed for good are left to ``told``.
        stops: the events by which attempts stopped.
    """
    wanted = {row.id: row.attempt for row in rows if row.status != BlockStatus.FAILED}
    accounts: dict[tuple[str | None, str], dict[str, Any]] = {}
    for event in stops:
        if int(event.payload.get("attempt", 0)) < wanted.get(str(event.block_id), 0):
            text = account_of(event)
            first: dict[str, Any] = {"cause": event.cause, "text": text, "replicates": []}
            account = accounts.setdefault((event.cause, fault_of(text)), first)
            if event.replicate not in account["replicates"]:
                account["replicates"].append(event.replicate)
    return list(accounts.values())


def told(rows: Sequence[BlockRow], runs: Sequence[RunOfArm]) -> list[dict[str, Any]]:
    """Return one account for each reason, by the first replicate that has it.

    Args:
        rows: blocks; those that failed, or go on after a failure, are told.
        runs: of these blocks; the log that is named is that of an arm at fault, in a replicate that trained.
    """
    by_block: dict[str, list[RunOfArm]] = {}
    for run in runs:
        by_block.setdefault(run.block_id, []).append(run)
    accounts: dict[tuple[str, str, str], dict[str, Any]] = {}
    for row in rows:
        if row.cause is None or row.cause in _WANTED or row.status in (BlockStatus.SUCCEEDED, BlockStatus.CANCELLED):
            continue
        text = row.cause_text or ""
        has_trained = not text.startswith(_SAME)
        if not has_trained:
            text = text.partition(": ")[2]
        arms = arms_at_fault(text, runs)
        first: dict[str, Any] = {
            "cause": row.cause,
            "status": row.status,
            "text": _ALIKE.sub("", text),
            "arms": arms,
            "replicates": [],
            "run_id": None,
        }
        account = accounts.setdefault((row.cause, row.status, fault_of(text)), first)
        account["replicates"].append(row.replicate)
        if account["run_id"] is None and has_trained:
            account["run_id"] = _log_of(by_block.get(row.id, ()), arms)
    return list(accounts.values())


def _log_of(runs: Sequence[RunOfArm], arms: Sequence[str]) -> str | None:
    """Return the run of a block whose log to read: of an arm at fault, else the first."""
    own = [run.id for run in runs if run.label in arms]
    return next(iter([*own, *(run.id for run in runs)]), None)
