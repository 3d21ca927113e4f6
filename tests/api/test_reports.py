"""Reports over HTTP: every format, the numbers again from what is exported, the calibration stamp."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from app.services.results.finishing import finish_due
from lockstep.report import report_from_scores_csv
from tests.conftest import LiveServer
from tests.factories import SimulatedWorker, submit, tiny_spec

pytestmark = pytest.mark.server


def reported(server: LiveServer, replicates: int = 6) -> str:
    """Return the id of an experiment whose simulated runs have ended and are reported."""
    analysis = {"inference": "full", "secondary": ["eval/committed_accuracy"]}
    spec = tiny_spec(experiment={"replicates": replicates}, budget={"rounds": 1}, analysis=analysis)
    experiment_id = submit(server.ctx, spec)
    worker = SimulatedWorker(server.ctx).register()
    for _ in range(replicates):
        while worker.claim() is None:
            worker.beat("idle")
        worker.train(rounds=1)
    finish_due(server.ctx)
    return experiment_id


def test_report_in_every_format_and_again_from_its_exports(sqlite_server: LiveServer, tmp_path: Path) -> None:
    experiment_id = reported(sqlite_server)
    with httpx.Client(base_url=f"{sqlite_server.url}/api/v1/experiments/{experiment_id}/") as http:
        answers = {form: http.get("report", params={"format": form}) for form in ("json", "html", "md", "csv", "py")}
    assert {answer.status_code for answer in answers.values()} == {200}
    report = answers["json"].json()
    assert report["verdict"]["sentence"].split(" ")[0] in answers["md"].text
    assert "<script" not in answers["html"].text
    again = report_from_scores_csv(answers["csv"].text, report["registration"], report["generated_utc"])
    assert again["comparisons"] == report["comparisons"]
    assert again["scores_sha256"] == report["scores_sha256"]
    (tmp_path / "report.json").write_text(answers["json"].text)
    (tmp_path / "scores.csv").write_text(answers["csv"].text)
    (tmp_path / "recompute.py").write_text(answers["py"].text)
    run = subprocess.run([sys.executable, "recompute.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    report["comparisons"][0]["p"] = 0.123
    (tmp_path / "report.json").write_text(json.dumps(report))
    run = subprocess.run([sys.executable, "recompute.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 1


def test_calibration_stamps_later_reports_and_asks_for_enough_replicates(sqlite_server: LiveServer) -> None:
    with httpx.Client(base_url=f"{sqlite_server.url}/api/v1/", timeout=120) as http:
        before = http.get(f"experiments/{reported(sqlite_server)}/report").json()
        made = http.post("calibrations", json={"repetitions": 200})
        after = http.get(f"experiments/{reported(sqlite_server)}/report").json()
        few = http.post("calibrations", json={"experiment": after["experiment_id"], "repetitions": 200})
    assert made.status_code == 201
    assert made.json()["passed"] is True
    assert before["aa"]["modes"] == []
    assert after["aa"]["modes"] == ["simulation"]
    assert few.status_code == 422
    assert few.json()["code"] == "too_few_replicates"


def test_report_before_any_result_says_what_is_missing(sqlite_server: LiveServer) -> None:
    experiment_id = submit(sqlite_server.ctx)
    with httpx.Client(base_url=sqlite_server.url) as http:
        answer = http.get(f"/api/v1/experiments/{experiment_id}/report")
    assert answer.status_code == 409
    assert answer.json()["code"] == "no_data"
    assert "no report yet" in answer.json()["detail"]
