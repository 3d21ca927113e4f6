"""How far the evaluations of an experiment are, as its workers told with their last heartbeats.

Rounds say nothing while policies are evaluated, which may take longer than the training between.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import Session

from app.store.queue import leases
from lockstep.replicates import replicates_text


def evaluating(session: Session, experiment_id: str) -> dict[str, Any] | None:
    """Return how far the long evaluations of an experiment are, with a sentence; None when there is none.

    ``over`` of ``episodes`` have ended, of all arms; those that go on have taken ``steps`` of ``max_steps`` at least.
    """
    found = [(row.replicate, row.progress["evaluation"]) for row in leases.evaluations(session, experiment_id)]
    if not found:
        return None
    replicates = sorted({replicate for replicate, _ in found})
    over, episodes = (sum(numbers[name] for _, numbers in found) for name in ("over", "episodes"))
    steps, most = (min(numbers[name] for _, numbers in found) for name in ("steps", "max_steps"))
    text = f"{over} of {episodes} episodes are over after {steps:,} of at most {most:,} steps"
    return {
        "text": f"evaluating {replicates_text(replicates)}: {text}",
        "replicates": replicates,
        "over": over,
        "episodes": episodes,
        "steps": steps,
        "max_steps": most,
    }
