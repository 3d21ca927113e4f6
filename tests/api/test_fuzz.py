"""The whole API from its own OpenAPI document: no 5xx, no answer that the document does not allow."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import CHECKS
from schemathesis.core.result import Ok

from app.main import create_app
from app.settings import Settings
from tests.conftest import FAST, start_server

pytestmark = pytest.mark.server
#: CI: 50 cases an endpoint; `LOCKSTEP_FUZZ_CASES=2000 pytest tests/api/test_fuzz.py` for the full number.
CASES = int(os.environ.get("LOCKSTEP_FUZZ_CASES", "50"))
#: Properties of HTTP itself that the framework does not promise.
LEFT_OUT = (
    "unsupported_method",
    "missing_required_header",
    "positive_data_acceptance",
    "ignored_auth",  # the server of this test takes everybody; tests/api/test_access.py has who may what
)


DOCUMENT = create_app(Settings()).openapi()
# making specifications from their whole schema would take most of the time; tests/lockstep/spec has what is in one
DOCUMENT["components"]["schemas"]["Specification"] = {"type": "object"}
# streams have tests of their own; a valid calibration simulates for seconds, and is tested in test_reports
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT).exclude(path_regex="/(stream|ws|calibrations)$")
OPERATIONS: dict[str, Any] = {
    found.ok().label: found.ok() for found in SCHEMA.get_all_operations() if isinstance(found, Ok)
}


@pytest.fixture(scope="module")
def url(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("fuzz")
    shutil.copy(sqlite_template, folder / "lockstep.db")
    given_settings: dict[str, Any] = {
        **FAST,
        "database_url": f"sqlite:///{folder / 'lockstep.db'}",
        "data_dir": folder / "data",
    }
    server = start_server(Settings(**given_settings))
    yield server.url
    server.stop()


@pytest.mark.parametrize("label", list(OPERATIONS))
def test_api_answers_every_case_as_documented(url: str, label: str) -> None:
    operation = OPERATIONS[label]
    checks: list[Any] = [check for check in CHECKS.get_all() if check.__name__ not in LEFT_OUT]

    @given(case=operation.as_strategy())
    @settings(max_examples=CASES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    def every_case(case: schemathesis.Case[Any]) -> None:
        if label.endswith(("/claim", "/barrier")):
            case.query = {**(case.query or {}), "wait": 0}
        response = case.call(base_url=url, timeout=60)
        case.validate_response(response, checks=checks)

    every_case()
