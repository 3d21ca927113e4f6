"""What grew in finished runs, for static controls that copy it (environment.md 11).

The answer is written into the specification at submission: what happens to the source afterwards changes nothing.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import Session

from app.store import experiments
from app.store.records import results
from lockstep.spec.sections import FinishedEpisode
from lockstep.spec.text.problems import Problem, pointer
from lockstep.status import RunStatus


def copy(session: Session, source: FinishedEpisode, *, task: str, arm_index: int) -> dict[str, str] | Problem:
    """Return {slot: blueprint} of the grafts at work when an evaluation episode ended, or why it cannot be copied.

    Args:
        session: reading session.
        source: run and evaluation episode.
        task: task of the new experiment; grafts of another task's host are refused.
        arm_index: arm that asks, for the problem's pointer.
    """
    at = pointer("arms", arm_index, "static_set")
    run = experiments.run(session, source.run)
    if run is None:
        return Problem(f"{at}/run", "unknown_run", f"no run {source.run!r}", "name a run of this server")
    if run.status != RunStatus.SUCCEEDED:
        message = f"run {source.run!r} is {run.status}, not finished"
        return Problem(f"{at}/run", "run_not_finished", message, "wait for it to succeed, or name another")
    used = _task_of(session, run.experiment_id)
    if used != task:
        message = f"run {source.run!r} grew in {used}, this experiment has {task}"
        return Problem(f"{at}/run", "other_task", message, "name a run of the same task")
    episode = results.last_evaluation(session, run.no, source.episode)
    if episode is None:
        message = f"run {source.run!r} has no evaluation episode {source.episode}"
        return Problem(f"{at}/episode", "unknown_episode", message, "name one of its last evaluation, the first is 0")
    grafts: dict[str, str] = dict(episode.get("topology") or {})
    if not grafts:
        message = f"episode {source.episode} of run {source.run!r} ended with no graft at work"
        return Problem(f"{at}/episode", "nothing_grown", message, "name another episode, or use policy noop")
    return grafts


def _task_of(session: Session, experiment_id: str) -> str | None:
    experiment = experiments.get(session, experiment_id)
    env: dict[str, Any] = {} if experiment is None else experiment.spec["env"]
    return str(env["task"]) if env.get("kind") == "morphogenesis" else None
