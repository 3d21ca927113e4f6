"""Random lives on every preset: legal ops never break an invariant, illegal ones raise and change nothing.

The rules are written down here a second time, slot by slot, from environment.md 3.1, 3.2 and 10.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lockstep.spec.tasks import TASKS, LmShape, TaskSpec, get_task
from tests.worker.envs.morph.factories import act, make, rng
from worker.envs.morph.episode.env import MorphEnvs
from worker.envs.morph.life import actions
from worker.envs.morph.life.actions import ALPHA_TARGETS, canonical_action, relevant_heads
from worker.envs.morph.life.alpha import Ramp
from worker.envs.morph.life.stages import Op, Stage
from worker.envs.morph.network.network import Cell
from worker.envs.morph.network.optim import Stepper
from worker.envs.morph.network.params import ParamStore
from worker.envs.morph.task import data
from worker.envs.morph.task.config import EnvConfig
from worker.envs.morph.task.data import Arrays

#: environment.md 3.1.
CHAIN = {
    Stage.DORMANT: {Stage.GERMINATED},
    Stage.GERMINATED: {Stage.TRAINING, Stage.PRUNED},
    Stage.TRAINING: {Stage.BLENDING, Stage.PRUNED},
    Stage.BLENDING: {Stage.HOLDING, Stage.PRUNED},
    Stage.HOLDING: {Stage.BLENDING, Stage.FOSSILIZED, Stage.PRUNED},
    Stage.FOSSILIZED: set(),
    Stage.PRUNED: {Stage.EMBARGOED},
    Stage.EMBARGOED: {Stage.RESETTING},
    Stage.RESETTING: {Stage.DORMANT},
}
LIVE = {Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.HOLDING, Stage.FOSSILIZED}
BUSY = {Stage.GERMINATED, Stage.TRAINING, Stage.PRUNED, Stage.EMBARGOED, Stage.RESETTING}
#: Uniform choices prune most grafts before they blend; these weights let lives reach every stage.
WEIGHTS = np.array([1.0, 4.0, 1.0, 0.3, 0.5, 6.0])


def small_data(task: TaskSpec) -> Arrays:
    """A few random items in the shape of the task's data set."""
    draw, host = rng(3), task.host
    if isinstance(host, LmShape):
        length = 12 * (host.block_len + 1)
        spans = {"train": (0, 8 * length), "val": (8 * length, 9 * length), "test": (9 * length, 10 * length)}
        text = draw.integers(0, 256, 10 * length, dtype=np.uint8)
        return Arrays(text, np.zeros(0, np.uint8), {k: np.array(v, np.int64) for k, v in spans.items()})
    images = draw.integers(0, 256, (80, host.in_channels, host.size, host.size), dtype=np.uint8)
    splits = {"train": np.arange(40), "val": np.arange(40, 60), "test": np.arange(60, 80)}
    labels = draw.integers(0, 10, 80, dtype=np.uint8)
    mean = (0.5,) * host.in_channels
    return Arrays(images, labels, splits, mean, mean, 255.0)


def environments(name: str, *, narrow: bool, seed: int, **chosen: Any) -> MorphEnvs:
    """One environment of a preset at 1 batch of 8; ``narrow`` shrinks the language models."""
    task = get_task(name)
    if narrow and isinstance(task.host, LmShape):
        task = replace(task, host=replace(task.host, width=24, heads=4, block_len=16))
    wanted = chosen.pop("slots", None)
    if wanted is not None:
        known = [slot.id for slot in task.host.slots()]
        chosen["slots"] = tuple(slot for index, slot in enumerate(known) if wanted >> index & 1) or task.slots
    config = EnvConfig.for_task(name, task=task, batch_size=8, batches_per_step=1, val_images=16, **chosen)
    with patch.object(data, "load", lambda *_: small_data(task)):
        return make(config, seed=seed)


@dataclass
class Life:
    """Plays random ops in one environment and checks it after every step."""

    envs: MorphEnvs
    draw: np.random.Generator

    def __post_init__(self) -> None:
        self.envs.begin_round(0)
        self.world = self.envs.runs[0].world
        self.table, self.network = self.world.table, self.world.networks[0]
        self.stages: set[Stage] = set()
        self.ops: set[Op] = set()
        self.refused = 0

    def play(self, steps: int) -> None:
        for _ in range(steps):
            if not self.world.running[0]:
                return
            self.check_masks()
            self.try_illegal()
            self.step()
            self.check_state()

    def step(self) -> None:
        stages, epochs = self.table.stage[0].copy(), self.table.epochs_in_stage[0].copy()
        before = [None if cell is None else (cell, *contents(cell.store)) for cell in self.network.live]
        action = self.legal_action()
        self.stepped: list[ParamStore] = []
        plain = Stepper.step

        def step(stepper: Stepper, store: ParamStore, grad: torch.Tensor, active: torch.Tensor) -> torch.Tensor:
            self.stepped.append(store)
            return plain(stepper, store, grad, active)

        with patch.object(Stepper, "step", step):
            result = self.envs.step([act(self.envs, action)])[0]
        assert result is not None
        assert bool(torch.isfinite(result.observation.features).all())
        self.ops.add(Op(action[0]))
        for slot, (here, past) in enumerate(zip(stages, epochs, strict=True)):
            self.check_move(slot, Stage(int(here)), int(past))
            held = before[slot]
            if held is not None:
                self.check_training(slot, *held)

    def legal_action(self) -> list[int]:
        found, heads = self.envs.runs[0].legal, self.envs.heads
        weights = WEIGHTS * found.op[0]
        action = canonical_action(heads)
        op = Op(int(self.draw.choice(len(weights), p=weights / weights.sum())))
        action[0] = int(op)
        masks = {"slot": found.slot[0, op]}
        for index, used in enumerate(relevant_heads(op, heads)):
            if not used or index == 0:
                continue
            name = heads[index].name
            options = masks.get(name, np.ones(heads[index].size, dtype=bool))
            action[index] = int(self.draw.choice(np.flatnonzero(options)))
            if name == "slot":
                masks["blueprint"] = found.blueprint[0, action[1]]
                masks["alpha_target"] = found.alpha_target[0, op, action[1]]
        return action

    def check_masks(self) -> None:
        found = self.envs.runs[0].legal
        for op in list(Op)[1:]:
            expected = [self.slot_legal(op, slot) for slot in range(len(self.world.slots))]
            assert found.slot[0, op].tolist() == expected, op.name
            assert bool(found.op[0, op]) == any(expected)
        assert found.op[0, Op.WAIT]
        for name, mask in actions.masks(found, self.envs.heads).items():
            assert bool(mask.any(-1).all()) or name == "slot"

    def slot_legal(self, op: Op, slot: int) -> bool:
        """The tables of 3.2 and 10 for one slot."""
        table, config = self.table, self.envs.config
        stage = Stage(int(table.stage[0, slot]))
        rests = table.alpha.mode[0, slot] == Ramp.HOLD
        if op is Op.GERMINATE:
            all_stages = [Stage(int(value)) for value in table.stage[0]]
            count = sum(value in LIVE for value in all_stages)
            room = config.max_grafts is None or count < config.max_grafts
            waits = config.sequential_development and any(value in BUSY for value in all_stages)
            return stage is Stage.DORMANT and room and not waits and any(self.fits(slot))
        if op is Op.ADVANCE:
            return self.gate(slot, stage)
        if op is Op.FOSSILIZE:
            return stage is Stage.HOLDING and self.gate_5(slot)
        if op is Op.PRUNE:
            old = table.age[0, slot] >= config.pace.min_prune_age
            return stage in LIVE - {Stage.FOSSILIZED} and bool(rests and old)
        return stage in {Stage.BLENDING, Stage.HOLDING} and bool(rests)

    def fits(self, slot: int) -> list[bool]:
        """Whether each blueprint of the topology can be held by the budget, at its largest operator."""
        budget, rules = self.envs.config.param_budget, self.world.rules
        left = np.inf if budget is None else budget - self.table.params[0].sum()
        allowed = (2, 3, 8, 9, 10, 11) if self.envs.config.task.is_text else range(1, 8)
        return [bool(rules.sizes[slot, blueprint] <= left) for blueprint in allowed]

    def gate(self, slot: int, stage: Stage) -> bool:
        where, config, tracker = (0, slot), self.envs.config, self.world.tracker
        strict, waited = config.gates == "strict", self.table.epochs_in_stage[0, slot] >= config.pace.dwell
        covered = {Stage.GERMINATED: "g1", Stage.TRAINING: "g2", Stage.BLENDING: "g3"}.get(stage)
        if covered is None or covered in config.auto_advance:
            return False
        if stage is Stage.GERMINATED:
            return True
        if stage is Stage.TRAINING:
            sure = tracker.prospective[where] > 2.0 * tracker.prospective_se[where]
            return bool(waited and tracker.health[where] >= 0.7 and tracker.exploding[where] == 0.0) and (
                not strict or bool(sure)
            )
        ramps = self.table.alpha
        there = abs(ramps.alpha[where] - ramps.target[where]) <= 1e-6 and ramps.mode[where] == Ramp.HOLD
        return bool(there and (not strict or (ramps.target[where] == 1.0 and waited)))

    def gate_5(self, slot: int) -> bool:
        tracker, where = self.world.tracker, (0, slot)
        if not tracker.fresh[where] or np.isnan(tracker.loss_gain[where]):
            return False
        sure = tracker.loss_gain[where] > 2.0 * tracker.loss_gain_se[where] and tracker.accuracy_gain[where] >= 1.0
        return self.envs.config.gates == "permissive" or bool(sure)

    def try_illegal(self) -> None:
        """Send a random action; where the rules forbid it, it must raise and leave everything as it was."""
        action = [int(self.draw.integers(-1, head.size + 1)) for head in self.envs.heads]
        if self.draw.random() < 0.7:  # indices inside their heads, canonical where irrelevant
            action = [max(0, min(index, head.size - 1)) for index, head in zip(action, self.envs.heads, strict=True)]
            used = relevant_heads(Op(action[0]), self.envs.heads)
            action = [a if u else head.canonical for a, u, head in zip(action, used, self.envs.heads, strict=True)]
        if self.allowed(action):
            return
        before = self.everything()
        with pytest.raises(ValueError, match="env 0"):
            self.envs.step([act(self.envs, action)])
        assert self.everything() == before
        self.refused += 1

    def allowed(self, action: list[int]) -> bool:
        heads = self.envs.heads
        if any(not 0 <= index < head.size for index, head in zip(action, heads, strict=True)):
            return False
        op, slot, blueprint, alpha = Op(action[0]), action[1], action[2], action[5]
        used = relevant_heads(op, heads)
        if any(not u and a != head.canonical for a, u, head in zip(action, used, heads, strict=True)):
            return False
        if op is Op.WAIT:
            return True
        if op is Op.GERMINATE and not self.envs.runs[0].legal.blueprint[0, slot, blueprint]:
            return False
        same = abs(self.table.alpha.alpha[0, slot] - ALPHA_TARGETS[alpha]) < 1e-6
        return self.slot_legal(op, slot) and not (op is Op.SET_ALPHA_TARGET and same)

    def everything(self) -> list[bytes]:
        arrays = [getattr(self.table, item.name) for item in fields(self.table) if item.name != "alpha"]
        arrays += [getattr(self.table.alpha, item.name) for item in fields(self.table.alpha)]
        stores = [self.network.store, *(cell.store for cell in self.network.live if cell is not None)]
        return [np.asarray(a).tobytes() for a in arrays] + [s.flat.numpy().tobytes() for s in stores]

    def check_move(self, slot: int, here: Stage, past: int) -> None:
        now, epochs = Stage(int(self.table.stage[0, slot])), int(self.table.epochs_in_stage[0, slot])
        taken = self.rolled_back() and now is Stage.PRUNED
        assert now is here or now in CHAIN[here] or taken, (here.name, now.name)
        assert epochs == (past + 1 if now is here else 1)
        self.stages.add(now)

    def check_training(self, slot: int, cell: Cell, flat: torch.Tensor, momentum: torch.Tensor) -> None:
        """A frozen graft keeps weights and momenta; one that left keeps no optimiser state."""
        if self.network.live[slot] is None:
            assert not cell.store.momentum.any()
            assert not cell.store.second.any()
            return
        falling = self.table.alpha.mode[0, slot] == Ramp.DOWN
        if self.table.stage[0, slot] == Stage.GERMINATED or falling:
            assert torch.equal(cell.store.flat, flat)
            assert torch.equal(cell.store.momentum, momentum)

    def check_state(self) -> None:
        table, network, config = self.table, self.network, self.envs.config
        stages = [Stage(int(value)) for value in table.stage[0]]
        alpha, mode = table.alpha.alpha[0], table.alpha.mode[0]
        assert [cell is not None for cell in network.live] == [stage in LIVE for stage in stages]
        assert ((alpha >= 0.0) & (alpha <= 1.0)).all()
        for slot, stage in enumerate(stages):
            if stage not in {Stage.BLENDING, Stage.HOLDING, Stage.FOSSILIZED}:
                assert alpha[slot] == 0.0
            if stage in {Stage.HOLDING, Stage.FOSSILIZED}:
                assert alpha[slot] > 0.0
                assert mode[slot] == Ramp.HOLD
        assert sum(stage in {Stage.GERMINATED, Stage.TRAINING} for stage in stages) <= 1
        sizes = [0 if cell is None else sum(p.numel() for p in cell.graft.parameters()) for cell in network.live]
        assert table.params[0].tolist() == sizes
        assert sum(p.numel() for p in network.host.parameters()) == config.task.host.params() == network.host_params
        assert config.param_budget is None or sum(sizes) <= config.param_budget
        assert config.max_grafts is None or sum(stage in LIVE for stage in stages) <= config.max_grafts
        self.check_optimisers(stages)

    def check_optimisers(self, stages: list[Stage]) -> None:
        """The step updates host and learning grafts, and each store covers its module exactly once."""
        learning = [slot for slot, stage in enumerate(stages) if stage in LIVE - {Stage.GERMINATED}]
        if not self.rolled_back():
            expected = [self.network.store, *(self.network.cell(slot).store for slot in learning)]
            assert sorted(map(id, self.stepped)) == sorted(map(id, expected))
        for store in [self.network.store, *(cell.store for cell in self.network.live if cell is not None)]:
            assert_covers(store)

    def rolled_back(self) -> bool:
        return self.world.accounts[0].rollback is not None


def assert_covers(store: ParamStore) -> None:
    owned = {id(param) for param in store.module.parameters() if param.requires_grad}
    assert {id(param) for param in store.params} == owned
    spans = sorted((param.data_ptr() - store.flat.data_ptr(), param.nbytes) for param in store.params)
    stops = np.cumsum([size for _, size in spans]).tolist()
    assert [start for start, _ in spans] == [0, *stops[:-1]]
    assert stops[-1] == store.flat.nbytes


def contents(store: ParamStore) -> tuple[torch.Tensor, torch.Tensor]:
    return store.flat.clone(), store.momentum.clone()


chances = st.fixed_dictionaries(
    {
        "pace": st.sampled_from(["quick", "standard"]),
        "gates": st.sampled_from(["permissive", "permissive", "strict"]),
        "slots": st.sampled_from([None, 0b1, 0b101, 0b1111, 0b1111111111]),
        "max_grafts": st.sampled_from([None, None, 1, 2]),
        "param_budget": st.sampled_from([None, None, 3_000]),
        "auto_advance": st.sampled_from([(), (), ("g1", "g3"), ("g1", "g2", "g3")]),
        "train_signal": st.sampled_from(["shadow", "ste"]),
        "ablate_fossils": st.sampled_from(["always", "final"]),
        "sequential_development": st.just(True),
    }
)


@pytest.mark.parametrize("name", list(TASKS))
def test_random_lives_on_every_preset_never_break_an_invariant(name: str) -> None:
    life = Life(environments(name, narrow=True, seed=11, pace="quick", horizon=40), rng(5))
    life.play(40)
    assert life.refused >= 20
    assert {Op.GERMINATE, Op.ADVANCE} <= life.ops
    assert {Stage.TRAINING, Stage.BLENDING} <= life.stages


@settings(max_examples=3, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(list(TASKS)), chances, st.integers(0, 2**31))
def test_random_lives_of_200_steps_never_break_an_invariant(name: str, chosen: dict[str, Any], seed: int) -> None:
    Life(environments(name, narrow=True, seed=seed, horizon=200, **chosen), rng(seed)).play(200)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(TASKS))
@settings(max_examples=4, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(chances, st.integers(0, 2**31))
def test_random_lives_of_200_steps_on_every_preset_at_full_width(name: str, chosen: dict[str, Any], seed: int) -> None:
    Life(environments(name, narrow=False, seed=seed, horizon=200, **chosen), rng(seed)).play(200)
