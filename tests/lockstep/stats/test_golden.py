"""Every golden case of the statistics specification, through the functions the report uses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.golden_adapter import evaluate

GOLDEN = json.loads((Path(__file__).parents[2] / "data" / "stats_golden.json").read_text())
CASES = {case["id"]: case for case in GOLDEN["cases"]}


def _close(actual: Any, expected: Any, tol: float, path: str) -> None:
    if isinstance(expected, Mapping):
        for name, value in expected.items():
            _close(actual[name], value, tol, f"{path}.{name}")
    elif isinstance(expected, list):
        assert isinstance(actual, list), f"{path}: {actual!r} is not a list"
        assert len(actual) == len(expected), path
        for i, value in enumerate(expected):
            _close(actual[i], value, tol, f"{path}[{i}]")
    elif isinstance(expected, (bool, str)) or expected is None:
        assert actual == expected, f"{path}: {actual!r} != {expected!r}"
        assert not isinstance(actual, float) or expected is not None
    else:
        assert actual is not None, path
        assert abs(actual - expected) <= max(tol, tol * abs(expected)) + 1e-15, f"{path}: {actual} != {expected}"


def _check(case: Mapping[str, Any]) -> None:
    actual = evaluate(case["key"], case["inputs"])
    tol = case["tol"]
    for name, expected in case["expected"].items():
        own = tol.get(name, tol["default"]) if isinstance(tol, Mapping) else tol
        _close(actual[name], expected, own, f"{case['id']}.{name}")


@pytest.mark.parametrize("case_id", sorted(CASES))
def test_golden_case_inputs_give_expected(case_id: str) -> None:
    _check(CASES[case_id])


def test_golden_file_all_cases_are_present() -> None:
    assert len(CASES) == GOLDEN["n_cases"] == 62


def test_golden_adapter_unknown_key_is_not_implemented() -> None:
    with pytest.raises(NotImplementedError):
        evaluate("astrology", {})
