"""The statistical report: what the analysis concludes and the documents that say so.

``inputs`` (what is handed in), ``build_report`` (the report as strict JSON data) and renderers to
HTML, Markdown and CSV. Verdict sentences come from fixed templates only.
"""

from lockstep.report.build import build_report, report_json
from lockstep.report.csv import safe_cell, scores_csv
from lockstep.report.export import recompute_script, report_files, report_from_scores_csv
from lockstep.report.rendering.html import render_html
from lockstep.report.rendering.markdown import render_markdown

__all__ = [
    "build_report",
    "recompute_script",
    "render_html",
    "render_markdown",
    "report_files",
    "report_from_scores_csv",
    "report_json",
    "safe_cell",
    "scores_csv",
]
