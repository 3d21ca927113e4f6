"""The tables of the report as rows of text, shared by the HTML and Markdown renderers.

Numbers are formatted here once; p values the design could not bring below alpha are not shown.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.report.inputs import FACT_NOTES, REPEATED
from lockstep.report.numbers import difference_unit, joined, p_text, percent, plain, signed
from lockstep.report.words.glossary import FLAGS
from lockstep.report.words.sentences import lost_text

Report = Mapping[str, Any]


@dataclass(frozen=True)
class TextTable:
    """A titled table: ``note`` explains it; rows whose index is in ``muted`` are exploratory."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    muted: bool = False


def all_tables(report: Report) -> list[TextTable]:
    """Return every table that has rows, in reading order."""
    makers = (
        arms_table,
        differences_table,
        early_stops_table,
        overrun_table,
        quantities_table,
        companions_table,
        guardrails_table,
        failures_table,
        lost_table,
        curve_table,
    )
    later = (
        secondary_table,
        config_table,
        training_table,
        cross_table,
        bayes_table,
        exploratory_table,
        integrity_table,
    )
    return [table for table in (make(report) for make in (*makers, *later)) if table.rows]


#: Where an arm stands under an estimand; the difference of two locations need not be the estimate of the test.
_LOCATION = {
    "mean": "the mean",
    "learned": "share of runs that reach the threshold",
    "shift": "median of all averages of two runs",
    "p_superiority": "median of all averages of two runs",
}


def arms_table(report: Report) -> TextTable:
    """Return the table of arms in raw units."""
    estimand = report["registration"]["analysis"]["estimand"]
    unit = report["facts"]["unit"]
    told = [
        (
            row["arm"],
            str(row["n"]),
            str(row["failed"]),
            plain(row["mean"], 4),
            span(row["mean_ci"]),
            plain(row["location"], 4),
            plain(row["sd"]),
            "" if row["iqm"] is None else plain(row["iqm"], 4),
            span(row["tolerance_95_95"]),
        )
        for row in report["table"]
    ]
    names = (
        "arm",
        "n",
        "failed",
        "mean",
        "95 % CI of mean",
        "location",
        "SD of runs",
        "IQM",
        "range of runs",
    )
    header, rows = _filled(names, told)
    note = (
        f"Scores in {unit or 'raw units'}; n counts replicates. The CI of the mean shrinks with n, the SD of "
        f"runs does not. Location: {_LOCATION.get(estimand, 'the mean')}. IQM and the range that holds 95 % of runs "
        "(with 95 % confidence, if runs are normally distributed) need ten replicates. Ranges are cut at the bounds of "
        "the metric."
    )
    return TextTable("Arms", header, rows, note)


def differences_table(report: Report) -> TextTable:
    """Return the pairwise table, without columns in which no row has anything."""
    comparisons = report["comparisons"]
    levels = {c["alpha_used"] for c in comparisons}
    superiority, equivalence = interval_names(levels)
    header = (
        "comparison",
        "difference",
        superiority,
        equivalence,
        "test",
        "p",
        "p adjusted",
        "E",
        "A12",
        "g",
        "verdict",
    )
    shown, rows = _filled(header, [_difference_row(c, len(levels) > 1) for c in comparisons])
    unit = report["facts"]["difference_unit"] or "raw units"
    e_text = "E: largest e-value so far of an anytime analysis. " if "E" in shown else ""
    adjustment = _ADJUSTMENTS.get(report["adjustment"], report["adjustment"])
    note = (
        f"Treatment minus baseline in {unit}, as everywhere in this report: the baseline is the control or the arm "
        "that comes first in the specification; positive when the treatment is better. "
        f"The {superiority} decides whether an arm is better, the {equivalence} whether the difference matters. "
        f"Adjusted p: {adjustment}. {e_text}A12: share of pairs of runs that the treatment wins; g: "
        "difference in SDs of runs."
    )
    return TextTable("Differences", shown, rows, note)


_ADJUSTMENTS = {"holm": "Holm", "max_t": "within-block max-T with the pair guard"}


def _filled(
    header: Sequence[str], rows: Sequence[Sequence[str]]
) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Return header and rows without the columns in which no row has anything."""
    kept = [i for i in range(len(header)) if any(row[i] for row in rows)]
    return tuple(header[i] for i in kept), tuple(tuple(row[i] for i in kept) for row in rows)


def interval_names(levels: Collection[float]) -> tuple[str, str]:
    """Return what superiority and equivalence intervals are called; comparisons of a family differ in their level."""
    if len(levels) > 1:
        return "superiority CI", "equivalence CI"
    level = next(iter(levels), 0.05)
    return f"{percent(1 - level)} % CI", f"{percent(1 - 2 * level)} % CI"


def early_stops_table(report: Report) -> TextTable:
    """Return the estimates of comparisons won at an early look, plain and median-unbiased."""
    rows = tuple(
        (
            f"{row['a']} - {row['b']}",
            f"{row['look']} (n = {row['n']})",
            signed(row["estimate"]),
            signed(row["median_unbiased"]),
            f"{span(row['ci'])} ({percent(1 - row['level'])} %)",
        )
        for row in report.get("early_stops", [])
    )
    note = (
        "A difference that was large enough to stop is too large on average; the median-unbiased estimate and its "
        "interval order outcomes by the look at which they stop."
    )
    header = ("comparison", "won at look", "plain", "median-unbiased", "its interval")
    return TextTable("Early stop", header, rows, note)


def overrun_table(report: Report) -> TextTable:
    """Return the pooled estimates with blocks that finished after the question was answered."""
    overrun = report.get("overrun")
    if overrun is None:
        return TextTable("Overrun", (), ())
    rows = tuple((f"{c['a']} - {c['b']}", signed(c["estimate"]), signed(c["pooled"])) for c in overrun["comparisons"])
    count = len(overrun["blocks"])
    note = f"OVERRUN, not confirmatory: {count} blocks finished after the answer. The verdict above stands."
    return TextTable("Overrun", ("comparison", "at the look", "all blocks pooled"), rows, note, muted=True)


def quantities_table(report: Report) -> TextTable:
    """Return mean difference, shift, shares that learned and failures of every registered comparison, side by side."""
    rows = []
    for q in report.get("quantities", []):
        learned = q["learned"]
        (k, n), (j, m) = q["failures"]
        cells = [_quantity(q["mean"]), _quantity(q["shift"]), "" if learned is None else _quantity(learned)]
        rows.append((f"{q['a']} - {q['b']}", *cells, f"{k}/{n}, {j}/{m}", p_cell(q["fisher_p"])))
    header, shown = _filled(("comparison", "difference of means", "shift", "learned", "failed", "Fisher p"), rows)
    registered = report["registration"]["analysis"]["estimand"]
    unit = difference_unit(report["facts"]["metric"]) or "raw units"
    note = (
        f"The same runs by several quantities, in {unit}, with unadjusted intervals; `{registered}` was registered and "
        "decides. Failed runs stand at their score (see Method) in the mean and the shift"
    )
    learned_text = "; learned: difference of the shares of runs that reach the registered threshold."
    note += learned_text if "learned" in header else "."
    return TextTable("What the other quantities say", header, shown, note)


def _left_out_text(left: Mapping[str, Any]) -> str:
    if left["p_range"] is None:
        return f"not shown: {left['reason']}"
    low, high = left["p_range"]
    flips = "some single block flips p <= alpha" if left["flips"] else "no single block flips p <= alpha"
    return f"p from {plain(low, 2)} to {plain(high, 2)}; {flips}"


def _quantity(quantity: Mapping[str, Any] | None) -> str:
    if quantity is None:
        return "n/a"
    interval = f" [{span(quantity['ci'])}]" if quantity["ci"] else ""
    return f"{signed(quantity['estimate'])}{interval}"


def companions_table(report: Report) -> TextTable:
    """Return companions, sensitivity and leave-one-out as one table of notes."""
    rows = [(f"{c['a']} - {c['b']}", _companion_text(c)) for c in report["comparisons"] if c["companions"]]
    sensitivity = report["sensitivity"]
    names = {
        "floor": "failure score = worst score seen",
        "omit": "failures left out",
        "lost": "losses against winner",
    }
    rows += [(names[k], f"verdict {v}") for k, v in sensitivity.items() if v is not None]
    left = report["leave_one_out"]
    if left is not None:
        rows.append(("leave one block out", _left_out_text(left)))
    for name, p in (report["omnibus"] or {}).items():
        shown = (
            f"p {p_text(p)}" if not isinstance(p, Mapping) else "; ".join(f"{k}: p {p_text(v)}" for k, v in p.items())
        )
        rows.append((f"all arms: {name.removesuffix('_p').replace('_', '-')}", shown))
    note = "Other methods on the same scores. They are printed for robustness and never change the verdict."
    return TextTable("Robustness", ("what", "result"), tuple(rows), note)


def guardrails_table(report: Report) -> TextTable:
    """Return the guardrails of the winner."""
    rows = tuple(
        (
            f"{g['metric']}",
            f"{g['winner']} against {g['rival']}",
            g["state"],
            signed(g["estimate"]),
            signed(g["bound"]),
            "" if g["margin"] is None else plain(g["margin"]),
        )
        for g in report["guardrails"]
    )
    header = ("guardrail", "comparison", "state", "harm", "upper bound", "margin")
    return TextTable("Guardrails", header, rows, "Harm is positive. pass: the bound lies below the margin.")


def failures_table(report: Report) -> TextTable:
    """Return failures with exact intervals."""
    rows = tuple(
        (
            row["arm"],
            f"{row['k']}/{row['n']}",
            span([100 * v for v in row["ci"]]) + " %",
            "; ".join(f"{other}: p {p_text(p)}" for other, p in row["fisher_p"].items()),
        )
        for row in report["failures"]
    )
    note = "Failed (diverged) runs of all runs with an outcome, with the exact 95 % interval of the rate."
    return TextTable("Failures", ("arm", "failed", "95 % CI of rate", "Fisher against"), rows, note)


def lost_table(report: Report) -> TextTable:
    """Return why blocks gave no result; reports of earlier versions do not say."""
    told = [
        (
            ", ".join(map(str, item["replicates"])),
            item["cause"],
            ", ".join(item.get("arms", ())),
            item["text"],
            item["run_id"] or "",
        )
        for item in report.get("lost_blocks", [])
    ]
    header, rows = _filled(("replicates", "cause", "code of arm", "why", "log of run"), told)
    note = "No outcome of training: left out for all arms. `lockstep logs RUN` prints the rest of a log."
    return TextTable("Blocks without a result", header, rows, note)


def curve_table(report: Report) -> TextTable:
    """Return the registered joint curve test."""
    curve = report["curve"]
    if curve is None or not curve["pairs"]:
        return TextTable("Curves", (), ())
    rows = tuple(
        (f"{pair['a']} - {pair['b']}", str(step), signed(difference), p_cell(p))
        for pair in curve["pairs"]
        for step, difference, p in zip(curve["steps"], pair["mean_difference"], pair["p_adj"], strict=True)
    )
    note = f"Joint test of {curve['metric']} over the registered steps; p is adjusted over all of them."
    return TextTable("Along training", ("comparison", "round", "difference", "p adjusted"), rows, note)


def secondary_table(report: Report) -> TextTable:
    """Return exploratory metrics."""
    rows = tuple(
        (
            s["metric"],
            f"{s['a']} - {s['b']}",
            signed(s["estimate"]),
            span(s["ci"]),
            p_cell(s["p"]),
            p_cell(s["q"]),
        )
        for s in report["secondary"]
    )
    note = "Exploratory: Benjamini-Hochberg at q = .1 over this table. None of it enters the verdict."
    header = ("metric", "comparison", "difference", "95 % CI", "p", "q")
    return TextTable("Secondary metrics (exploratory)", header, rows, note, muted=True)


def config_table(report: Report) -> TextTable:
    """Return what differs between the arms."""
    rows = tuple(
        (arm["label"], d["path"], _value(d["base"]), _value(d["value"]))
        for arm in report["registration"]["arms"]
        for d in arm["differences"]
    )
    return TextTable("What differs between the arms", ("arm", "setting", "base", "this arm"), rows)


def training_table(report: Report) -> TextTable:
    """Return training summaries."""
    rows = tuple(
        (
            row["arm"],
            row["reward_mode"] or "",
            str(row["episodes"]),
            *(
                "" if row[name] is None else plain(row[name])
                for name in ("final_accuracy", "best_accuracy", "mean_reward")
            ),
        )
        for row in report["training"]
    )
    names = ("arm", "reward", "episodes", "final accuracy", "best accuracy", "mean reward")
    header, rows = _filled(names, rows)
    note = "Means over replicates while training. Rewards of different modes are different currencies."
    return TextTable("Training summary (descriptive)", header, rows, note, muted=True)


def cross_table(report: Report) -> TextTable:
    """Return the cross-evaluation matrix."""
    if report["xeval"] is None:
        return TextTable("Cross-evaluation", (), ())
    rows = tuple(
        (
            c["arm"],
            f"{_function(c['mode'], report)}{' (own)' if c['own_mode'] else ''}",
            plain(c["mean"]),
            plain(c["sd_between_replicates"]),
        )
        for c in report["xeval"]["cells"]
    )
    note = "Evaluation episodes of each arm's policy, scored under every reward function, in its own units."
    header = ("policy of arm", "scored under", "mean", "SD between replicates")
    return TextTable("Cross-evaluation (descriptive)", header, rows, note, muted=True)


def _function(name: str, report: Report) -> str:
    """Return a reward function as its mode, and whose it is where arms have several of one mode."""
    owners = report["xeval"].get("of_arms", {}).get(name, [])  # reports made before have none
    modes = {arm["reward_mode"] for arm in report["registration"]["arms"] if arm["label"] in owners}
    return name if not owners or name in modes else f"{modes.pop()} as in {joined(owners)}"


def bayes_table(report: Report) -> TextTable:
    """Return the Bayesian panel."""
    if report["bayes"] is None:
        return TextTable("Bayes", (), ())
    rows = tuple(
        (f"{p['a']} - {p['b']}", *(plain(p["posterior"][k]) for k in ("p_above", "p_rope", "p_below")))
        for p in report["bayes"]["pairs"]
        if p["posterior"] is not None
    )
    header = ("comparison", "above +sesoi", "within", "below -sesoi")
    return TextTable("Posterior (never the verdict)", header, rows, report["bayes"]["note"], muted=True)


def exploratory_table(report: Report) -> TextTable:
    """Return the pooled analysis of an extension decided after data were seen."""
    exploratory = report["exploratory"]
    if exploratory is None:
        return TextTable("Exploratory", (), ())
    rows = tuple(
        (f"{c['a']} - {c['b']}", signed(c["estimate"]), span(c["ci_superiority"]), p_cell(c["p"]))
        for c in exploratory["comparisons"]
    )
    note = (
        f"EXPLORATORY: all {exploratory['blocks']} blocks together, decided on {exploratory['decided_utc']} after "
        f"results had been seen ({exploratory['reason']}). The registered verdict above stays as it was."
    )
    named = interval_names({c["alpha_used"] for c in exploratory["comparisons"]})[0]
    return TextTable("Extended data (exploratory)", ("comparison", "difference", named, "p"), rows, note, muted=True)


def integrity_table(report: Report) -> TextTable:
    """Return every gate."""
    rows = tuple((g["gate"], g["class"], g["state"], g["detail"]) for g in report["integrity"])
    note = "A failed void gate makes the comparison invalid; a failed flag gate is a warning."
    return TextTable("Integrity", ("gate", "class", "state", "detail"), rows, note)


def fact_items(report: Report) -> list[tuple[str, str]]:
    """Return the facts row as (term, text)."""
    facts, registration = report["facts"], report["registration"]
    looks, stamp = facts["looks"], report["aa"]["stamp"]
    bad = [g["gate"] for g in report["integrity"] if g["state"] == "fail"]
    unchecked = sum(1 for g in report["integrity"] if g["state"] == "not checked")
    look = f"look {looks['k']} of {looks['K']}" if looks["k"] else looks["mode"]
    return [
        (
            "Arms x blocks",
            f"{len(facts['arms'])} x {facts['planned']} planned, {facts['complete_blocks']} complete",
        ),
        ("Failed runs", ", ".join(f"{arm}: {k}" for arm, k in facts["failed"].items())),
        ("Lost runs", ", ".join(f"{arm}: {k}" for arm, k in facts["lost"].items())),
        *_learned_fact(report),
        *_one_reward(report),
        ("Environment steps per run", "not recorded" if facts["steps"] is None else f"{facts['steps']:,}"),
        *[(name, report["notes"][name]) for name in FACT_NOTES if name in report["notes"]],
        ("Device-hours", "not recorded" if facts["device_hours"] is None else plain(facts["device_hours"])),
        ("Analysis", look),
        ("Correlation within blocks", "n/a" if facts["rho"] is None else plain(facts["rho"], 2)),
        ("Arm x device balanced", {True: "yes", False: "no", None: "not checked"}[facts["balanced"]]),
        ("Integrity", f"{'failed: ' + ', '.join(bad) if bad else 'no gate failed'}, {unchecked} not checked"),
        (
            "A/A calibration",
            "no stamp" if stamp is None else f"{', '.join(stamp['modes'])} ({stamp['date']})",
        ),
        (
            "Analysis as registered",
            f"{'yes' if registration['as_registered'] else 'no'} ({registration['hash'][:12]})",
        ),
        ("Blocks for 80 % power", _needed_text(report["more"])),
        ("Code", ", ".join([*facts["code_revisions"], *facts["plugins"]]) or "not recorded"),
    ]


def _one_reward(report: Report) -> list[tuple[str, str]]:
    rewards = {
        (arm["reward_mode"], *((d["path"], repr(d["value"])) for d in arm["differences"] if d["path"][:7] == "reward."))
        for arm in report["registration"]["arms"]
    }
    is_left_out = report["xeval"] is None and len(rewards) == 1
    return [("Cross-evaluation", "left out: all arms have the same reward")] if is_left_out else []


def _learned_fact(report: Report) -> list[tuple[str, str]]:
    found = report.get("learning")  # reports made before have none
    if found is None:
        return []
    if found["change"] is None:
        return [("Learning", found["state"])]
    change = f"{found['metric']} changed by {signed(found['change'])} [90 % CI {span(found['ci'])}]"
    return [("Learning", f"{found['state']}: {change} from the first round to the last tenth of training")]


def flag_texts(report: Report) -> list[tuple[str, str]]:
    """Return each flag of the verdict with its meaning."""
    again = report["notes"].get(REPEATED)
    told = {"MANY_LOST": _many_lost(report), "RESUMED_RUNS": f": {again}" if again else ""}
    return [(flag, FLAGS.get(flag, "") + told.get(flag, "")) for flag in report["verdict"]["flags"]]


def _many_lost(report: Report) -> str:
    planned = report["facts"]["planned"]
    texts = [
        lost_text(item["cause"], item["text"], len(item["replicates"]), planned, item.get("arms", ()))
        for item in report.get("lost_blocks", [])
    ]
    return f": {' '.join(texts)}" if texts else ""


def span(ends: Sequence[float | None] | None) -> str:
    """Return ``low to high`` or an empty text."""
    return "" if ends is None else f"{plain(ends[0])} to {plain(ends[1])}"


def p_cell(p: float | None) -> str:
    """Return a p value for a table cell, without the equals sign."""
    return p_text(p).removeprefix("= ")


def _needed_text(more: Mapping[str, Any] | None) -> str:
    if more is None:
        return "not estimated"
    low, high = more["N_plugin"], more["N_upper80"]
    if low is None:
        return "more than can be proposed"
    return f"about {low} to {high} in all" if high is not None else f"about {low} or more in all"


def _difference_row(c: Mapping[str, Any], own_level: bool) -> tuple[str, ...]:
    """Return a row; ``own_level``: comparisons differ in their level, so that each interval names its own."""
    unreachable = not _inference(c)
    cells = []
    for key, level in (("ci_superiority", c["alpha_used"]), ("ci_equivalence", 2 * c["alpha_used"])):
        named = f" ({percent(1 - level)} %)" if own_level and c[key] else ""
        cells.append(f"{span(c[key])}{named}" or "none")
    return (
        f"{c['a']} - {c['b']}",
        signed(c["estimate"]),
        *cells,
        c["test"] or "",
        "not shown" if unreachable else p_cell(c["p"]),
        "not shown" if unreachable else p_cell(c["p_adj"]),
        "" if c["e_value"] is None else plain(c["e_value"]),
        plain(c["effect"]["A12"]),
        plain(c["effect"]["g"]),
        c["verdict"] or "",
    )


def _inference(c: Mapping[str, Any]) -> bool:
    """Return whether a comparison's p may be shown; reports of schema 1 say so by the verdict."""
    return bool(c.get("inference", c["verdict"] != "NO_INFERENCE"))


def _companion_text(c: Mapping[str, Any]) -> str:
    if not _inference(c):
        return "not shown: this n supports no inference" + _greyed(c)
    names = {
        "signed_rank_p": "signed-rank p",
        "sign_flip_p": "sign-flip p",
        "rank_p": "rank p",
        "permutation_p": "permutation p",
        "brunner_munzel_p": "Brunner-Munzel p",
        "t_p": "t p",
        "tost_p": "equivalence (TOST) p",
    }
    companions = [f"{name} {p_text(c['companions'][k])}" for k, name in names.items() if k in c["companions"]]
    return ", ".join(companions)


def _greyed(c: Mapping[str, Any]) -> str:
    interval = c["companions"].get("t_ci")
    return f" (t interval, for orientation only: {span(interval)})" if interval else ""


def _value(value: object) -> str:
    return "-" if value is None else str(value)
