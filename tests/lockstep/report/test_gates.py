"""Integrity gates: each can fail, can be unchecked, and says which."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lockstep.report import build_report
from lockstep.report.findings.clock import due_analyses
from lockstep.report.findings.gates import Gate, flag_gates, void_gates
from lockstep.report.inputs import LostBlocks, ReportInputs, RunFacts, ScoreRow, one_after_another
from lockstep.report.rendering.tables import flag_texts
from tests.lockstep.report.factories import Cell, make_analysis, make_inputs

SCORES: dict[str, list[Cell]] = {
    "a": [70.0, 71.0, 72.0, 73.0, 74.0, 75.5],
    "b": [60.0, 62.0, 61.0, 66.0, 63.0, 64.0],
}


def _changed(inputs: ReportInputs, **changes: Any) -> ReportInputs:
    """Return inputs in which the first run has other facts."""
    first, *rest = inputs.runs
    return replace(inputs, runs=(replace(first, **changes), *rest))


def _gates(inputs: ReportInputs) -> tuple[Gate, ...]:
    """Return every gate, for the last analysis that is due."""
    return (*void_gates(inputs), *flag_gates(inputs, due_analyses(inputs)[-1]))


def _state(inputs: ReportInputs, gate: str) -> str:
    return next(g.state for g in _gates(inputs) if g.gate == gate)


def test_gates_good_experiment_all_pass() -> None:
    assert {g.state for g in _gates(make_inputs(SCORES))} == {"pass"}


def test_gates_without_run_facts_are_not_checked_never_pass() -> None:
    states = {g.gate: g.state for g in _gates(replace(make_inputs(SCORES), runs=()))}
    assert states["evaluator"] == states["replicate seeds shared"] == states["one driver"] == "not checked"
    assert states["analysis as registered"] == "pass"


@pytest.mark.parametrize(
    ("gate", "changes"),
    [
        ("evaluator", {"evaluator": "2"}),
        ("plug-in code", {"plugins": {"mine": "mypackage 2.0 (0b2c)"}}),
        ("evaluation seeds", {"eval_seeds": "other"}),
        ("evaluation episodes", {"eval_episodes": 9}),
        ("environment steps", {"env_steps": 4097}),
        ("replicate seeds shared", {"replicate_seed": 1}),
        ("code revision", {"code_revision": "fffffff"}),
        ("no result chosen by hand", {"repeated_by_hand": True}),
    ],
)
def test_void_gate_one_deviating_run_invalidates_the_comparison(gate: str, changes: dict[str, Any]) -> None:
    inputs = _changed(make_inputs(SCORES), **changes)
    assert _state(inputs, gate) == "fail"
    report = build_report(inputs)
    assert report["verdict"]["code"] == "INVALID"
    assert report["verdict"]["winner"] is None
    assert report["verdict"]["sentence"].startswith("Not analysed: ")


def test_code_that_changed_inside_of_every_run_is_seen_though_all_runs_are_alike() -> None:
    before, after = {"mine": "mypackage 1.0 (0a1b)"}, {"mine": "mypackage 1.0 (0b2c)"}
    changed = one_after_another(before, after)
    assert one_after_another(before, before) == before
    assert one_after_another(changed, after) == changed  # resumed once more with the same code
    inputs = make_inputs(SCORES)
    inputs = replace(inputs, runs=tuple(replace(run, plugins=changed) for run in inputs.runs))
    assert _state(inputs, "plug-in code") == "fail"


@pytest.mark.parametrize("name", ["evaluator", "eval_seeds", "replicate_seed", "env_steps", "code_revision"])
def test_void_gate_one_unrecorded_fact_is_not_checked(name: str) -> None:
    inputs = _changed(make_inputs(SCORES), **{name: None})
    assert "not checked" in {g.state for g in _gates(inputs)}
    assert "fail" not in {g.state for g in _gates(inputs)}


def test_changed_analysis_hash_invalidates() -> None:
    report = build_report(make_inputs(SCORES, registered_hash="0" * 64))
    assert report["verdict"]["code"] == "INVALID"
    assert report["registration"]["as_registered"] is False


def test_successful_run_without_primary_score_invalidates() -> None:
    inputs = make_inputs(SCORES)
    holed = tuple(replace(row, raw=None) if row.run_id == "a-0" else row for row in inputs.scores)
    assert _state(replace(inputs, scores=holed), "primary metric present") == "fail"
    gone = tuple(row for row in inputs.scores if row.run_id != "a-0")
    assert build_report(replace(inputs, scores=gone))["verdict"]["code"] == "INVALID"


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"driver": "571.0"}, "DRIVER_DIFFERS"),
        ({"resumed_at": (2,)}, "RESUMED_RUNS"),
        ({"deterministic": False}, "NONDETERMINISTIC"),
    ],
)
def test_flag_gate_warns_but_keeps_the_verdict(changes: dict[str, Any], flag: str) -> None:
    report = build_report(_changed(make_inputs(SCORES), **changes))
    assert flag in report["verdict"]["flags"]
    assert report["verdict"]["code"] == "WINNER_MEANINGFUL"


def test_arm_tied_to_a_device_is_flagged_as_confounded() -> None:
    inputs = make_inputs(SCORES)
    tied = tuple(replace(run, device="gpu0" if run.arm == "a" else "gpu1") for run in inputs.runs)
    report = build_report(replace(inputs, runs=tied))
    assert "HARDWARE_CONFOUNDED" in report["verdict"]["flags"]
    assert report["facts"]["balanced"] is False


def test_unpaired_design_needs_no_shared_seeds() -> None:
    inputs = make_inputs(SCORES, make_analysis(6, paired=False))
    own = tuple(replace(run, replicate_seed=hash(run.run_id) % 1000) for run in inputs.runs)
    assert _state(replace(inputs, runs=own), "replicate seeds shared") == "pass"


def test_incomplete_and_lost_blocks_are_flagged() -> None:
    scores: dict[str, list[Cell]] = {"a": [*SCORES["a"], "lost"], "b": [*SCORES["b"], 65.0]}
    fault = LostBlocks("environment", "reward mode 'mine' raised KeyError: 'speed'", (6,), "b-6", ("b",))
    report = build_report(make_inputs(scores, lost_blocks=(fault,)))
    assert {"INCOMPLETE", "MANY_LOST"} <= set(report["verdict"]["flags"])
    said = "1 of 7 blocks failed with cause environment in the code of arm `b`: reward mode 'mine' raised KeyError"
    assert said in dict(flag_texts(report))["MANY_LOST"]
    assert "outside" not in dict(flag_texts(report))["MANY_LOST"]


def test_cancelled_run_is_flagged() -> None:
    inputs = make_inputs(SCORES)
    extra = tuple(ScoreRow(a, 6, f"{a}-6", "eval/accuracy", None, "lost", "user") for a in "ab")
    report = build_report(replace(inputs, scores=(*inputs.scores, *extra)))
    assert "CANCELLED_BY_USER" in report["verdict"]["flags"]


def test_run_facts_defaults_mean_not_recorded() -> None:
    facts = RunFacts("a", 0, "a-0", "ok")
    assert (facts.device, facts.env_steps, facts.deterministic) == (None, None, None)
