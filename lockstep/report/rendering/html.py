"""The report as one self-contained HTML page: no script, no request, light and dark, printable.

The page stands in ``report.html.jinja``, its style in ``report.css``. Every text of a report is escaped by the
template engine; only plots, which escape their own text, and code spans made here are markup.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from lockstep.report.facing import treatment_first
from lockstep.report.rendering.plots import plots
from lockstep.report.rendering.tables import all_tables, fact_items, flag_texts
from lockstep.report.words.glossary import GLOSSARY, verdict_words

Report = Mapping[str, Any]
_HERE = Path(__file__).parent
_STATES = {"pass": "pass", "fail": "fail", "harm": "harm", "unproven": "unproven", "not checked": "unchecked"}
#: Columns that hold sentences rather than numbers.
_TEXT_COLUMNS = (
    "detail",
    "result",
    "setting",
    "base",
    "this arm",
    "Fisher against",
    "gate",
    "comparison",
    "reward",
    "test",
)


def render_html(report: Report) -> str:
    """Return the page; every text of the report is escaped."""
    report = treatment_first(report)
    tone, meaning = verdict_words(report["verdict"])
    return _TEMPLATE.render(
        report=report,
        style=Markup((_HERE / "report.css").read_text(encoding="utf-8")),  # noqa: S704 - our own style sheet
        tone=tone,
        meaning=meaning,
        flags=flag_texts(report),
        facts=fact_items(report),
        plots=plots(report),
        tables=all_tables(report),
        text_columns=_TEXT_COLUMNS,
        states=_STATES,
        glossary=GLOSSARY,
    )


def code_spans(text: str) -> Markup:
    """Return escaped text with `names` in backticks set as code."""
    parts = str(escape(text)).split("`")
    # every part was escaped above
    return Markup("".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts)))  # noqa: S704


def breakable(text: str) -> Markup:
    """Return escaped text that may go on in the next line after an underscore."""
    return Markup(str(escape(text)).replace("_", "_<wbr>"))  # noqa: S704 - escaped above


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=False
    )
    environment.filters |= {"code_spans": code_spans, "breakable": breakable}
    return environment


_TEMPLATE = _environment().get_template("report.html.jinja")
