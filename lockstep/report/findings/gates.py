"""Integrity gates: what must hold before scores may be compared.

A failed gate of class ``void`` makes the verdict INVALID; class ``flag`` only warns. A gate whose
facts were not recorded is ``not checked``, which is never shown as pass.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from dataclasses import dataclass

from lockstep.replicates import replicates_text
from lockstep.report.findings.clock import Clock
from lockstep.report.inputs import ReportInputs, RunFacts, codes_of
from lockstep.spec.inference.analysis import analysis_hash

PASS, FAIL, NOT_CHECKED = "pass", "fail", "not checked"
LOST_SHARE = 0.1


@dataclass(frozen=True)
class Gate:
    """One gate: its class (void or flag), state, detail and the flag it sets when it fails."""

    gate: str
    cls: str
    state: str
    detail: str
    flag: str | None = None


def failed_void(gates: Sequence[Gate]) -> Gate | None:
    """Return the first failed gate of class void, or None."""
    return next((g for g in gates if g.cls == "void" and g.state == "fail"), None)


def void_gates(inputs: ReportInputs) -> tuple[Gate, ...]:
    """Return the gates of class void in a fixed order; they ask no analysis."""
    succeeded = [run for run in inputs.runs if run.status == "ok"]
    return (
        _hash_gate(inputs),
        _primary_gate(inputs),
        _same_per_block("evaluator", succeeded, lambda run: run.evaluator, across=True),
        _same_per_block("evaluation seeds", succeeded, lambda run: run.eval_seeds),
        _same_per_block("evaluation episodes", succeeded, lambda run: run.eval_episodes, across=True),
        _same_per_block("environment steps", succeeded, lambda run: run.env_steps, across=True),
        _seed_gate(inputs),
        _same_per_block("code revision", inputs.runs, lambda run: run.code_revision),
        _plugin_gate(inputs.runs),
        _hand_gate(inputs.runs),
    )


def flag_gates(inputs: ReportInputs, clock: Clock) -> tuple[Gate, ...]:
    """Return the gates of class flag in a fixed order; ``clock``: the analysis that stands."""
    return (
        _balance_gate(inputs),
        _driver_gate(inputs.runs),
        _complete_gate(inputs, clock),
        _lost_gate(inputs),
        _resumed_gate(inputs.runs),
        _deterministic_gate(inputs.runs),
    )


def is_balanced(runs: Sequence[RunFacts], labels: Sequence[str]) -> bool | None:
    """Return whether arms are spread evenly over devices (counts differ by at most 1), None if unknown."""
    if not runs or any(run.device is None for run in runs):
        return None
    counts = Counter((run.device, run.arm) for run in runs)
    for device in {run.device for run in runs}:
        own = [counts[device, label] for label in labels]
        if max(own) - min(own) > 1:
            return False
    return True


def _gate(name: str, cls: str, holds: bool | None, detail: str, flag: str | None = None) -> Gate:
    state = NOT_CHECKED if holds is None else PASS if holds else FAIL
    return Gate(name, cls, state, detail if holds is False else "", flag if holds is False else None)


def _hash_gate(inputs: ReportInputs) -> Gate:
    same = analysis_hash(inputs.analysis) == inputs.registered_hash
    return _gate("analysis as registered", "void", same, "the analysis differs from the registered one")


def _primary_gate(inputs: ReportInputs) -> Gate:
    metric = inputs.analysis.primary.metric
    missing = [r.run_id for r in inputs.scores if r.metric == metric and r.status == "ok" and r.raw is None]
    scored = {(r.arm, r.replicate) for r in inputs.scores if r.metric == metric}
    missing += [r.run_id for r in inputs.runs if r.status == "ok" and (r.arm, r.replicate) not in scored]
    detail = f"no {metric} for successful runs {', '.join(sorted(missing))}"
    return _gate("primary metric present", "void", not missing, detail)


def _same_per_block(
    name: str, runs: Sequence[RunFacts], read: Callable[[RunFacts], Hashable], across: bool = False
) -> Gate:
    """Gate: equal between the arms of each block, or over all runs when ``across``."""
    if not runs or any(read(run) is None for run in runs):
        return _gate(name, "void", None, "")
    groups: dict[int, set[Hashable]] = defaultdict(set)
    for run in runs:
        groups[0 if across else run.replicate].add(read(run))
    bad = sorted(block for block, values in groups.items() if len(values) > 1)
    where = "between runs" if across else f"between arms in blocks {', '.join(map(str, bad))}"
    return _gate(name, "void", not bad, f"{name} differs {where}")


def _plugin_gate(runs: Sequence[RunFacts]) -> Gate:
    """Gate: the code of a plug-in is the same in all runs; what it changes belongs to no replicate."""
    codes: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    for run in runs:
        for name, identity in (run.plugins or {}).items():
            for code in codes_of(identity):
                codes[name][code].add(run.replicate)
    changed = [f"{name}: {_by_code(found)}" for name, found in sorted(codes.items()) if len(found) > 1]
    detail = f"the code of a plug-in changed between runs ({'; '.join(changed)}); clone it to train all with one"
    is_known = any(run.plugins is not None for run in runs)
    return _gate("plug-in code", "void", not changed if is_known else None, detail)


def _by_code(replicates: Mapping[str, Set[int]]) -> str:
    return ", ".join(f"{code} in {replicates_text(sorted(found))}" for code, found in sorted(replicates.items()))


def _seed_gate(inputs: ReportInputs) -> Gate:
    if not inputs.analysis.paired:
        return Gate("replicate seeds shared", "void", PASS, "")
    gate = _same_per_block("replicate seeds", inputs.runs, lambda run: run.replicate_seed)
    return Gate("replicate seeds shared", gate.cls, gate.state, gate.detail)


def _hand_gate(runs: Sequence[RunFacts]) -> Gate:
    repeated = sorted(run.run_id for run in runs if run.repeated_by_hand)
    holds = None if not runs else not repeated
    return _gate("no result chosen by hand", "void", holds, f"repeated although decided: {', '.join(repeated)}")


def _balance_gate(inputs: ReportInputs) -> Gate:
    balanced = is_balanced(inputs.runs, [arm.label for arm in inputs.arms])
    detail = "some arm ran more often on one device than another arm"
    return _gate("arm x device balanced", "flag", balanced, detail, "HARDWARE_CONFOUNDED")


def _driver_gate(runs: Sequence[RunFacts]) -> Gate:
    drivers = {run.driver for run in runs}
    holds = None if not runs or None in drivers else len(drivers) == 1
    return _gate("one driver", "flag", holds, "driver or library versions differ between runs", "DRIVER_DIFFERS")


def _complete_gate(inputs: ReportInputs, clock: Clock) -> Gate:
    # at a registered look only the blocks up to it are due
    due = clock.due if clock.look is not None else inputs.planned_blocks
    detail = f"{clock.complete} of {due} planned blocks are complete"
    return _gate("all planned blocks complete", "flag", clock.complete >= due, detail, "INCOMPLETE")


def _lost_gate(inputs: ReportInputs) -> Gate:
    metric = inputs.analysis.primary.metric
    lost = {r.replicate for r in inputs.scores if r.metric == metric and r.status == "lost"}
    share = len(lost) / max(1, inputs.planned_blocks)
    return _gate("at most 10 % of blocks lost", "flag", share <= LOST_SHARE, f"{len(lost)} blocks lost", "MANY_LOST")


def _resumed_gate(runs: Sequence[RunFacts]) -> Gate:
    resumed = [f"{run.arm} of replicate {run.replicate} at {_rounds(run)}" for run in runs if run.resumed_at]
    holds = None if not runs else not resumed
    return _gate("no run resumed", "flag", holds, f"resumed from a checkpoint: {'; '.join(resumed)}", "RESUMED_RUNS")


def _rounds(run: RunFacts) -> str:
    return f"round{'s' * (len(run.resumed_at) > 1)} {', '.join(map(str, run.resumed_at))}"


def _deterministic_gate(runs: Sequence[RunFacts]) -> Gate:
    known = [run.deterministic for run in runs]
    holds = None if not runs or None in known else all(known)
    return _gate("deterministic kernels", "flag", holds, "nondeterministic kernels were on", "NONDETERMINISTIC")
