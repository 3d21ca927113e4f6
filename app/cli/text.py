"""Texts of the command line: the plan, and the live comparison of every round."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def plan_text(plan: Mapping[str, Any]) -> str:
    """Return a plan in lines for people."""
    lines = [
        f"{plan['num_blocks']} blocks, {plan['num_runs']} runs, {plan['env_steps_per_run']} env steps each",
        plan["evaluation"],
        f"placement: {plan['placement']}, about {plan['memory_estimate_bytes'] / 2**30:.1f} GiB a device",
        f"queue position: {plan['queue_position']}",
    ]
    if plan.get("seconds_estimate") is not None:
        lines.append(f"expected: about {plan['seconds_estimate']:.0f} s with the workers registered now")
    if plan.get("waits"):
        lines.append(f"would wait: {plan['waits']['text']}")
    for arm in plan["arms"]:
        changes = ", ".join(f"{item['path']} = {item['value']}" for item in arm["diff"]) or "the base"
        lines.append(f"arm {arm['label']}: {changes}")
    if plan.get("quantity"):
        lines.append(plan["quantity"])
    for row in plan.get("power", []):
        lines += list(_power_lines(row))
    lines += [f"warning: {warning}" for warning in plan["warnings"]]
    lines.append(f"hash {plan['spec_hash']}")
    return "\n".join(lines)


def show_text(experiment: Mapping[str, Any]) -> str:
    """Return an experiment in lines for people."""
    progress = experiment["progress"]
    states = ", ".join(f"{number} {status}" for status, number in progress["blocks_by_status"].items())
    lines = [
        f"{experiment['id']}  {experiment['status']}  {experiment['name']}",
        f"replicates: {states}; {progress['rounds_done']} of {progress['rounds_total']} rounds",
    ]
    for arm in experiment["arms"]:
        changes = ", ".join(f"{item['path']} = {item['value']}" for item in arm["diff"]) or "the base"
        lines.append(f"arm {arm['label']}: {changes}")
    if experiment["why_waiting"]:
        lines.append(f"waits: {experiment['why_waiting']['text']}")
    return "\n".join([*lines, *cause_lines(experiment)])


def cause_lines(experiment: Mapping[str, Any], most: int = 5) -> Iterator[str]:
    """Yield why replicates gave no result, each reason once, and where to read the rest."""
    causes = experiment["causes"]
    for item in causes[:most]:
        yield f"{item['status']}: {replicates_text(item['replicates'])}, cause {item['cause']}: {item['text']}"
        if item["run_id"]:
            yield f"  its log has the rest: lockstep logs {item['run_id']}"
    if len(causes) > most:
        yield f"and {len(causes) - most} more reasons: lockstep show {experiment['id']} --json"


def diverged_lines(runs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield which arms diverged, in which replicates and why, each reason once."""
    found: dict[tuple[str, str], list[int]] = {}
    for run in runs:
        if run["cause"] == "diverged":
            found.setdefault((run["group_id"], run["cause_text"]), []).append(run["replicate"])
    for (arm, text), replicates in found.items():
        yield f"diverged: arm {arm} in {replicates_text(replicates)}: {text}"


def replicates_text(replicates: Sequence[int]) -> str:
    """Return the numbers of replicates in words: ``replicate 0``, ``replicates 0 to 5``, ``replicates 0, 3, 4``."""
    if len(replicates) == 1:
        return f"replicate {replicates[0]}"
    if len(replicates) > 2 and replicates[-1] - replicates[0] == len(replicates) - 1:
        return f"replicates {replicates[0]} to {replicates[-1]}"
    return f"replicates {', '.join(map(str, replicates))}"


def _power_lines(row: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a design finds under one assumption about its scores."""
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
    for point in row["curve"] if len(row["curve"]) > 2 else []:
        likely = ", ".join(f"{code} {share:.2f}" for code, share in point["verdicts"].items() if share >= 0.005)
        yield f"  true effect {point['effect']:g}: {likely}; {point['blocks']:.1f} blocks on average"


class Board:
    """Turns live frames into lines: one for each complete round, one for each change of state."""

    def __init__(self, experiment: Mapping[str, Any]) -> None:
        self._rounds = int(experiment["rounds"])
        self._blocks = int(experiment["progress"]["blocks"])
        self._shown: Mapping[str, str] = experiment["shown"]
        self._done: dict[str, int] = {}

    def lines(self, frame: Mapping[str, Any]) -> Iterator[str]:
        """Yield the lines of a frame."""
        kind = frame["type"]
        if kind == "snapshot":
            for block in frame["blocks"]:
                self._done[block["id"]] = block["complete_rounds"]
        elif kind == "delta":
            for item in frame["rounds"]:
                yield self._round(item)
        elif kind == "truncate":
            yield f"a block resumes: its rounds from {frame['from_round']} on are done again"
        elif kind == "status" and frame["event"]["type"] == "block_status":
            yield f"replicate {frame['event']['replicate']}: {frame['event']['text']}"
        elif kind == "status" and frame["event"]["cause"] == "diverged":
            yield frame["event"]["text"]
        elif kind == "end":
            yield f"the experiment is {frame['status']}"

    def _round(self, item: Mapping[str, Any]) -> str:
        self._done[item["block_id"]] = item["round"] + 1
        share = sum(self._done.values()) / max(1, self._rounds * self._blocks)
        filled = round(20 * share)
        bar = "#" * filled + "." * (20 - filled)
        return (
            f"[{bar}] {100 * share:3.0f} %  replicate {item['replicate']} round {item['round'] + 1}/{self._rounds}  "
            + arms_text(item["comparison"], self._shown)
        )


def arms_text(comparison: Mapping[str, Any], shown: Mapping[str, str]) -> str:
    """Return one comparison: over its last episodes each arm's score of the primary metric, and its reward."""
    parts = []
    for arm in comparison.get("arms", []):
        reward = "no data" if arm["reward"] is None else f"{arm['reward']:.2f}"
        texts = [] if shown["field"] == "reward" else [f"{shown['label']} {_score(arm.get(shown['field']), shown)}"]
        parts.append(f"{arm['group_id']}: {', '.join([*texts, f'reward {reward}'])}")
    return " | ".join(parts)


def _score(value: float | None, shown: Mapping[str, str]) -> str:
    if value is None:
        return "no data"
    return f"{value:.1f} {shown['unit']}" if shown["unit"] == "%" else f"{value:.2f} {shown['unit']}".rstrip()
