"""Dashboard and alert rules ask for metrics that /metrics really has, by labels that these really have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from app.services.context import Context
from app.services.operations import render_metrics

FOLDER = Path(__file__).parents[2] / "docs" / "monitoring"


def expressions() -> Iterator[str]:
    dashboard = json.loads((FOLDER / "lockstep-dashboard.json").read_text(encoding="utf-8"))
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    for group in yaml.safe_load((FOLDER / "lockstep-alerts.yaml").read_text(encoding="utf-8"))["groups"]:
        yield from (rule["expr"] for rule in group["rules"])


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_dashboard_and_alerts_name_what_the_server_tells(ctx: Context) -> None:
    families = text_string_to_metric_families(render_metrics(ctx, 0).decode())
    samples = [sample for family in families for sample in family.samples]
    names = {sample.name for sample in samples}
    statuses = {sample.labels["status"] for sample in samples if sample.name == "lockstep_blocks"}
    asked = list(expressions())
    assert len(asked) > 15
    used = {name for text in asked for name in re.findall(r"lockstep_\w+", text)}
    assert used <= names
    assert set(re.findall(r'status="(\w+)"', " ".join(asked))) <= statuses
    told = {name.removesuffix("_total") for name in names if not name.endswith(("_created", "_sum", "_count"))}
    assert told - {name.removesuffix("_total") for name in used} == set(), "a metric that no panel shows"
