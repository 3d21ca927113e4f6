"""Learning algorithms by the ``policy`` of an arm. A new one is an entry here and in ``lockstep.spec.algorithms``."""

from __future__ import annotations

from dataclasses import replace

from worker.rl.algorithms import ppo, ppo_stack
from worker.rl.algorithms.base import Algorithm

ALGORITHMS: dict[str, Algorithm] = {"ppo": replace(ppo.ALGORITHM, stacking=ppo_stack.STACKING)}
