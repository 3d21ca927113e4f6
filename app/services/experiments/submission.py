"""Submission: dry run, submit, clone, extend, retry. What is refused leaves nothing behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy.orm import Session

from app.errors import ConflictError, InvalidError
from app.services import quotas
from app.services.audit import record
from app.services.context import Actor, Context
from app.services.queue.placement import Fit, Need, WorkerView, fit, most_blocks, pack_size
from app.services.queue.scheduling import need_from, worker_view
from app.services.results import grown_grafts
from app.services.results.reports import pilot_scores
from app.services.steering import check_priority, existing, owned
from app.services.training import catalog
from app.store import experiments
from app.store.database.engine import utc
from app.store.experiments import NewBlock
from app.store.queue import scheduling, workers
from app.store.records import reports
from app.store.records.events import NewEvent, add_events
from app.store.rows.experiments import ExperimentRow
from lockstep.quoting import quoted
from lockstep.report.inputs import codes_by_name
from lockstep.spec import rules
from lockstep.spec.arms import ResolvedArm
from lockstep.spec.defaults import complete
from lockstep.spec.environments.families import family_of
from lockstep.spec.homes import is_at_home
from lockstep.spec.inference.analysis import estimand_reason
from lockstep.spec.inference.analysis_rules import analysis_hash, seed_problems
from lockstep.spec.inference.power import power_table
from lockstep.spec.packing import packing_of
from lockstep.spec.plan import Plan, as_document, make_plan
from lockstep.spec.presets import merge
from lockstep.spec.resolve import ResolvedSpec, parse
from lockstep.spec.rules import Registered
from lockstep.spec.text.problems import InvalidSpecError, Problem
from lockstep.status import BlockStatus, Desired

#: Fewest complete blocks that a pilot must have.
_LEAST_PILOT = 3
_COPY = " (copy)"
#: Longest name of an experiment.
MAX_NAME = 200


@dataclass(frozen=True)
class Checked:
    """A specification that may be submitted, with its warnings, and the pilot's scores that it names."""

    resolved: ResolvedSpec
    warnings: list[str]
    registered: Registered
    pilot: list[list[float]] | None


def check(ctx: Context, raw: Mapping[str, Any]) -> Checked:
    """Validate a specification against schema, rules, registered names and linked experiments.

    Raises:
        InvalidError: ``invalid_spec`` with every problem found.
    """
    try:
        return _checked(ctx, raw)
    except InvalidSpecError as error:
        raise _invalid(error.problems) from error


def _checked(ctx: Context, raw: Mapping[str, Any]) -> Checked:
    try:
        resolved = parse(raw)
    except InvalidSpecError as error:
        with ctx.store.read() as session:
            registered = _registered(session)
        raise InvalidSpecError(rules.all_problems(raw, error.problems, registered)) from error
    with ctx.store.read() as session:
        if any(arm.copied for arm in resolved.arms):
            resolved = _with_copies(session, raw, resolved)
        registered = _registered(session)
        tuning = experiments.seeds_of(session, resolved.spec.experiment.tuning)
        pilot = _pilot(session, resolved)
    resolved = complete(resolved, registered)
    problems, warnings = rules.check(resolved, registered)
    problems.extend(_tuning_problems(resolved, tuning))
    problems.extend(_pilot_problems(pilot, resolved))
    if problems:
        raise InvalidSpecError(problems)
    return Checked(resolved, warnings, registered, pilot)


def _registered(session: Session) -> Registered:
    """Return what workers have announced."""
    rewards, environments, registries = workers.registered_names(session)
    return Registered(rewards, environments, {kind: catalog.read(session, keys) for kind, keys in registries.items()})


def _with_copies(session: Session, raw: Mapping[str, Any], resolved: ResolvedSpec) -> ResolvedSpec:
    """Resolve again with the grafts that finished episodes ended with, so that the spec says all by itself."""
    problems, arms = [], list(raw["arms"])
    for index, arm in enumerate(resolved.arms):
        if arm.copied is not None:
            grown = grown_grafts.copy(session, arm.copied, task=resolved.spec.env.task, arm_index=index)
            problems += [grown] if isinstance(grown, Problem) else []
            arms[index] = {**arms[index], "static_set": grown}
    if problems:
        raise InvalidSpecError(problems)
    return parse({**raw, "arms": arms})


def _invalid(problems: Any) -> InvalidError:
    faults = list(problems)
    first = faults[0]
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    detail = f"{first.pointer or '/'}: {first.message}{more}"
    return InvalidError(detail, code="invalid_spec", errors=faults)


def _tuning_problems(resolved: ResolvedSpec, seeds: Mapping[str, int]) -> list[Problem]:
    problems = []
    for index, experiment_id in enumerate(resolved.spec.experiment.tuning):
        at = f"/experiment/tuning/{index}"
        if experiment_id not in seeds:
            problems.append(Problem(at, "unknown_experiment", f"no experiment {quoted(experiment_id)}", "check the id"))
    used = [name for name, seed in seeds.items() if seed == resolved.spec.experiment.seed]
    if resolved.spec.analysis is not None:
        problems.extend(seed_problems(resolved.spec.analysis, used_in_tuning=used))
    return problems


def _pilot(session: Session, resolved: ResolvedSpec) -> list[list[float]] | None:
    """Return the scores that the power is planned with, none where the pilot is unknown or has not ended."""
    analysis = resolved.spec.analysis
    if analysis is None or analysis.pilot is None:
        return None
    experiment = experiments.get(session, analysis.pilot.experiment)
    if experiment is None or experiment.finished_at is None:
        return []
    return pilot_scores(session, experiment.id, analysis)


def _pilot_problems(pilot: list[list[float]] | None, resolved: ResolvedSpec) -> list[Problem]:
    analysis = resolved.spec.analysis
    if pilot is None or analysis is None or analysis.pilot is None or len(pilot) >= _LEAST_PILOT:
        return []
    message = (
        f"experiment {analysis.pilot.experiment!r} has {len(pilot)} complete blocks of {analysis.primary.metric}; a "
        f"pilot is an experiment that has ended with at least {_LEAST_PILOT}"
    )
    remedy = "name such an experiment, or give analysis.pilot_sd"
    return [Problem("/analysis/pilot/experiment", "E_PILOT", message, remedy)]


def plan(ctx: Context, raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a submission would do; writes nothing."""
    checked = check(ctx, raw)
    resolved = checked.resolved
    planned = make_plan(resolved)
    with ctx.store.read() as session:
        views = [worker_view(row, idle=row.status == "idle") for row in scheduling.registered_workers(session)]
        now = ctx.store.now(session)
        shares = scheduling.owner_use(session, now).shares
        ahead = len(scheduling.eligible_blocks(session, now, shares, limit=10_000))
    need = need_from(needs_document(checked, planned), resolved.spec.lockstep.placement, len(resolved.arms))
    choice = fit(need, views)
    placement = choice.placement if isinstance(choice, Fit) else resolved.spec.lockstep.placement
    waits = None if isinstance(choice, Fit) else {"code": choice.code, "text": choice.text}
    return {
        **as_document(planned),
        "placement": placement,
        "waits": waits,
        "packs": _packs(need, len(planned.blocks), views, ctx.settings.owner_device_limit)
        if placement == "shared_device"
        else None,
        "pack_limit": {"replicates": need.pack, "why": packing_of(resolved).why},
        "queue_position": ahead + 1,
        "seconds_estimate": _duration(planned, min(len(views), ctx.settings.owner_device_limit)),
        "warnings": [*checked.warnings, *_short_rounds(resolved, planned)],
        "spec": resolved.document,
        "spec_hash": resolved.hash,
        "arms": [_arm_document(arm) for arm in resolved.arms],
        "quantity": _quantity(resolved),
        "power": _power(resolved, checked.pilot),
    }


def _packs(need: Need, num_blocks: int, views: Sequence[WorkerView], most: int) -> dict[str, int] | None:
    """Return up to how many replicates a free worker, of ``most``, would train side by side now; None where alone."""
    able = [view for view in views if view.idle and isinstance(fit(need, [view]), Fit)]
    size = min(pack_size(need, num_blocks, views, most), max((most_blocks(need, view) for view in able), default=1))
    return {"replicates": size, "workers": min(len(able), most)} if able and size > 1 else None


def _duration(planned: Plan, num_workers: int) -> float | None:
    if planned.seconds_per_block is None:
        return None
    waves = -(-len(planned.blocks) // max(1, num_workers))
    return planned.seconds_per_block * waves


def _short_rounds(resolved: ResolvedSpec, planned: Plan) -> list[str]:
    if planned.seconds_per_block is None:
        return []
    seconds = planned.seconds_per_block / resolved.spec.budget.rounds
    is_apart = resolved.spec.lockstep.placement == "one_per_device"
    if not is_apart or seconds >= 2.0:
        return []
    return [f"a round lasts about {seconds:.1f} s; below 2 s the barrier over HTTP costs a visible share"]


def _quantity(resolved: ResolvedSpec) -> str | None:
    """Return which quantity the analysis judges, and why, in one sentence."""
    analysis = resolved.spec.analysis
    return None if analysis is None or analysis.inference == "none" else estimand_reason(analysis)


def _power(resolved: ResolvedSpec, pilot: list[list[float]] | None) -> list[dict[str, Any]]:
    analysis = resolved.spec.analysis
    if analysis is None or analysis.inference == "none":
        return []
    rows = [asdict(row) for row in power_table(analysis, len(resolved.arms), pilot=pilot)]
    return [row | {"curve": [point | {"verdicts": dict(point["verdicts"])} for point in row["curve"]]} for row in rows]


def _arm_document(arm: ResolvedArm) -> dict[str, Any]:
    return {
        "label": arm.label,
        "policy": arm.policy,
        "reward_mode": arm.reward_mode,
        "diff": [{"path": d.path, "base": d.base, "value": d.value} for d in arm.diff],
    }


def needs_document(checked: Checked, planned: Plan) -> dict[str, Any]:
    """Return what a worker must have to train an experiment."""
    resolved, spec = checked.resolved, checked.resolved.spec
    family, packing = family_of(spec.env.kind), packing_of(resolved)
    modes = {arm.reward_mode for arm in resolved.arms} | {*spec.eval.xeval_modes}
    return {
        "memory_bytes": planned.memory_bytes,
        "dataset": family.dataset(spec.env),
        "environment": _environment(checked) if family.is_package else None,
        "rewards": sorted(modes - {*family.reward_modes}),
        "pack": packing.at_most,
        "pack_evenly": packing.evenly,
        "at_home": is_at_home(resolved, is_batched=checked.registered.is_batched(spec.env)),
    }


def _environment(checked: Checked) -> str:
    """A registered environment is needed by its own name, any other by its kind."""
    env = checked.resolved.spec.env
    return env.id if env.id is not None and env.id in checked.registered.environments else env.kind


def submit(ctx: Context, raw: Mapping[str, Any], actor: Actor, *, parent_id: str | None = None) -> str:
    """Store an experiment with its blocks and runs; return its id.

    Raises:
        InvalidError: ``invalid_spec`` with every problem found.
        ForbiddenError: its priority is above what a submitter may give.
        ConflictError: ``over_quota``.
    """
    checked = check(ctx, raw)
    resolved = checked.resolved
    check_priority(ctx, actor, resolved.spec.experiment.priority)
    planned = make_plan(resolved)
    experiment_id = ctx.store.new_id("exp")
    with ctx.store.write() as session:
        quotas.check(ctx, session, actor.principal, actor.name)
        now = ctx.store.now(session)
        equal = experiments.equal_to(session, actor.principal, resolved.hash)
        told = [_of_equal(session, equal)] if equal else []
        values = {
            **_experiment_values(checked, planned, raw),
            "warnings": [*checked.warnings, *told],
            "id": experiment_id,
            "owner": actor.principal,
            "owner_name": actor.name,
            "rank": experiments.next_rank(session),
            "parent_id": parent_id,
            "created_at": utc(now),
        }
        experiments.insert_experiment(session, values, _arm_rows(resolved))
        new = [NewBlock(block.replicate, 0, len(block.arms)) for block in planned.blocks]
        experiments.insert_blocks(ctx.store, session, now, experiment_id, new)
        text = f"submitted: {len(resolved.arms)} arms x {len(planned.blocks)} replicates"
        add_events(session, now, experiment_id, [NewEvent("submitted", text, actor=actor.name)])
        record(ctx, session, actor, "experiment.submit", experiment_id, None, {"spec_hash": resolved.hash})
    ctx.bell.ring()
    return experiment_id


def _of_equal(session: Session, equal: str) -> str:
    """Return that an equal experiment exists, and whether its runs are these again: code of plug-ins may change."""
    codes = codes_by_name(run.record for run in experiments.runs(session, equal))
    told = f"an equal experiment, {equal}, exists"
    changed = [name for name, used in codes.items() if len(used) > 1]
    if changed:
        return f"{told}; the code of plug-in {changed[0]!r} changed between its runs, so these are other ones"
    same = [f"{name!r} is still {used[0]}" for name, used in codes.items()]
    return f"{told}: the same runs again" + (f", if plug-in {' and '.join(same)}" if same else "")


def _experiment_values(checked: Checked, planned: Plan, raw: Mapping[str, Any]) -> dict[str, Any]:
    resolved = checked.resolved
    spec = resolved.spec
    analysis = spec.analysis
    return {
        "name": spec.experiment.name,
        "notes": spec.experiment.notes,
        "tags": list(spec.experiment.tags),
        "kind": spec.experiment.kind,
        "mode": spec.experiment.mode,
        "spec": resolved.document,
        "submitted": dict(raw),
        "spec_hash": resolved.hash,
        "analysis": analysis.model_dump(mode="json") if analysis is not None else None,
        "analysis_hash": analysis_hash(analysis) if analysis is not None else None,
        "warnings": checked.warnings,
        "seed": str(spec.experiment.seed),
        "rounds": spec.budget.rounds,
        "num_arms": len(resolved.arms),
        "placement": spec.lockstep.placement,
        "needs": needs_document(checked, planned),
        "priority": spec.experiment.priority,
        "desired": Desired.RUN,
        "version": 1,
        "event_seq": 0,
    }


def _arm_rows(resolved: ResolvedSpec) -> list[dict[str, Any]]:
    return [
        {
            **_arm_document(arm),
            "arm_index": index,
            "static_set": dict(arm.static_set) if arm.static_set else None,
            "config": dict(arm.config),
        }
        for index, arm in enumerate(resolved.arms)
    ]


def clone(ctx: Context, experiment_id: str, overrides: Mapping[str, Any], actor: Actor) -> str:
    """Submit a copy of an experiment with sections of its spec laid over; return the new id."""
    with ctx.store.read() as session:
        source = existing(session, experiment_id)
    raw = merge(source.submitted, {"experiment": {"name": copied_name(source.name)}})
    raw = merge(raw, overrides)
    return submit(ctx, raw, actor, parent_id=experiment_id)


def copied_name(name: str) -> str:
    """Return the name of a copy, within the length of a name."""
    return name if name.endswith(_COPY) else f"{name[: MAX_NAME - len(_COPY)]}{_COPY}"


def extend(ctx: Context, experiment_id: str, replicates: int, actor: Actor, *, exploratory: bool) -> list[str]:
    """Append replicates where the registered analysis allows it (statistics.md 8).

    Raises:
        ConflictError: ``extension_breaks_guarantee`` unless ``exploratory``; ``over_quota``.
    """
    with ctx.store.write() as session:
        experiment = owned(session, experiment_id, actor)
        quotas.check(ctx, session, experiment.owner, experiment.owner_name)
        if experiment.desired == Desired.CANCEL:
            raise ConflictError("the experiment was cancelled", code="terminal")
        now = ctx.store.now(session)
        rows = experiments.newest_blocks(experiments.blocks(session, experiment_id))
        is_reported = reports.get(session, experiment_id) is not None
        reason = _extension_refused(experiment, len(rows), replicates, is_reported=is_reported)
        if reason and not exploratory:
            raise ConflictError(
                f"{reason}; ask with exploratory: true (lockstep extend --exploratory) to add blocks outside of the "
                "registered analysis, or submit a new linked experiment with fresh seeds",
                code="extension_breaks_guarantee",
            )
        first = rows[-1].replicate + 1 if rows else 0
        if first + replicates > 1000:
            raise InvalidError(f"at most 1000 replicates; {first} exist", code="too_many_replicates")
        new = [NewBlock(first + offset, 0, experiment.num_arms) for offset in range(replicates)]
        ids = experiments.insert_blocks(ctx.store, session, now, experiment_id, new)
        values: dict[str, Any] = {"finished_at": None}
        if reason and experiment.exploratory_from is None:
            values["exploratory_from"] = first
        experiments.change(session, experiment_id, **values)
        text = f"extended by {replicates} replicates" + (" (exploratory, after data were seen)" if reason else "")
        add_events(session, now, experiment_id, [NewEvent("extended", text, actor=actor.name)])
        after = {"replicates": replicates}
        record(ctx, session, actor, "experiment.extend", experiment_id, None, after, effect={"blocks": ids})
    ctx.bell.ring()
    return ids


def _extension_refused(experiment: ExperimentRow, present: int, replicates: int, *, is_reported: bool) -> str | None:
    """Return why the plan forbids an extension, or None; a verdict that stands on pages and in lists has been seen."""
    if experiment.mode == "smoke":
        return "a smoke run is never part of a comparison"
    analysis = experiment.analysis or {}
    mode = analysis.get("looks", {}).get("mode", "fixed")
    if mode == "anytime" or analysis.get("inference") == "none":
        return None
    if mode == "planned":
        last = max(analysis["looks"]["at"])
        return None if present + replicates <= last else f"the last registered look is at {last} blocks"
    if experiment.unblinded_at is None and not is_reported:
        return None
    return "the plan has one analysis at a fixed number of blocks and its result has been seen"


def retry(ctx: Context, experiment_id: str, actor: Actor) -> list[str]:
    """Create the next generation of every failed block; refused where there is none."""
    with ctx.store.write() as session:
        experiment = owned(session, experiment_id, actor)
        now = ctx.store.now(session)
        newest = experiments.newest_blocks(experiments.blocks(session, experiment_id))
        failed = [row for row in newest if row.status == BlockStatus.FAILED]
        if not failed:
            raise ConflictError("no block of this experiment has failed", code="nothing_to_retry")
        quotas.check(ctx, session, experiment.owner, experiment.owner_name)
        new = [NewBlock(row.replicate, row.generation + 1, experiment.num_arms) for row in failed]
        ids = experiments.insert_blocks(ctx.store, session, now, experiment_id, new)
        # a paused experiment stays paused: its blocks wait for the resume
        desired = Desired.RUN if experiment.desired == Desired.CANCEL else experiment.desired
        experiments.change(session, experiment_id, finished_at=None, desired=desired)
        text = f"retry of {len(failed)} failed blocks"
        add_events(session, now, experiment_id, [NewEvent("retried", text, actor=actor.name)])
        after = {"blocks": ids}
        record(ctx, session, actor, "experiment.retry", experiment_id, None, after, effect=after)
    ctx.bell.ring()
    return ids
