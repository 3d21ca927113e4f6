"""The report as one self-contained HTML page: no script, no request, light and dark, printable."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from app.domain.report.explain import GLOSSARY, VERDICTS
from app.domain.report.page_style import STYLE
from app.domain.report.plots import plots
from app.domain.report.tables import TextTable, all_tables, fact_items, flag_texts

Report = Mapping[str, Any]
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
)


def render_html(report: Report) -> str:
    """Return the page; every text of the report is escaped."""
    title = escape(f"{report['name']}: report")
    body = "".join(
        [
            f"<h1>{escape(report['name'])}</h1>",
            _verdict(report),
            _facts(report),
            _legend(report),
            "".join(_figure(*plot) for plot in plots(report)),
            "".join(_table(table) for table in all_tables(report)),
            f"<h2>Method</h2><p>{_code_spans(report['methods_sentence'])}</p>",
            _glossary(),
            _footer(report),
        ]
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{STYLE}</style></head><body><main>{body}</main></body></html>\n"
    )


def _verdict(report: Report) -> str:
    verdict = report["verdict"]
    tone, meaning = VERDICTS[verdict["code"]]
    suffix = f" {verdict['suffix']}" if verdict["suffix"] else ""
    reason = f" ({verdict['reason']})" if verdict["reason"] else ""
    flags = "".join(
        f'<li><span class="flag">{escape(flag)}</span>{escape(text)}</li>' for flag, text in flag_texts(report)
    )
    return (
        f'<section class="verdict {tone}"><div class="code">{escape(verdict["code"] + suffix + reason)}</div>'
        f'<p class="sentence">{_code_spans(verdict["sentence"])}</p><p class="soft">{escape(meaning)}</p>'
        f"{f'<ul>{flags}</ul>' if flags else ''}</section>"
    )


def _facts(report: Report) -> str:
    items = "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in fact_items(report))
    return f'<dl class="facts">{items}</dl>'


def _legend(report: Report) -> str:
    arms = enumerate(report["facts"]["arms"])
    return '<p class="legend">' + "".join(f'<span><i class="arm{i}"></i>{escape(a)}</span>' for i, a in arms) + "</p>"


def _figure(title: str, caption: str, svg: str) -> str:
    return f"<h2>{escape(title)}</h2><figure>{svg}<figcaption>{_code_spans(caption)}</figcaption></figure>"


def _table(table: TextTable) -> str:
    text = [name in _TEXT_COLUMNS for name in table.header]
    head = "".join(
        f"<th{' class=text' if is_text else ''}>{escape(name)}</th>"
        for name, is_text in zip(table.header, text, strict=True)
    )
    css = ' class="exploratory"' if table.muted else ""
    rows = "".join(
        f"<tr{css}>{''.join(_cell(cell, is_text) for cell, is_text in zip(row, text, strict=True))}</tr>"
        for row in table.rows
    )
    note = f"<p><small>{escape(table.note)}</small></p>" if table.note else ""
    return (
        f'<h2>{escape(table.title)}</h2><div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>{note}"
    )


def _cell(text: str, is_text: bool) -> str:
    css = " ".join(name for name in ("text" if is_text else "", _STATES.get(text, "")) if name)
    return f"<td{f' class={chr(34)}{css}{chr(34)}' if css else ''}>{escape(text)}</td>"


def _glossary() -> str:
    items = "".join(f"<p><b>{escape(term)}</b>: {escape(text)}</p>" for term, text in GLOSSARY)
    return f'<h2>How to read this</h2><div class="box">{items}</div>'


def _footer(report: Report) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    text = (
        f"Experiment {report['experiment_id']}, report schema {report['schema']}, "
        f"generated {report['generated_utc']}; {versions}; "
        f"scores.csv SHA-256 {report['scores_sha256'][:16]}; analysis seed {report['seeds']['analysis']}."
    )
    return f"<p><small>{escape(text)}</small></p>"


def _code_spans(text: str) -> str:
    """Return escaped text with `names` in backticks set as code."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))
