"""The live comparison of a block: what each arm does over its last episodes, at a complete round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy.orm import Session

from app.store.records import results
from app.store.rows.experiments import RunOfArm
from lockstep.nonfinite import jsonable
from lockstep.spec.environments.family import Shown

LAST_EPISODES = 10
#: Scores that arms are compared by: field of an arm, column of the episode row.
_SCORES = {
    "accuracy": "final_accuracy",
    "committed_accuracy": "committed_accuracy",
    "loss": "final_loss",
    "param_ratio": "param_ratio",
}
#: Scores that stand among the further values of an episode, under the same name.
_FURTHER_SCORES = ("native_return", "success", "grafts_fossilized")


def compare_runs(session: Session, runs: Sequence[RunOfArm], round_index: int) -> dict[str, Any]:
    """Return means over each run's last 10 episodes up to a common round, and differences to the first.

    Accuracy is the validation accuracy at the end of an episode (percentage points), the native return is in the
    environment's own reward; a score that the task does not have is None. Reward is in each arm's own units, so
    rewards of different modes are never subtracted.
    """
    arms: list[dict[str, Any]] = []
    last = results.last_episodes(session, [run.no for run in runs], round_index, LAST_EPISODES)
    for run in runs:
        mine = last[run.no]
        arms.append(
            {
                "group_id": run.label,
                "reward_mode": run.reward_mode,
                "episodes": len(mine),
                **{field: _mean([getattr(row, column) for row in mine]) for field, column in _SCORES.items()},
                **{field: _mean([row.further.get(field) for row in mine]) for field in _FURTHER_SCORES},
                "reward": _mean([row.episode_reward for row in mine]),
            }
        )
    differences = [_difference(arms[0], arm) for arm in arms[1:]]
    return jsonable({"round": round_index, "arms": arms, "differences": differences})


def _mean(values: Sequence[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return sum(present) / len(present) if present else None


def _difference(base: dict[str, Any], arm: dict[str, Any]) -> dict[str, Any]:
    difference = {"arm": arm["group_id"], "against": base["group_id"]}
    for field in ("accuracy", "native_return"):
        comparable = base[field] is not None and arm[field] is not None
        difference[field] = arm[field] - base[field] if comparable else None
    return difference


def log_line(comparison: dict[str, Any], shown: Shown) -> str:
    """Return the line of a comparison for people: ``A (shaped): Acc=.., Reward=..``."""
    parts = []
    for arm in comparison["arms"]:
        texts = [f"Reward={_text(arm['reward'], '.2f')}"]
        if shown.field == "accuracy":
            texts.insert(0, f"Acc={_text(arm['accuracy'], '.1f', ' %')}")
        elif shown.field != "reward":
            texts.insert(0, f"{shown.label.capitalize()}={_text(arm[shown.field], '.2f', f' {shown.unit}'.rstrip())}")
        parts.append(f"{arm['group_id']} ({arm['reward_mode']}): {', '.join(texts)}")
    return "; ".join(parts)


def _text(value: float | None, form: str, unit: str = "") -> str:
    return "no data" if value is None else f"{value:{form}}{unit}"
