"""The report as Markdown text: the same sentences and tables, no plots."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from lockstep.report.facing import treatment_first
from lockstep.report.rendering.tables import TextTable, all_tables, fact_items, flag_texts
from lockstep.report.words.glossary import verdict_words

#: What Markdown takes for more than text: an underscore only at the edge of a word, a bracket where a link goes on,
#: a number sign where a line begins.
_SPECIAL = re.compile(r"([\\`*|]|(?<![^\W_])_|_(?![^\W_])|\](?=[(:\[])|^#)")
#: What HTML takes for more than text: the beginning of a tag, and of the name of a character.
_TAG, _NAMED = re.compile(r"<(?=[A-Za-z/!?])"), re.compile(r"&(?=#|\w+;)")


def render_markdown(report: Mapping[str, Any]) -> str:
    """Return the report as Markdown; free text is escaped so that it stays text."""
    report = treatment_first(report)
    verdict = report["verdict"]
    suffix = f" {verdict['suffix']}" if verdict["suffix"] else ""
    lines = [
        f"# {text(report['name'])}",
        "",
        f"**{text(verdict['code'] + suffix)}**: {_without_tags(verdict['sentence'])}",
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
    return _SPECIAL.sub(r"\\\1", _without_tags(" ".join(value.split())))


def _without_tags(value: str) -> str:
    return _TAG.sub("&lt;", _NAMED.sub("&amp;", value))


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
