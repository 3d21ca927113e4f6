"""How many replicates of an experiment one worker may train side by side in one process (``lockstep.pack``).

A guess of what is worth it, from the specification alone; which blocks are packed is the scheduler's choice. Nothing
here may change a number: packed or alone, a run's results are equal bit for bit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise

from lockstep.spec.algorithms import ALGORITHMS
from lockstep.spec.environments.families import family_of
from lockstep.spec.resolve import ResolvedSpec

#: Runs beyond which one more in a process saves little and its failure would cost many.
_RUNS = 32


@dataclass(frozen=True)
class Packing:
    """How replicates may be packed.

    Attributes:
        at_most: replicates that one worker may hold.
        evenly: whether a worker takes no more than its even share of what waits, and gives back what others can take.
        why: not more, for people.
    """

    at_most: int
    evenly: bool
    why: str = field(default="", compare=False)


def packing_of(resolved: ResolvedSpec) -> Packing:
    """Return how the replicates of an experiment may be packed."""
    section, env = resolved.spec.lockstep, resolved.spec.env
    if section.pack != "auto":
        return Packing(section.pack, evenly=False, why=f"lockstep.pack is {section.pack}")
    obstacle = _obstacle(resolved)
    if section.placement == "one_per_device":
        obstacle = "lockstep.placement one_per_device gives each arm a device"
    if not family_of(env.kind).packs:
        obstacle = f"env.kind {env.kind} is not trained in stacks"
    if obstacle is not None:
        return Packing(1, evenly=True, why=obstacle)
    most, between = max(1, _RUNS // len(resolved.arms)), _between_looks(resolved)
    if between < most:
        return Packing(int(between), evenly=True, why=f"the next look at the data comes after {between:.0f}")
    return Packing(most, evenly=True, why=f"at most {_RUNS} runs in one process")


def _between_looks(resolved: ResolvedSpec) -> float:
    """Return the fewest replicates from one look at the data to the next: a look may end what is packed beyond it."""
    analysis = resolved.spec.analysis
    if analysis is None or analysis.looks.mode == "fixed":
        return math.inf
    if analysis.looks.mode == "anytime":
        return 1
    return min(after - before for before, after in pairwise((0, *analysis.looks.at)))


def _obstacle(resolved: ResolvedSpec) -> str | None:
    """Return why a pack would gain next to nothing; None where all that learns is acted for in one forward.

    Images of no named encoder show later.
    """
    learnt = [arm for arm in resolved.arms if arm.policy in ALGORITHMS]
    for arm in learnt:
        net, precision = arm.config["net"], arm.config["precision"]["policy"]
        obstacles = {
            f"net.encoder {net.get('encoder')}": net.get("encoder") is not None,
            f"precision.policy {precision}": precision != "fp32",
            "ppo.prob_floor": any(floor > 0 for floor in arm.config["ppo"]["prob_floor"].values()),
        }
        found = next((told for told, is_there in obstacles.items() if is_there), None)
        if found is not None:
            return f"arm {arm.label} has {found}, which is not stacked"
    return None if learnt else "no arm learns"
