"""The report as one self-contained HTML page: no script, no request, light and dark, printable.

The style sheet of the HTML report: light and dark by the reader's setting, printable, no requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from lockstep.report.plots import plots
from lockstep.report.tables import TextTable, all_tables, fact_items, flag_texts
from lockstep.report.wording import GLOSSARY, VERDICTS

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


STYLE = """
:root{--bg:#fbfbfa;--panel:#fff;--ink:#1d2126;--soft:#5b6470;--line:#d9dde2;--grid:#e8ebee;
--accent:#0b5cad;
--good:#1b7f4b;--bad:#b3261e;--wait:#8a5a00;--sesoi:#c9b25a;--arm0:#0072b2;--arm1:#d55e00;--arm2:#009e73;
--arm3:#a5538a;--arm4:#6b5b00;--arm5:#3a86c8;--arm6:#7a7a7a;--arm7:#8c3b2f;color-scheme:light dark}
@media (prefers-color-scheme:dark){:root{--bg:#14171a;--panel:#1c2024;--ink:#e7eaee;--soft:#9aa4b0;
--line:#343a41;
--grid:#2a2f35;--accent:#7ab8f5;--good:#63c994;--bad:#f2857d;--wait:#e0b35a;--sesoi:#8f7f3a;
--arm0:#56b4e9;
--arm1:#f0914d;--arm2:#3fc79a;--arm3:#d894c2;--arm4:#d8c84a;--arm5:#9cc9ee;--arm6:#b0b0b0;--arm7:#d98c80}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);font:16px/1.55 system-ui,sans-serif}
main{max-width:60rem;margin:0 auto;padding:1.5rem 1rem 4rem}
h1{font-size:1.5rem;margin:.2rem 0 1rem}h2{font-size:1.15rem;margin:2.2rem 0 .6rem}
p{margin:.5rem 0}small,.soft,figcaption{color:var(--soft)}code{font-size:.92em}
.verdict,figure,.box{background:var(--panel);border:1px solid var(--line);border-radius:8px;
padding:1rem 1.2rem;margin:1rem 0}
.verdict{border-left:6px solid var(--wait)}.verdict.good{border-left-color:var(--good)}
.verdict.bad{border-left-color:var(--bad)}.verdict .code{font-weight:650;letter-spacing:.02em}
.verdict .sentence{font-size:1.15rem;margin:.3rem 0 .6rem}
.flag{display:inline-block;border:1px solid var(--line);border-radius:4px;padding:0 .4rem;
margin:0 .3rem .3rem 0;font-size:.85rem}
dl.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(11rem,1fr));gap:.5rem 1.2rem;
margin:1rem 0}
dl.facts dt{color:var(--soft);font-size:.85rem}dl.facts dd{margin:0}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;
font-size:.93rem}
th,td{text-align:right;padding:.35rem .6rem;border-bottom:1px solid var(--line);white-space:nowrap}
th:first-child,td:first-child,td.text,th.text{text-align:left}td.text{white-space:normal}
th{color:var(--soft);font-weight:600}
tr.exploratory td{color:var(--soft);font-style:italic}
.pass{color:var(--good)}.fail,.harm{color:var(--bad)}.unchecked,.unproven{color:var(--wait)}
figure{margin:1rem 0}figure svg{width:100%;height:auto;display:block}figcaption{font-size:.9rem;
margin-top:.4rem}
.legend span{display:inline-block;margin-right:1rem}.legend i{display:inline-block;width:.8rem;
height:.8rem;border-radius:50%;margin-right:.35rem}
svg text{fill:var(--ink);font:12px system-ui,sans-serif}svg .tick{fill:var(--soft)}
svg .grid{stroke:var(--grid)}
svg polyline{fill:none}svg .zero{stroke:var(--ink)}svg .join{stroke:var(--soft);opacity:.4}
svg .bar{stroke-width:3}
svg .thin{stroke-width:1;opacity:.35}svg .curve{stroke-width:2.4}svg .band{opacity:.16;stroke:none}
svg .sesoi{fill:var(--sesoi);opacity:.28}svg .interval{stroke:var(--ink);stroke-width:1.4}
svg .interval.wide{stroke-width:5;opacity:.55}
svg .point{fill:var(--ink)}svg .boundary{stroke:var(--bad);stroke-dasharray:6 4;stroke-width:2}
svg path.mark{fill:none;stroke-width:2.2}
@media print{body{background:#fff}.verdict,figure{break-inside:avoid}}
""" + "".join(
    f"svg .arm{i}{{stroke:var(--arm{i})}}svg circle.arm{i},svg polygon.arm{i}{{fill:var(--arm{i})}}"
    f".legend .arm{i}{{background:var(--arm{i})}}"
    for i in range(8)
)
