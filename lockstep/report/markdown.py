"""The report as Markdown text: the same sentences and tables, no plots."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape
from typing import Any

from lockstep.report.facing import treatment_first
from lockstep.report.tables import TextTable, all_tables, fact_items, flag_texts
from lockstep.report.words.glossary import verdict_words

_SPECIAL = re.compile(r"([\\`*_{}\[\]|#])")


def render_markdown(report: Mapping[str, Any]) -> str:
    """Return the report as Markdown; free text is escaped so that it stays text."""
    report = treatment_first(report)
    verdict = report["verdict"]
    suffix = f" {verdict['suffix']}" if verdict["suffix"] else ""
    lines = [
        f"# {text(report['name'])}",
        "",
        f"**{text(verdict['code'] + suffix)}**: {escape(verdict['sentence'], quote=False)}",
        "",
        verdict_words(verdict)[1],
        "",
        *(f"- {text(flag)}: {text(meaning)}" for flag, meaning in flag_texts(report)),
        "",
        "## Facts",
        "",
        *(f"- {text(term)}: {text(value)}" for term, value in fact_items(report)),
        "",
    ]
    for table in all_tables(report):
        lines += _table(table)
    lines += ["## Method", "", text(report["methods_sentence"]), ""]
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    lines += [f"Experiment {text(report['experiment_id'])}, generated {report['generated_utc']}; {versions}."]
    return "\n".join(lines) + "\n"


def text(value: str) -> str:
    """Return free text with Markdown's special characters escaped, on one line."""
    return _SPECIAL.sub(r"\\\1", escape(" ".join(value.split()), quote=False))


def _table(table: TextTable) -> list[str]:
    return [
        f"## {text(table.title)}",
        "",
        f"| {' | '.join(text(name) for name in table.header)} |",
        f"|{'---|' * len(table.header)}",
        *(f"| {' | '.join(text(cell) for cell in row)} |" for row in table.rows),
        "",
        *([text(table.note), ""] if table.note else []),
    ]
