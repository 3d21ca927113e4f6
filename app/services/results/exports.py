"""Exports of one experiment as JSON, CSV or SQLite, written to a file; and the comparison of what differs in specs.

The file lies between the session and the client: whoever reads slowly, or not at all, holds no session.

Column order: ``app.store.records.exports.layout``. CSV holds the table ``episodes``; JSON and SQLite hold all.
"""

from __future__ import annotations

import csv
import io
import json
import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from sqlalchemy.orm import Session

from app.errors import InvalidError
from app.services.context import Context
from app.services.steering import existing
from app.store import experiments
from app.store.records import exports
from app.store.rows.experiments import ArmRow, ExperimentRow
from lockstep.nonfinite import jsonable
from lockstep.report.inputs import codes_by_name

MAX_COMPARED = 8


def state(ctx: Context, experiment_id: str) -> str | None:
    """Return a name of what an export would hold, None while the experiment is not finished and it may grow.

    Raises:
        NotFoundError: there is no such experiment.
    """
    with ctx.store.read() as session:
        row = existing(session, experiment_id)
    return None if row.finished_at is None else f"{row.version}-{row.event_seq}"


def write_csv(ctx: Context, experiment_id: str, file: BinaryIO, stop: threading.Event) -> None:
    """Write the training episodes that count as CSV; text that a spreadsheet would run is quoted by an apostrophe.

    Raises:
        StoppedError: ``stop`` was set.
    """
    columns = next(item.columns for item in exports.layout() if item.name == "episodes")
    with _as_text(file) as text, ctx.store.read() as session:
        text.write(",".join(columns) + "\r\n")
        lines = csv.writer(text)
        for row in exports.rows(session, "episodes", experiment_id, stop):
            lines.writerow([_safe(value) for value in row])


def _safe(value: Any) -> Any:
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return f"'{value}"
    return value


def write_json(ctx: Context, experiment_id: str, file: BinaryIO, stop: threading.Event) -> None:
    """Write one JSON object: ``facts``, ``columns`` of each table, and ``tables`` as lists of rows.

    Raises:
        StoppedError: ``stop`` was set.
    """
    with _as_text(file) as text, ctx.store.read() as session:
        columns = {item.name: item.columns for item in exports.layout()}
        head = {"facts": _facts(session, experiment_id), "columns": columns}
        text.write(json.dumps(head, allow_nan=False)[:-1] + ', "tables": {')
        for number, name in enumerate(columns):
            text.write((", " if number else "") + json.dumps(name) + ": [")
            for index, row in enumerate(exports.rows(session, name, experiment_id, stop)):
                cells = [_plain(value) for value in row]
                text.write((",\n" if index else "\n") + json.dumps(cells, allow_nan=False))
            text.write("]")
        text.write("}}")


@contextmanager
def _as_text(file: BinaryIO) -> Iterator[io.TextIOWrapper]:
    """A file of bytes as one of text, which leaves it open."""
    text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
    try:
        yield text
    finally:
        text.detach()


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return jsonable(value)
    return value.isoformat() if hasattr(value, "isoformat") else value


def write_sqlite(ctx: Context, experiment_id: str, file: BinaryIO, stop: threading.Event) -> None:
    """Write a SQLite database that holds this experiment alone; the founding query runs on it.

    Raises:
        StoppedError: ``stop`` was set.
    """
    with tempfile.TemporaryDirectory(prefix="export-", dir=ctx.files.incoming) as directory:
        path = Path(directory) / "export.sqlite"
        with ctx.store.read() as session:
            facts = {key: json.dumps(value) for key, value in _facts(session, experiment_id).items()}
            exports.write_sqlite(session, path, experiment_id, facts, stop)
        with path.open("rb") as made:
            shutil.copyfileobj(made, file)


def _facts(session: Session, experiment_id: str) -> dict[str, Any]:
    """What is needed to reproduce: spec and hash, seed, revision and versions as the runs recorded them."""
    row = existing(session, experiment_id)
    records = {run.id: run.record for run in experiments.runs(session, experiment_id)}
    return {
        "experiment_id": experiment_id,
        "name": row.name,
        "spec": row.spec,
        "spec_hash": row.spec_hash,
        "analysis_hash": row.analysis_hash,
        "seed": int(row.seed),
        "created_at": row.created_at.isoformat(),
        "runs": records,
    }


def compare(ctx: Context, experiment_ids: Sequence[str]) -> dict[str, Any]:
    """Return only the keys in which the arms of some experiments differ, and plug-in code; one column for each arm.

    Raises:
        InvalidError: none, too many, or one that is named twice.
    """
    if not 1 <= len(experiment_ids) <= MAX_COMPARED or len(set(experiment_ids)) != len(experiment_ids):
        raise InvalidError(f"name 1 to {MAX_COMPARED} different experiments", code="experiments")
    columns: list[dict[str, Any]] = []
    flat: list[dict[str, Any]] = []
    codes: list[str | None] = []
    with ctx.store.read() as session:
        for experiment_id in experiment_ids:
            row = existing(session, experiment_id)
            code = _plugin_code(session, experiment_id)
            for arm in experiments.arms(session, experiment_id):
                columns.append({"experiment_id": experiment_id, "name": row.name, "arm": arm.label})
                flat.append(_flat_arm(row, arm))
                codes.append(code)
    keys = sorted({key for values in flat for key in values})
    rows = [{"key": key, "values": [values.get(key) for values in flat]} for key in keys]
    differing = [row for row in rows if any(value != row["values"][0] for value in row["values"])]
    if len({code for code in codes if code is not None}) > 1:  # of what has not run yet nobody knows the code
        differing.append({"key": "plug-in code", "values": codes})
    return {"columns": columns, "rows": differing, "equal_keys": len(rows) - len(differing)}


def _plugin_code(session: Session, experiment_id: str) -> str | None:
    """Return the plug-ins that runs were computed with and their codes, None where none was or nothing ran."""
    codes = codes_by_name(run.record for run in experiments.runs(session, experiment_id))
    return ", ".join(f"{name} of {' and '.join(used)}" for name, used in codes.items()) or None


def _flat_arm(row: ExperimentRow, arm: ArmRow) -> dict[str, Any]:
    own = {"policy": arm.policy, "static_set": arm.static_set, "reward_mode": arm.reward_mode}
    shared = {key: value for key, value in row.spec.items() if key not in ("arms", *arm.config)}
    return {**_flatten(shared, ""), **_flatten(arm.config, ""), **own}


def _flatten(value: Any, at: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        return {at: value}
    leaves: dict[str, Any] = {}
    for key, item in value.items():
        leaves |= _flatten(item, f"{at}.{key}" if at else str(key))
    return leaves
