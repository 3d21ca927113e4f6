"""Export in three formats and the comparison of specs, over HTTP on both databases."""

from __future__ import annotations

import csv
import io
import sqlite3
from pathlib import Path

import httpx
import pytest

from tests.conftest import LiveServer, wait_until
from tests.factories import SimulatedWorker, submit, tiny_spec

pytestmark = pytest.mark.server

#: training.md 7.2, verbatim.
FOUNDING_QUERY = "SELECT group_id, reward_mode, AVG(final_accuracy) FROM episodes GROUP BY group_id, reward_mode"


def trained(server: LiveServer) -> str:
    experiment_id = submit(server.ctx, tiny_spec())
    worker = SimulatedWorker(server.ctx).register()
    wait_until(worker.claim, what="an assignment")
    worker.train(2)
    return experiment_id


def test_export_holds_one_experiment_in_every_format(server: LiveServer, http: httpx.Client, tmp_path: Path) -> None:
    experiment_id = trained(server)
    address = f"/api/v1/experiments/{experiment_id}/export"
    rows = list(csv.DictReader(io.StringIO(http.get(address, params={"format": "csv"}).text)))
    assert [row["group_id"] for row in rows] == ["A", "A", "B", "B"]
    assert list(rows[0])[:4] == ["experiment_id", "block", "replicate", "run_id"]
    document = http.get(address).json()
    assert len(document["tables"]["episodes"]) == 4
    assert len(document["tables"]["points"]) == 8
    assert all(len(row) == len(document["columns"]["points"]) for row in document["tables"]["points"])
    assert document["facts"]["spec_hash"]
    path = tmp_path / "export.sqlite"
    path.write_bytes(http.get(address, params={"format": "sqlite"}).content)
    with sqlite3.connect(path) as connection:
        found = connection.execute(FOUNDING_QUERY).fetchall()
    connection.close()
    expected: dict[str, list[float]] = {}
    for row in rows:
        expected.setdefault(row["group_id"], []).append(float(row["final_accuracy"]))
    assert [(row[0], row[1]) for row in found] == [("A", "shaped"), ("B", "simplified")]
    assert [row[2] for row in found] == pytest.approx([sum(v) / len(v) for v in expected.values()])


def test_export_of_an_unknown_experiment_or_format_is_refused(server: LiveServer, http: httpx.Client) -> None:
    assert http.get("/api/v1/experiments/exp_00000000/export").status_code == 404
    experiment_id = submit(server.ctx)
    assert http.get(f"/api/v1/experiments/{experiment_id}/export?format=xml").status_code == 422
    refused = http.get(f"/api/v1/experiments/{experiment_id}/export?format=parquet")
    assert (refused.status_code, refused.json()["code"]) == (501, "not_installed")


def test_compare_shows_differing_keys_only_with_arms_as_columns(server: LiveServer, http: httpx.Client) -> None:
    first = submit(server.ctx)
    second = submit(server.ctx, tiny_spec(ppo={"lr": 0.0123}))
    document = http.get("/api/v1/compare", params={"experiments": [first, second]}).json()
    assert [column["arm"] for column in document["columns"]] == ["A", "B", "A", "B"]
    rows = {row["key"]: row["values"] for row in document["rows"]}
    assert rows["reward_mode"] == ["shaped", "simplified"] * 2
    assert rows["ppo.lr"][2:] == [0.0123, 0.0123]
    assert rows["ppo.lr"][0] != 0.0123
    assert "ppo.epochs" not in rows
    assert http.get("/api/v1/compare", params={"experiments": [first, first]}).status_code == 422
