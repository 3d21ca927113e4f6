"""Runs before the first round what policies may ask of a device later, so that kernels are compiled and loaded.

A graft is rehearsed alone, since no two of them together bring in another kernel (``captured``), but for validation:
how many images it tries at once depends on how many grafts there are, so all slots are rehearsed together once.
Beside the host a gate asks for no more than a product does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from worker.envs.morph.engine.eager import Job, StepEngine
from worker.envs.morph.engine.validate import ValPlan
from worker.envs.morph.life.actions import Rules
from worker.envs.morph.network.blend import Operator
from worker.envs.morph.network.blueprints import ALLOWED
from worker.envs.morph.network.network import SlotPlan, StepPlan
from worker.envs.morph.task.data import Items


def rehearse(engine: StepEngine, job: Job, rules: Rules, val: Items) -> None:
    """Rehearse every blueprint in every slot, in every part that it may take; the network is worthless afterwards.

    Args:
        engine: that is to be ready.
        job: an epoch of a network without grafts.
        rules: which grafts there are.
        val: items to validate on.
    """
    if not engine.loads:
        return
    engine.rehearse(job, val)
    network = job.network
    # weights that nothing is computed from
    generator = np.random.Generator(np.random.Philox(key=0))
    for slot in range(len(network.slots) if rules.can_grow else 0):
        for blueprint in sorted(ALLOWED[rules.topology]):
            for operator in Operator:
                network.germinate(slot, blueprint, operator, generator)
                for step_plan, val_plan in _parts(slot, operator, rules):
                    engine.rehearse(replace(job, step_plan=step_plan, val_plan=val_plan), val)
                network.clear()
    _all_together(engine, job, rules, val, generator)


def _all_together(engine: StepEngine, job: Job, rules: Rules, val: Items, generator: np.random.Generator) -> None:
    network = job.network
    slots = network.in_execution_order(range(len(network.slots)))
    if not rules.can_grow or len(slots) < 2:
        return
    for slot in slots:
        network.germinate(slot, min(ALLOWED[rules.topology]), Operator.ADD, generator)
    blended = tuple(SlotPlan(slot, "blend") for slot in slots)
    engine.rehearse(replace(job, step_plan=blended, val_plan=ValPlan(tuple(slots))), val)
    network.clear()


def _parts(slot: int, operator: Operator, rules: Rules) -> Iterator[tuple[StepPlan, ValPlan]]:
    """Yield a graft in the host, and beside it; one cut off from it runs a part of the former."""
    yield (SlotPlan(slot, "blend"),), ValPlan((slot,))
    if operator is not Operator.GATE:
        yield (SlotPlan(slot, rules.config.train_signal, detach=True),), ValPlan((), prospective=(slot,))
