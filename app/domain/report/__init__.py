"""The statistical report: what the analysis concludes and the documents that say so.

``inputs`` (what is handed in), ``build_report`` (the report as strict JSON data) and renderers to
HTML, Markdown and CSV. Verdict sentences come from fixed templates only.
"""

from app.domain.report.build import build_report, report_json
from app.domain.report.csv_scores import safe_cell, scores_csv
from app.domain.report.export import recompute_script, report_files, report_from_scores_csv
from app.domain.report.html import render_html
from app.domain.report.markdown import render_markdown

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
