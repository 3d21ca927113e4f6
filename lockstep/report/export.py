"""Everything that is handed out with a report, and the way back from scores.csv."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from lockstep.report import recompute
from lockstep.report.build import build_report, report_json
from lockstep.report.csv import inputs_from_csv, scores_csv
from lockstep.report.inputs import ReportInputs
from lockstep.report.rendering.html import render_html
from lockstep.report.rendering.markdown import render_markdown


def report_from_scores_csv(
    text: str, registration: Mapping[str, Any], generated_utc: str = "", code_version: str = "0"
) -> dict[str, Any]:
    """Return the report computed again from scores.csv and the ``registration`` block of report.json.

    Facts that are not in scores.csv (device time, integrity of runs) come out as not checked; every
    statistic of the verdict is the same.
    """
    return build_report(inputs_from_csv(text, registration, generated_utc, code_version))


def recompute_script() -> str:
    """Return the source of recompute.py: checks report.json by plain counting, without Lockstep."""
    return inspect.getsource(recompute)


def report_files(inputs: ReportInputs) -> dict[str, str]:
    """Return every file of a report by name: JSON, HTML, Markdown, CSV and the recompute script."""
    report = build_report(inputs)
    return {
        "report.json": report_json(report),
        "report.html": render_html(report),
        "report.md": render_markdown(report),
        "scores.csv": scores_csv(inputs),
        "recompute.py": recompute_script(),
    }
