"""Labels that name another arm as the baseline than the one that differences are taken from are a warning."""

from __future__ import annotations

from typing import Any

import pytest

from lockstep.spec.resolve import parse
from lockstep.spec.rules import check
from tests.factories import cartpole_spec


def told_of(labels: list[str], **analysis: Any) -> list[str]:
    arms = [{"label": label, "overrides": {"ppo.lr": 1e-4 * (n + 1)}} for n, label in enumerate(labels)]
    raw = cartpole_spec(arms=arms)
    raw["analysis"] = {**raw.get("analysis", {}), **analysis}
    return [text for text in check(parse(raw))[1] if text.startswith("arms: ")]


@pytest.mark.parametrize(
    ("labels", "analysis", "baseline", "meant"),
    [
        (["faster", "baseline"], {}, "faster", "baseline"),
        (["lr-1e-3", "Control-3e-4", "lr_2"], {}, "lr-1e-3", "Control-3e-4"),
        (["treatment", "plain"], {}, "treatment", "plain"),
        (["new-lr", "old-lr"], {}, "new-lr", "old-lr"),
        (["control", "faster"], {"comparisons": "vs_control", "control": "faster"}, "faster", "control"),
    ],
)
def test_a_label_that_names_another_baseline_is_a_warning(
    labels: list[str], analysis: dict[str, Any], baseline: str, meant: str
) -> None:
    [told] = told_of(labels, **analysis)
    assert told.startswith(f"arms: {baseline!r} is the baseline, for it ")
    assert f"differences are {meant!r} minus {baseline!r}" in told
    remedy = f"set analysis.control: {meant}" if analysis else "name it first"
    assert told.endswith(f"if {meant!r} is the baseline, {remedy}")


@pytest.mark.parametrize(
    ("labels", "analysis"),
    [
        (["baseline", "faster"], {}),
        (["base", "control"], {}),
        (["a", "b"], {}),
        (["news", "database"], {}),
        (["faster", "control"], {"comparisons": "vs_control", "control": "control"}),
        (["plain", "treatment"], {}),
    ],
)
def test_labels_that_fit_their_roles_are_none(labels: list[str], analysis: dict[str, Any]) -> None:
    assert told_of(labels, **analysis) == []
