"""Compute kept reports again with the statistics of today, from their scores and their registered analysis.

For every ``NAME.csv`` with its ``NAME.json`` in a folder the report is computed from the scores and the registration;
what was recorded of the runs (integrity, curves, training, device time) is not in the scores and is kept as it was.
Writes ``NAME.json``, ``.md`` and ``.html``.

    python -m benchmarks.remake_reports docs/results
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from lockstep.report import render_html, render_markdown, report_from_scores_csv

#: What runs recorded: whole sections, and entries of the facts.
RECORDED = ("integrity", "curves", "training", "xeval", "notes", "aa")
FACTS = ("steps", "device_hours", "resumed_runs", "balanced", "code_revisions")


def remade(text: str, old: dict[str, Any]) -> dict[str, Any]:
    """Return the report of scores.csv with what the earlier report recorded of its runs."""
    version = old["versions"]["lockstep"]
    new = report_from_scores_csv(text, old["registration"], old["generated_utc"], version)
    if new["scores_sha256"] != old["scores_sha256"]:
        raise ValueError(f"{old['name']}: scores.csv is not that of the report")
    failed = [gate["gate"] for gate in old["integrity"] if gate["state"] == "fail"]
    if failed:
        raise ValueError(f"{old['name']}: {failed} failed, and their flags cannot be computed from scores")
    facts = new["facts"] | {name: old["facts"][name] for name in FACTS}
    return new | {name: old[name] for name in RECORDED} | {"facts": facts}


def main(folder: Path) -> None:
    """Remake every report of a folder."""
    for scores in sorted(folder.glob("*.csv")):
        kept = scores.with_suffix(".json")
        new = remade(scores.read_text(), json.loads(kept.read_text()))
        kept.write_text(json.dumps(new, indent=1, sort_keys=True))
        scores.with_suffix(".md").write_text(render_markdown(new))
        scores.with_suffix(".html").write_text(render_html(new))
        print(f"{scores.stem}: {new['verdict']['code']}: {new['verdict']['sentence']}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
