"""The report as a person sees and prints it: nothing wider than the window or the paper."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page

from lockstep.report import build_report, render_html
from tests.lockstep.report.factories import Cell, make_analysis, make_inputs

pytestmark = pytest.mark.browser

NAMES = ("shaped-with-potential", "simplified-sparse-bonus", "sparse-terminal-only", "noop-host-alone")


def report_page(**fields: Any) -> str:
    scores: dict[str, list[Cell]] = {
        name: [60.0 + 3 * k + (i * (k + 3)) % 7 for i in range(8)] for k, name in enumerate(NAMES)
    }
    return render_html(build_report(make_inputs(scores, make_analysis(8, **fields))))


@pytest.mark.parametrize(
    "fields",
    [{}, {"comparisons": "all_pairs", "paired": False, "sesoi": 30.0}, {"looks": {"mode": "anytime"}}],
    ids=["winner", "all pairs", "anytime"],
)
def test_every_table_fits_at_1100_px_and_on_paper(page: Page, fields: dict[str, Any]) -> None:
    text = report_page(**fields)
    # 182 mm of A4 between its margins, at 96 px to the inch
    for media, width in (("screen", 1100), ("print", 688)):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(media=media)  # type: ignore[arg-type]
        page.set_content(text)
        tables = page.locator("table").evaluate_all(
            "all => all.map(t => [t.querySelector('th').textContent, t.offsetWidth, t.parentElement.clientWidth])"
        )
        assert [t for t in tables if t[1] > t[2]] == [], (media, width)
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_equal_scores_of_an_arm_do_not_hide_one_another(page: Page) -> None:
    scores: dict[str, list[Cell]] = {"a": [500.0] * 10, "b": [*[500.0] * 9, 480.0]}
    page.set_content(render_html(build_report(make_inputs(scores, make_analysis(10)))))
    places = page.locator("svg[aria-label='Score of every replicate'] circle.arm0").evaluate_all(
        "all => all.map(c => c.getBoundingClientRect().x)"
    )
    gaps = [b - a for a, b in zip(sorted(places), sorted(places)[1:], strict=False)]
    assert len(places) == 10
    assert min(gaps) > 4
