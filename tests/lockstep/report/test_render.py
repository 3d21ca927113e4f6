"""Rendered reports: self-contained, escaped, worded with care, and recomputable."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from lockstep.report import (
    build_report,
    recompute_script,
    render_html,
    render_markdown,
    report_files,
    report_from_scores_csv,
    safe_cell,
    scores_csv,
)
from lockstep.report.facing import treatment_first
from lockstep.report.inputs import ArmFacts, ConfigDifference, Extension, LearningRow, ReportInputs
from lockstep.report.numbers import p_text, plain, signed
from lockstep.report.rendering.markdown import text as markdown_text
from lockstep.report.rendering.plots import padded, ticks
from tests.lockstep.report.factories import Cell, curve_points, make_analysis, make_inputs, score_rows

A: list[Cell] = [70.0, 71.0, 72.0, 73.0, 74.0, 75.5, 71.2, 70.4, 72.9, 73.3, 74.8]
B: list[Cell] = [60.0, 62.0, 61.0, 66.0, 63.0, 64.0, 61.7, "failed", 65.2, 63.9, 62.2]
EVIL = '<script>alert(1)</script>"&`|'


def full_inputs(**changes: Any) -> ReportInputs:
    steps = [1, 2, 3, 4]
    curves = {
        arm: [[50.0 + r + 4 * s + (2 * s if arm == "a" else 0) for s in steps] for r in range(11)] for arm in "ab"
    }
    analysis = make_analysis(
        11,
        threshold=68.0,
        curve={"metric": "eval/accuracy", "at": [2, 4]},
        secondary=["eval/loss"],
        guardrails=[{"metric": "eval/param_ratio", "max_harm": 0.5}],
        bayes_panel=True,
    )
    extra = score_rows({k: [1.0 + 0.01 * i for i in range(11)] for k in "ab"}, "eval/loss")
    extra += score_rows({k: [1.5 + 0.01 * (i % 3) for i in range(11)] for k in "ab"}, "eval/param_ratio")
    fields = {"curves": curve_points(curves, steps)} | changes
    return make_inputs({"a": A, "b": B}, analysis, extra, **fields)


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.balance: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.opened.append(tag)
        self.attributes += attrs
        if tag not in ("meta", "polyline", "polygon", "wbr"):
            self.balance.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.opened.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.balance.pop() == tag


def _parsed(page: str) -> _Tags:
    tags = _Tags()
    tags.feed(page)
    return tags


def test_html_is_self_contained_without_script_or_request() -> None:
    page = render_html(build_report(full_inputs()))
    tags = _parsed(page)
    assert tags.balance == []
    assert not {"script", "link", "img", "iframe", "object"} & set(tags.opened)
    assert not [name for name, _ in tags.attributes if name == "src" or name.startswith("on")]
    links = [value for name, value in tags.attributes if name == "href"]
    assert len(links) > 5
    assert set(links) <= {f"#{value}" for name, value in tags.attributes if name == "id"}  # within the page
    assert "url(" not in page
    assert "prefers-color-scheme:dark" in page


def test_html_has_every_plot_with_n_and_the_name_of_its_band() -> None:
    page = render_html(build_report(full_inputs()))
    for title in (
        "Every replicate",
        "Differences",
        "Learning curves",
        "Distribution of runs",
        "Time to threshold",
    ):
        assert re.search(rf'<h2 id="plot-\d+">{title}</h2>\n<figure>', page)
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", page)
    assert len(captions) == 5
    assert all("n = 11" in caption or "n = 11" in page for caption in captions)
    assert "pointwise 95 % t interval" in page
    assert "95 % t interval" in captions[0]


def test_html_sequential_designs_show_statistic_against_boundary() -> None:
    looks = {"mode": "planned", "at": [7, 14]}
    planned = make_inputs({"a": A, "b": B}, make_analysis(14, looks=looks))
    anytime = make_inputs({"a": A, "b": B}, make_analysis(11, looks={"mode": "anytime"}))
    for inputs in (planned, anytime):
        assert ">Looks at the data</h2>" in render_html(build_report(inputs))


def test_html_and_markdown_escape_free_text() -> None:
    arms = (
        ArmFacts("a", EVIL, "ppo", (ConfigDifference("reward.mode", EVIL, EVIL),)),
        ArmFacts("b", "x", "ppo", ()),
    )
    report = build_report(full_inputs(name=EVIL, arms=arms, notes={"gpu": EVIL}))
    page = render_html(report)
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert _parsed(page).balance == []
    text = render_markdown(report)
    assert "<script" not in text
    assert "&lt;script>" in text


def test_markdown_escapes_only_what_would_be_more_than_text() -> None:
    told = "eval/native_return_mean of arm_1 [95 % CI -1, 2], p < .001 & n > 5"
    assert markdown_text(told) == told
    marked = "# *a* _b_ `c` | [d](e) [f]: g <b> &amp; \\"
    assert markdown_text(marked) == "\\# \\*a\\* \\_b\\_ \\`c\\` \\| [d\\](e) [f\\]: g &lt;b> &amp;amp; \\\\"


@pytest.mark.parametrize(
    "scores",
    [
        {"a": A, "b": B},
        {"a": A[:1], "b": B[:1]},
        {"a": A[:5], "b": B[:5]},
        {"a": A[:7], "b": A[:7]},
        {"a": ["failed"] * 6, "b": ["failed"] * 6},
        {"a": ["lost"] * 6, "b": ["lost"] * 6},
        {"a": A, "b": B, "c": [x - 20 if isinstance(x, float) else x for x in A]},
    ],
)
def test_render_words_are_never_bare_significance_trend_or_chance(scores: dict[str, list[Cell]]) -> None:
    report = build_report(make_inputs(scores))
    for text in (render_html(report), render_markdown(report), report["verdict"]["sentence"]):
        low = text.lower()
        assert "significan" not in low
        assert "trend" not in low
        assert "no difference" not in low
        assert "nan" not in re.findall(r"[a-z]+", low)
        assert "p = 0 " not in low


def test_html_unreachable_p_is_not_printed_but_stays_in_the_data() -> None:
    report = build_report(make_inputs({"a": A[:5], "b": [60.0, 62.0, 61.0, 66.0, 63.0]}))
    assert report["comparisons"][0]["p"] == 0.0625
    assert "0625" not in render_html(report)
    assert "0625" not in render_markdown(report)
    assert "not shown" in render_html(report)


def test_markdown_has_verdict_tables_and_method() -> None:
    text = render_markdown(build_report(full_inputs()))
    for part in ("# shaped against simplified", "## Arms", "## Differences", "## Integrity", "## Method"):
        assert part in text


def test_html_exploratory_items_are_greyed_and_named() -> None:
    inputs = make_inputs({"a": A, "b": A}, make_analysis(6), planned_blocks=6)
    page = render_html(build_report(replace(inputs, extension=Extension(6, "2026-11-28", "close"))))
    assert "EXPLORATORY: all 11 blocks together" in page
    assert '<tr class="exploratory">' in page


@pytest.mark.parametrize("text", ["=cmd|' /C calc'!A0", "+1", "-1", "@x", "\tx", "\rx"])
def test_csv_formula_cells_get_an_apostrophe(text: str) -> None:
    assert safe_cell(text) == f"'{text}"


def test_csv_numbers_stay_numbers_and_columns_are_fixed() -> None:
    lines = scores_csv(make_inputs({"a": [-5.0, 1.0], "b": [2.0, "failed"]})).splitlines()
    assert lines[0] == "arm,replicate,metric,raw,oriented,status,device"
    assert lines[1] == "a,0,eval/accuracy,-5.0,-5.0,ok,gpu0"
    assert lines[4] == "b,1,eval/accuracy,,,failed,gpu1"


def test_csv_labels_that_look_like_formulas_survive_the_round_trip() -> None:
    inputs = make_inputs({"-a": A, "b": B})
    text = scores_csv(inputs)
    assert "\n'-a,0," in text
    again = report_from_scores_csv(text, build_report(inputs)["registration"])
    assert again["verdict"]["winner"] == "-a"


def test_rendered_differences_are_treatment_minus_baseline_in_every_table() -> None:
    report = build_report(full_inputs())
    [given] = report["comparisons"]
    [shown] = treatment_first(report)["comparisons"]
    assert (shown["a"], shown["b"], shown["estimate"]) == ("b", "a", -given["estimate"])
    assert shown["ci_superiority"] == [-given["ci_superiority"][1], -given["ci_superiority"][0]]
    assert shown["effect"]["A12"] == pytest.approx(1 - given["effect"]["A12"])
    assert shown["pairs"][0] == {"replicate": 0, "a": B[0], "b": A[0], "difference": -10.0}
    assert treatment_first(treatment_first(report) | {"comparisons": [shown]})["comparisons"] == [given]
    text = render_markdown(report)
    assert "| b - a |" in text
    assert "a - b" not in text + render_html(report)
    controlled = build_report(make_inputs({"a": A, "b": B}, make_analysis(11, comparisons="vs_control", control="b")))
    assert "| a - b |" in render_markdown(controlled)


RECOMPUTED = (
    "table comparisons learning omnibus guardrails secondary curve failures sensitivity leave_one_out scores profile "
    "sequential more bayes methods_sentence scores_sha256"
)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"estimand": "mean"},
        {"paired": False},
        {"primary": {"metric": "eval/loss", "direction": "min"}, "failure": {"floor": 99.0}},
        {"looks": {"mode": "anytime"}},
        {"bayes_panel": True, "comparisons": "all_pairs"},
    ],
)
def test_every_statistic_is_recomputable_from_scores_csv(fields: dict[str, Any]) -> None:
    learning = tuple(LearningRow(a, r, "train/accuracy_mean", 50.0, 55.0 + r) for a in "abc" for r in range(11))
    inputs = make_inputs({"a": A, "b": B, "c": ["lost", *A[1:]]}, make_analysis(11, **fields), learning=learning)
    report = build_report(inputs)
    again = report_from_scores_csv(scores_csv(inputs), report["registration"], code_version="0.1.0")
    for name in RECOMPUTED.split():
        assert again[name] == report[name], name
    assert again["verdict"]["code"] == report["verdict"]["code"]


def test_curve_test_is_recomputable_from_scores_csv() -> None:
    report = build_report(full_inputs())
    again = report_from_scores_csv(scores_csv(full_inputs()), report["registration"])
    assert report["curve"]["p_adj"] is not None
    assert again["curve"] == report["curve"]


def test_csv_with_foreign_columns_is_refused() -> None:
    registration = build_report(full_inputs())["registration"]
    with pytest.raises(ValueError, match="columns"):
        report_from_scores_csv("arm,score\na,1\n", registration)


@pytest.mark.parametrize(
    "fields",
    [{}, {"estimand": "mean"}, {"paired": False}, {"paired": False, "estimand": "mean"}],
    ids=["signed-rank", "sign-flip", "rank", "permutation"],
)
def test_exported_script_agrees_and_notices_a_changed_number(tmp_path: Path, fields: dict[str, Any]) -> None:
    for name, text in report_files(make_inputs({"a": A[:7], "b": B[:8]}, make_analysis(8, **fields))).items():
        (tmp_path / name).write_text(text)

    def run() -> subprocess.CompletedProcess[str]:
        # -S -E would hide numpy; the script runs away from the repository and may not import it
        command = [sys.executable, str(tmp_path / "recompute.py"), str(tmp_path)]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)

    done = run()
    assert (done.returncode, done.stderr) == (0, "")
    assert "agrees" in done.stdout
    report = json.loads((tmp_path / "report.json").read_text())
    report["comparisons"][0]["p"] *= 1.5
    (tmp_path / "report.json").write_text(json.dumps(report))
    assert run().returncode == 1


def test_exported_script_imports_nothing_of_the_project() -> None:
    assert not re.search(r"^\s*(from|import) (app|worker)", recompute_script(), re.MULTILINE)


def test_numbers_are_written_plainly() -> None:
    assert [plain(v) for v in (0.0, 4.1, 0.041, 12345.6, None, 2e7)] == [
        "0",
        "4.10",
        "0.0410",
        "12346",
        "n/a",
        "2.00e+07",
    ]
    assert [signed(v) for v in (1.0, -1.0, 0.0)] == ["+1.00", "-1.00", "0"]
    assert [p_text(p) for p in (0.03125, 0.0078125, 1.0, 1e-6, None)] == [
        "= .031",
        "= .0078",
        "= 1",
        "< .0001",
        "n/a",
    ]


def test_axis_ticks_are_round_and_ranges_never_empty() -> None:
    assert ticks(0.0, 1.0) == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    low, high = padded([3.0, 3.0])
    assert low < 3.0 < high
