"""The live comparison of a block: what each arm does over its last episodes, at a complete round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy.orm import Session

from app.store import results
from app.store.tables import Record
from lockstep.nonfinite import jsonable

LAST_EPISODES = 10


def compare_runs(session: Session, runs: Sequence[Record], round_index: int) -> dict[str, Any]:
    """Return means over each run's last 10 episodes up to a common round, and differences to the first.

    Accuracy is the validation accuracy at the end of an episode (percentage points); reward is in
    each arm's own units, so rewards of different modes are never subtracted.
    """
    arms: list[dict[str, Any]] = []
    for run in runs:
        mine = results.last_episodes(session, run.no, round_index, LAST_EPISODES)
        arms.append(
            {
                "group_id": run.label,
                "reward_mode": run.reward_mode,
                "episodes": len(mine),
                "accuracy": _mean([row.final_accuracy for row in mine]),
                "committed_accuracy": _mean([row.committed_accuracy for row in mine]),
                "reward": _mean([row.episode_reward for row in mine]),
            }
        )
    differences = [_difference(arms[0], arm) for arm in arms[1:]]
    return jsonable({"round": round_index, "arms": arms, "differences": differences})


def _mean(values: Sequence[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return sum(present) / len(present) if present else None


def _difference(base: dict[str, Any], arm: dict[str, Any]) -> dict[str, Any]:
    comparable = base["accuracy"] is not None and arm["accuracy"] is not None
    accuracy = arm["accuracy"] - base["accuracy"] if comparable else None
    return {"arm": arm["group_id"], "against": base["group_id"], "accuracy": accuracy}


def log_line(comparison: dict[str, Any]) -> str:
    """Return the line of a comparison for people: ``A (shaped): Acc=.., Reward=..``."""
    parts = []
    for arm in comparison["arms"]:
        accuracy = "no data" if arm["accuracy"] is None else f"{arm['accuracy']:.1f} %"
        reward = "no data" if arm["reward"] is None else f"{arm['reward']:.2f}"
        parts.append(f"{arm['group_id']} ({arm['reward_mode']}): Acc={accuracy}, Reward={reward}")
    return "; ".join(parts)
