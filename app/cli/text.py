"""What the command line says of the documents that the API answers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from html import unescape
from typing import Any

from app.cli.called import called
from lockstep.direction import isolated
from lockstep.replicates import replicates_text


def plan_text(plan: Mapping[str, Any]) -> str:
    """Return a plan in lines for people."""
    lines = [
        f"{plan['num_blocks']} blocks, {plan['num_runs']} runs, {plan['env_steps_per_run']} env steps each",
        plan["evaluation"],
        f"placement: {plan['placement']}, about {plan['memory_estimate_bytes'] / 2**30:.1f} GiB a device",
        f"queue position: {plan['queue_position']}",
    ]
    if plan.get("packs"):
        packs = plan["packs"]
        workers = "the free worker" if packs["workers"] == 1 else f"each of {packs['workers']} free workers"
        lines.append(f"side by side: up to {packs['replicates']} replicates on {workers}; a later one gets a share")
    limit = plan.get("pack_limit")
    if limit is not None and plan["placement"] == "shared_device" and plan["num_blocks"] > 1:
        told = "one replicate" if limit["replicates"] == 1 else f"{limit['replicates']} replicates"
        lines.append(f"a worker holds at most {told} at a time: {limit['why']}")
    if plan.get("seconds_estimate") is not None:
        when = "once it can run" if plan.get("waits") else "with the workers registered now"
        lines.append(f"expected: about {plan['seconds_estimate']:.0f} s {when}")
    if plan.get("waits"):
        lines.append(f"would wait: {plan['waits']['text']}")
    lines += arm_lines(plan["arms"])
    if plan.get("quantity"):
        lines.append(plan["quantity"])
    rows = plan.get("power", [])
    for row in rows:
        lines += list(_power_lines(row, with_curve=len(rows) == 1))
    lines += [f"warning: {warning}" for warning in plan["warnings"]]
    lines.append(f"hash {plan['spec_hash']}")
    return "\n".join(lines)


def arm_lines(arms: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield what each arm sets; of one that sets nothing, the values of the base in what the others set."""
    base = {item["path"]: item["base"] for arm in arms for item in arm["diff"]}
    for arm in arms:
        own = {item["path"]: item["value"] for item in arm["diff"]}
        values = ", ".join(f"{path} = {value}" for path, value in (own or base).items())
        named = values if own else f"the base ({values})" if values else "the base"
        yield f"arm {arm['label']}: {named}"


def run_lines(runs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the runs of each replicate by arm, as `logs` takes them."""
    by_replicate: dict[int, list[str]] = {}
    for run in runs:
        by_replicate.setdefault(run["replicate"], []).append(f"{run['group_id']} {run['id']} {run['status']}")
    for replicate, told in sorted(by_replicate.items()):
        yield f"replicate {replicate}: {', '.join(told)}"


def show_text(experiment: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> str:
    """Return an experiment with its runs in lines for people."""
    progress = experiment["progress"]
    states = ", ".join(f"{number} {status}" for status, number in progress["blocks_by_status"].items())
    lines = [
        f"{experiment['id']}  {experiment['status']}  {isolated(experiment['name'])}",
        f"replicates: {states}; {progress['rounds_done']} of {progress['rounds_total']} rounds",
    ]
    lines += [*arm_lines(experiment["arms"]), *run_lines(runs)]
    lines += [f"warning: {warning}" for warning in experiment["warnings"]]
    if experiment["why_waiting"]:
        lines.append(f"waits: {experiment['why_waiting']['text']}")
    if experiment.get("evaluating"):
        lines.append(experiment["evaluating"]["text"])
    return "\n".join([*lines, *repeat_lines(experiment), *cause_lines(experiment), *answer_lines(experiment)])


def answer_lines(experiment: Mapping[str, Any]) -> Iterator[str]:
    """Yield the verdict and where to read the rest; nothing before there is one."""
    if answer := experiment["answer"]:
        yield f"verdict: {answer['code']}: {answer['sentence']}"
        yield from (f"  {item['flag']}: {item['text']}" for item in answer["cautions"])
        yield f"report: {called()} report {experiment['id']}"


def cause_lines(experiment: Mapping[str, Any], most: int = 5) -> Iterator[str]:
    """Yield why replicates gave no result, each reason once, and where to read the rest."""
    causes = experiment["causes"]
    for item in causes[:most]:
        code = f" in the code of arm{'s' * (len(item['arms']) > 1)} {', '.join(item['arms'])}" if item["arms"] else ""
        yield f"{item['status']}: {replicates_text(item['replicates'])}, cause {item['cause']}{code}: {item['text']}"
        if item["run_id"]:
            yield f"  its log has the rest: {called()} logs {item['run_id']}"
    failed = {item["cause"] for item in causes if item["status"] == "failed"}
    if "config" in failed:
        yield (
            "a retry trains the same specification; where a field of it is wrong: "
            f"{called()} clone {experiment['id']} --overrides FILE, or submit a corrected one"
        )
    if failed:
        again = ", and installed again unless it is editable (pip install -e)" if failed & _OF_CODE else ""
        mended = "once code is mended" if "config" in failed else "once it is mended"
        yield f"{mended}{again}: {called()} {_mended(experiment)}"
    if len(causes) > most:
        yield f"and {len(causes) - most} more reasons: {called()} show {experiment['id']} --json"


#: Causes that may lie in a plug-in, whose installed copy is what trains.
_OF_CODE = {"config", "environment"}


def _mended(experiment: Mapping[str, Any]) -> str:
    """Return what trains failed replicates again; where others have succeeded, changed code makes all of them void."""
    if not experiment["progress"]["blocks_by_status"].get("succeeded"):
        return f"retry {experiment['id']}"
    return (
        f"retry {experiment['id']}; if code of yours was changed for it, {called()} clone {experiment['id']}: "
        "a report over replicates of different code is invalid"
    )


def repeat_lines(experiment: Mapping[str, Any]) -> Iterator[str]:
    """Yield which attempts stopped, and why, that later ones made up for or are to."""
    for item in experiment["repeats"]:
        yield f"made again: {replicates_text(item['replicates'])}, cause {item['cause']}: {item['text']}"


def diverged_lines(runs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield which arms diverged, in which replicates and why, each reason once."""
    spans: dict[tuple[str, str], list[int]] = {}
    for run in runs:
        if run["cause"] == "diverged":
            spans.setdefault((run["group_id"], run["cause_text"]), []).append(run["replicate"])
    for (arm, text), replicates in spans.items():
        yield f"diverged: arm {arm} in {replicates_text(replicates)}: {text}"


def _power_lines(row: Mapping[str, Any], *, with_curve: bool) -> Iterator[str]:
    """Yield what a design finds under one assumption about its scores; its curve where it is the only one."""
    given = f"if the SD is {row['sd']:g}" if row["sd"] is not None else f"with the pilot's {row['pilot_size']} blocks"
    if row["power"] is None:
        yield f"{given}: {row['replicates']} replicates cannot reach the level {row['level']:.2g}"
        return
    least = row["minimum_detectable"]
    found = f"; found with 80 %: {least:.2g} or more" if least is not None else ""
    wanted = row["needed"] or {}
    low, high = wanted.get("plugin"), wanted.get("upper80")
    reach = "more than 300" if low is None else f"{low}" if low == high else f"{low} to {high or 'more than 300'}"
    yield (
        f"{given}: power {row['power']:.2f} at {row['replicates']} replicates{found}; 80 % at the smallest effect of "
        f"interest takes {reach} replicates"
    )
    for point in row["curve"] if with_curve else []:
        likely = ", ".join(f"{code} {share:.2f}" for code, share in point["verdicts"].items() if share >= 0.005)
        yield f"  true effect {point['effect']:g}: {likely}; {point['blocks']:.1f} blocks on average"


def arms_text(comparison: Mapping[str, Any], shown: Mapping[str, str]) -> str:
    """Return one comparison: over its last episodes each arm's score of the primary metric, and its reward."""
    parts = []
    for arm in comparison.get("arms", []):
        reward = "no data" if arm["reward"] is None else f"{arm['reward']:.2f}"
        texts = [] if shown["field"] == "reward" else [f"{shown['label']} {score_text(arm.get(shown['field']), shown)}"]
        if shown["field"] != "native_return" or arm.get("reward_mode") != "native":  # else it is the same number
            texts.append(f"reward {reward}")
        parts.append(f"{arm['group_id']}: {', '.join(texts)}")
    return " | ".join(parts)


def score_text(value: float | None, shown: Mapping[str, str]) -> str:
    """Return a score with its unit."""
    if value is None:
        return "no data"
    return f"{value:.1f} {shown['unit']}" if shown["unit"] == "%" else f"{value:.2f} {shown['unit']}".rstrip()


def read_aloud(markdown: str) -> str:
    """Return Markdown without its escapes, for a terminal, which shows it as it is."""
    return unescape(re.sub(r"\\([\\`*_{}\[\]|#-])", r"\1", markdown))


def duration(seconds: float) -> str:
    """Return a time in the two units that matter: ``45 s``, ``3 min``, ``2 h 5 min``, ``3 d 4 h``."""
    whole = round(seconds)
    if whole < 90:
        return f"{whole} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def list_line(item: Mapping[str, Any]) -> str:
    """Return one line of the list of experiments."""
    done = f"{100 * item['progress']['fraction']:.0f} %"
    return f"{item['id']}  {item['status']:10} {done:>5}  {isolated(item['name'])}"


def is_routine(item: Mapping[str, Any]) -> bool:
    """Return whether an event tells what every round brings, or what befell one environment, and is no warning."""
    if item["severity"] in ("warning", "error"):
        return False
    return item["env_id"] is not None or item["type"].endswith(_ROUTINE)


_ROUTINE = ("round_completed", "checkpoint_saved", "update_completed", "evaluation_completed")


def event_line(item: Mapping[str, Any]) -> str:
    """Return one line of a timeline."""
    place = [f"replicate {item['replicate']}"] if item["replicate"] is not None else []
    place += [f"arm {item['group_id']}"] if item["group_id"] not in ("*", None) else []
    where = f" ({', '.join(place)})" if place else ""
    return f"{item['time'][:19].replace('T', ' ')}Z  {item['severity']:7} {item['actor']:9} {item['text']}{where}"


def audit_line(item: Mapping[str, Any]) -> str:
    """Return one act of the record: when, who, what, to what, and how it was before and after."""
    changes = [f"{name} {json.dumps(item[name])}" for name in ("before", "after") if item[name]]
    told = f"  {', '.join(changes)}" if changes else ""
    return (
        f"{item['at'][:19].replace('T', ' ')}Z  {isolated(item['actor']):16} {item['action']:18} {item['target']}{told}"
    )


def worker_line(item: Mapping[str, Any]) -> str:
    """Return one worker with its state, device and what it trains."""
    holds = item["holds"]
    work = item["status_text"] or ""
    if holds:
        held = replicates_text(sorted(block["replicate"] for block in holds["blocks"]))
        work = f"trains {held} of {holds['experiment_id']}"
    drain = ", drains" if item["drain"] else ""
    seen = f"seen {item['seen_seconds_ago']:.0f} s ago"
    state = f"{item['name']:20} {item['status'] + drain:12}"
    return f"{item['id']}  {state} {item['device_class']}  {seen}  {work}".rstrip()


def worker_lines(items: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the workers and what each one cannot use."""
    if not items:
        yield f"no worker: {called()} worker starts one"
    for item in items:
        yield worker_line(item)
        for defect in item["defects"]:
            yield f"  {defect['kind']} {defect['name']!r} cannot be used: {defect['reason']}"


def queue_lines(queue: Mapping[str, Any]) -> Iterator[str]:
    """Yield what waits, one line an experiment, in the order of the queue."""
    if queue["paused"]:
        yield f"the queue is paused: {called()} queue resume"
    waiting: dict[str, list[Mapping[str, Any]]] = {}
    for item in queue["items"]:
        waiting.setdefault(item["experiment_id"], []).append(item)
    if not waiting:
        yield "nothing waits"
    for experiment_id, items in waiting.items():
        replicates = replicates_text(sorted(item["replicate"] for item in items))
        why = items[0]["why_waiting"]
        yield f"{experiment_id}  {isolated(items[0]['name'])}: {replicates}; {why['text'] if why else 'starts'}"


def top_lines(overview: Mapping[str, Any]) -> Iterator[str]:
    """Yield workers, what runs and what waits."""
    yield "workers"
    yield from (f"  {line}" for line in worker_lines(overview["workers"]))
    yield "running"
    yield from (f"  {list_line(item)}" for item in overview["running"])
    yield "waiting"
    yield from (f"  {line}" for line in queue_lines(overview["queue"]))


def compare_text(comparison: Mapping[str, Any]) -> str:
    """Return the settings in which arms differ, a column an arm."""
    head = ["", *(f"{column['name']} / {column['arm']}" for column in comparison["columns"])]
    rows = [[row["key"], *map(str, row["values"])] for row in comparison["rows"]]
    if not rows:
        return "these arms differ in nothing"
    widths = [max(len(row[index]) for row in [head, *rows]) for index in range(len(head))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [head, *rows])
    return "\n".join(line.rstrip() for line in lines)
