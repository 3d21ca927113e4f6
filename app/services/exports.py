"""Exports of one experiment as JSON, CSV or SQLite, streamed; and the comparison of what differs in specs.

Column order: ``app.store.exports.layout``. CSV holds the table ``episodes``; JSON and SQLite hold all.
"""

from __future__ import annotations

import csv
import io
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session

from app.errors import InvalidError
from app.services.context import Context
from app.services.steering import existing
from app.store import experiments, exports
from app.store.tables import Record
from lockstep.nonfinite import jsonable

_CHUNK_BYTES = 64 * 1024
MAX_COMPARED = 8


def check(ctx: Context, experiment_id: str) -> None:
    """Raise ``NotFoundError`` before a stream begins."""
    with ctx.store.read() as session:
        existing(session, experiment_id)


def as_csv(ctx: Context, experiment_id: str) -> Iterator[str]:
    """Yield the training episodes that count as CSV; text that a spreadsheet would run is quoted by an apostrophe."""
    columns = next(item.columns for item in exports.layout() if item.name == "episodes")
    with ctx.store.read() as session:
        yield ",".join(columns) + "\r\n"
        for row in exports.rows(session, "episodes", experiment_id):
            line = io.StringIO()
            csv.writer(line).writerow([_safe(value) for value in row])
            yield line.getvalue()


def _safe(value: Any) -> Any:
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return f"'{value}"
    return value


def as_json(ctx: Context, experiment_id: str) -> Iterator[str]:
    """Yield one JSON object: ``facts``, ``columns`` of each table, and ``tables`` as lists of rows."""
    with ctx.store.read() as session:
        columns = {item.name: item.columns for item in exports.layout()}
        head = {"facts": _facts(session, experiment_id), "columns": columns}
        yield json.dumps(head, allow_nan=False)[:-1] + ', "tables": {'
        for number, name in enumerate(columns):
            yield (", " if number else "") + json.dumps(name) + ": ["
            for index, row in enumerate(exports.rows(session, name, experiment_id)):
                cells = [_plain(value) for value in row]
                yield (",\n" if index else "\n") + json.dumps(cells, allow_nan=False)
            yield "]"
        yield "}}"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return jsonable(value)
    return value.isoformat() if hasattr(value, "isoformat") else value


def as_sqlite(ctx: Context, experiment_id: str) -> Iterator[bytes]:
    """Yield a SQLite database that holds this experiment alone; the founding query runs on it."""
    with tempfile.TemporaryDirectory(prefix="lockstep-export-") as directory:
        path = Path(directory) / "export.sqlite"
        with ctx.store.read() as session:
            facts = {key: json.dumps(value) for key, value in _facts(session, experiment_id).items()}
            exports.write_sqlite(session, path, experiment_id, facts)
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                yield chunk


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
    """Return only the keys in which the arms of some experiments differ; one column for each arm.

    Raises:
        InvalidError: none, too many, or one that is named twice.
    """
    if not 1 <= len(experiment_ids) <= MAX_COMPARED or len(set(experiment_ids)) != len(experiment_ids):
        raise InvalidError(f"name 1 to {MAX_COMPARED} different experiments", code="experiments")
    columns: list[dict[str, Any]] = []
    flat: list[dict[str, Any]] = []
    with ctx.store.read() as session:
        for experiment_id in experiment_ids:
            row = existing(session, experiment_id)
            for arm in experiments.arms(session, experiment_id):
                columns.append({"experiment_id": experiment_id, "name": row.name, "arm": arm.label})
                flat.append(_flat_arm(row, arm))
    keys = sorted({key for values in flat for key in values})
    rows = [{"key": key, "values": [values.get(key) for values in flat]} for key in keys]
    differing = [row for row in rows if any(value != row["values"][0] for value in row["values"])]
    return {"columns": columns, "rows": differing, "equal_keys": len(rows) - len(differing)}


def _flat_arm(row: Record, arm: Record) -> dict[str, Any]:
    own = {"policy": arm.policy, "static_set": arm.static_set, "reward_mode": arm.reward_mode}
    shared = {key: value for key, value in row.spec.items() if key not in ("arms", *arm.config)}
    return {**_flatten(shared, ""), **_flatten(arm.config, ""), **own}


def _flatten(value: Any, at: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        return {at: value}
    found: dict[str, Any] = {}
    for key, item in value.items():
        found |= _flatten(item, f"{at}.{key}" if at else str(key))
    return found
