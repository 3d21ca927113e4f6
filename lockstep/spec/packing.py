"""How many replicates of an experiment one worker may train side by side in one process (``lockstep.pack``).

A guess of what is worth it, from the specification alone; which blocks are packed is the scheduler's choice. Nothing
here may change a number: packed or alone, a run's results are equal bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from lockstep.spec.algorithms import ALGORITHMS
from lockstep.spec.families import family_of
from lockstep.spec.resolve import ResolvedSpec

#: Runs beyond which one more in a process saves little and its failure would cost many.
_RUNS = 32


@dataclass(frozen=True)
class Packing:
    """How replicates may be packed.

    Attributes:
        at_most: replicates that one worker may hold.
        evenly: whether a worker takes no more than its even share of what waits, and gives back what others can take.
    """

    at_most: int
    evenly: bool


def packing_of(resolved: ResolvedSpec) -> Packing:
    """Return how the replicates of an experiment may be packed."""
    section, env = resolved.spec.lockstep, resolved.spec.env
    if section.pack != "auto":
        return Packing(section.pack, evenly=False)
    learnt = [arm for arm in resolved.arms if arm.policy in ALGORITHMS]
    pays = bool(learnt) and all(_is_stacked(arm.config) for arm in learnt)
    if section.placement == "one_per_device" or not family_of(env.kind).packs or not pays:
        return Packing(1, evenly=True)
    return Packing(int(max(1, min(_RUNS // len(resolved.arms), _between_looks(resolved)))), evenly=True)


def _between_looks(resolved: ResolvedSpec) -> float:
    """Return the fewest replicates from one look at the data to the next: a look may end what is packed beyond it."""
    analysis = resolved.spec.analysis
    if analysis is None or analysis.looks.mode == "fixed":
        return math.inf
    if analysis.looks.mode == "anytime":
        return 1
    return min(after - before for before, after in pairwise((0, *analysis.looks.at)))


def _is_stacked(config: Mapping[str, Any]) -> bool:
    """Return whether several such runs may be acted for in one forward; images of no named encoder show later."""
    floors, net = config["ppo"]["prob_floor"].values(), config["net"]
    is_plain = net["body"] == "mlp" and net.get("encoder") is None and config["precision"]["policy"] == "fp32"
    return is_plain and not any(floor > 0 for floor in floors)
