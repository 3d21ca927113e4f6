"""An arm with its whole configuration: what the rules of families and algorithms read. Plain records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lockstep.spec import sections
from lockstep.spec.text.problems import pointer


def discount_of(config: Mapping[str, Any]) -> float:
    """Return the discount of an arm's configuration. It belongs to the task: what is learnt and what shaping pays."""
    # stored under the one algorithm there was first, where every older spec has it
    return float(config["ppo"]["gamma"])


def action_bounds_of(config: Mapping[str, Any]) -> str:
    """Return how an arm's real-numbered actions are brought between their bounds; clipped where nothing is said."""
    return str(config.get("action", {}).get("bounds") or sections.CLIP)


@dataclass(frozen=True)
class Difference:
    """One field in which an arm departs from the base."""

    path: str
    base: Any
    value: Any


@dataclass(frozen=True)
class ResolvedArm:
    """An arm with its whole training configuration (plain data) and what differs from the base.

    Attributes:
        static_set: {slot: blueprint} of a static control; None also where ``copied`` is yet to be looked up.
        copied: the finished episode whose grafts a static control asks for.
    """

    label: str
    policy: str
    reward_mode: str
    static_set: Mapping[str, str] | None
    config: Mapping[str, Any]
    diff: tuple[Difference, ...]
    copied: sections.FinishedEpisode | None = None

    def at(self, index: int, section: str, name: str) -> str:
        """Return the pointer to a field of this arm (number ``index``): its override, or else the base section."""
        path = f"{section}.{name}"
        own = any(difference.path == path for difference in self.diff)
        return pointer("arms", index, "overrides", path) if own else pointer(section, name)
