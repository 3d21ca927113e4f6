"""What is rehearsed before round 0 covers what policies may grow, and leaves nothing behind."""

from __future__ import annotations

from itertools import product
from typing import Any

import torch

from tests.worker.envs.morph.factories import act, germinate, host_state, make, play, row, tiny
from worker.envs.morph.engine.eager import Engine, Job
from worker.envs.morph.episode.env import MorphEnvs
from worker.envs.morph.life.stages import Op
from worker.envs.morph.network.blend import Operator
from worker.envs.morph.network.blueprints import ALLOWED
from worker.envs.morph.task.data import Items


class Rehearsed(Engine):
    """The plain path as one that has something to load: it trains what it is shown."""

    loads = True

    def __init__(self, plain: Engine) -> None:
        super().__init__(plain.precision, plain.data, plain.device)
        self.shown: list[Job] = []
        self.grafts: set[tuple[int, int, Operator]] = set()

    def rehearse(self, job: Job, val: Items) -> None:
        self.shown.append(job)
        grafts = [(item.slot, job.network.cell(item.slot).graft) for item in job.step_plan]
        self.grafts |= {(slot, graft.blueprint, graft.operator) for slot, graft in grafts}
        self.issue([job], val)


def rehearsed(**made: Any) -> tuple[MorphEnvs, Rehearsed]:
    envs = make(tiny(), **made)
    assert isinstance(envs.engine, Engine)
    envs.engine = engine = Rehearsed(envs.engine)
    envs.rehearse()
    return envs, engine


def test_every_blueprint_is_rehearsed_in_every_slot_beside_the_host_and_in_it() -> None:
    envs, engine = rehearsed()
    slots = range(len(envs.runs[0].world.slots))
    assert engine.grafts == set(product(slots, ALLOWED["cnn"], Operator))
    assert engine.shown[0].step_plan == ()
    assert {item.how for job in engine.shown for item in job.step_plan} == {"shadow", "blend"}
    beside = [job for job in engine.shown for item in job.step_plan if item.how == "shadow"]
    assert len(beside) == 2 * len(slots) * len(ALLOWED["cnn"])  # a gate asks for no more than a product
    assert sorted(item.slot for item in engine.shown[-1].step_plan) == [*slots]
    assert all(job.val_plan.slots == tuple(item.slot for item in job.step_plan) for job in engine.shown)


def test_every_kind_of_host_is_rehearsed() -> None:
    _, engine = rehearsed(policies=["static_wide", "noop"], static_set={"r0c0": "bottleneck"})
    assert len({job.network.host_params for job in engine.shown}) == 2
    assert engine.grafts


def test_a_rehearsal_leaves_nothing_behind() -> None:
    fresh, (used, _) = make(tiny()), rehearsed()
    for envs in (fresh, used):
        envs.begin_round(0)
        play(envs, germinate(envs, 0))
        play(envs, row(envs, Op.ADVANCE, 0))
        envs.step([act(envs, row(envs))])
    assert torch.equal(host_state(fresh), host_state(used))
    one, other = (envs.runs[0].world.networks[0].cell(0).store for envs in (fresh, used))
    assert all(torch.equal(*both) for both in zip(one.state(), other.state(), strict=True))


def test_nothing_is_rehearsed_where_nothing_is_loaded() -> None:
    envs = make(tiny())
    envs.rehearse()
    assert envs.runs[0].world.networks[0]._cells == {}
