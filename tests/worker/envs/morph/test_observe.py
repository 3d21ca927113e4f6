"""Observation schema 1: every index of the table, and that looking changes nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from lockstep.spec.tasks import action_order
from tests.worker.envs.morph.factories import act, germinate, make, play, row, tiny
from worker.envs.morph.engine.tracker import Tracker
from worker.envs.morph.episode.observe import BASE, PER_SLOT, Observer, View, obs_spec
from worker.envs.morph.life import actions
from worker.envs.morph.life.lifecycle import SlotTable
from worker.envs.morph.life.stages import Op, Stage
from worker.envs.morph.network.blueprints import blueprint_id
from worker.envs.morph.task.config import EnvConfig

UNIT = math.log(10)


def view(config: EnvConfig) -> View:
    table, tracker = SlotTable.empty(1, 2), Tracker.unmeasured(1, 2)
    for name in ("loss", "accuracy", "accuracy_se", "best_accuracy"):
        getattr(tracker, name)[0] = 1.0
    zero = np.zeros(1, dtype=np.int64)
    return View(table, tracker, zero.copy(), zero - 1, np.ones(1, dtype=bool), zero.copy(), 152)


def build(config: EnvConfig, state: View) -> Tensor:
    slots = action_order([s for s in config.task.host.slots() if s.id in config.slots])
    return Observer(config, slots).build(state).features[0]


def slot_part(features: Tensor, slot: int) -> Tensor:
    return features[BASE + PER_SLOT * slot : BASE + PER_SLOT * (slot + 1)]


def test_layout_of_three_slots_has_158_features_and_170_inputs() -> None:
    spec = obs_spec(3)
    assert spec.num_features == 158
    assert spec.num_features + spec.num_ids * spec.id_dim == 170
    assert spec.id_vocab == 13


# defects 35 and 36
def test_empty_slots_and_reset_show_the_sentinels() -> None:
    config = tiny()
    features = build(config, view(config))
    assert features[3:8].tolist() == [-1.0] * 5
    assert features[8:13].tolist() == [-1.0] * 5
    assert (float(features[18]), float(features[25])) == (-1.0, -1.0)
    assert features[19:25].tolist() == [0.0] * 6
    assert features[28:30].tolist() == [1.0, 1.0]
    for slot in range(2):
        part = slot_part(features, slot)
        expected = torch.zeros(PER_SLOT)
        expected[1] = 1.0
        expected[[13, 14, 29, 30, 31, 32, 33]] = -1.0
        expected[38:41] = part[38:41]
        assert torch.equal(part, expected)


# defect 36
def test_every_slot_feature_stands_at_its_index() -> None:
    config = tiny(horizon=10, param_budget=500, max_grafts=4)
    state = view(config)
    table, tracker, where = state.table, state.tracker, (0, 1)
    state.step[0] = 6
    table.stage[where], table.blueprint[where], table.operator[where] = Stage.TRAINING, 5, 2
    table.params[where], table.epochs_in_stage[where], table.age[where], table.tempo[where] = 100, 1, 4, 2
    table.alpha.alpha[where], table.alpha.target[where], table.alpha.mode[where] = 0.25, 0.7, 1
    table.alpha.steps_total[where], table.alpha.steps_done[where] = 3, 1
    values = {
        "accuracy_gain": -2.0, "loss_gain": 0.1, "loss_gain_se": 0.05, "measured_at": 3.0, "velocity": 0.4,
        "prospective": 0.02, "interaction_sum": -0.03, "grad_norm": 2.0, "health": 0.9,
        "vanishing": 0.1, "exploding": 0.2, "previous_health": 0.8,
    }  # fmt: skip
    for name, value in values.items():
        getattr(tracker, name)[where] = value
    part = slot_part(build(config, state), 1).tolist()
    expected = {
        0: 1.0, 1: 0.0, 3: 1.0, 10: 0.25, 11: -0.2, 12: 0.1 / (0.1 * UNIT), 13: 0.05 / (0.1 * UNIT),
        14: 0.995**2, 15: 0.04, 16: 0.02 / (0.1 * UNIT), 17: 1.0, 18: -0.03 / (0.1 * UNIT), 19: 1.0,
        20: 2 / 3, 21: 0.7, 22: 1.0, 23: 1.0, 24: 1 / 3, 25: 2 / 3, 26: 0.0, 27: 0.0, 28: 1.0,
        29: math.log(3) / 7, 30: 0.9, 31: 0.1, 32: 0.2, 33: 0.8, 34: 0.1, 35: 0.5, 36: 0.4,
        37: math.log(1 + 100 / 152) / 5, 38: 2 / 3, 39: 2 / 3, 40: 0.2, 41: 0.0,
    }  # fmt: skip
    for index, value in expected.items():
        assert part[index] == pytest.approx(value, abs=1e-6), index
    base = build(config, state)
    assert float(base[28]) == pytest.approx(0.8)
    assert float(base[29]) == pytest.approx(0.75)


def test_every_base_feature_stands_at_its_index() -> None:
    config = tiny(horizon=10)
    state = view(config)
    tracker = state.tracker
    state.step[0], state.last_op[0], state.as_chosen[0], state.streak[0] = 3, int(Op.PRUNE), False, 2
    tracker.loss[0], tracker.accuracy[0], tracker.train_loss[0] = UNIT, 40.0, 20 * UNIT
    tracker.accuracy_se[0], tracker.best_accuracy[0] = 2.5, 45.0
    tracker.losses[0, 3:], tracker.accuracies[0, 3:] = (2 * UNIT, UNIT), (30.0, 40.0)
    state.table.params[0, 0] = 152
    state.table.stage[0] = (Stage.HOLDING, Stage.FOSSILIZED)
    features = build(config, state).tolist()
    expected = {
        0: 0.3, 1: 1.0, 2: 0.4, 5: -1.0, 6: 2.0, 7: 1.0, 10: -1.0, 11: 0.3, 12: 0.4, 13: 0.0, 15: 0.5,
        16: 0.5,
        17: 0.0, 18: 0.0, 19: 0.0, 22: 1.0, 25: 5.0, 26: 0.25, 27: math.log(2) / 5, 30: 2 / 3, 31: 0.45,
    }  # fmt: skip
    for index, value in expected.items():
        assert features[index] == pytest.approx(value, abs=1e-6), index


def test_embargo_left_counts_down() -> None:
    config = tiny(pace="standard", horizon=20)
    state = view(config)
    left = []
    for stage, epochs in (
        (Stage.PRUNED, 1),
        (Stage.EMBARGOED, 1),
        (Stage.EMBARGOED, 5),
        (Stage.RESETTING, 1),
    ):
        state.table.stage[0, 0], state.table.epochs_in_stage[0, 0] = stage, epochs
        left.append(float(slot_part(build(config, state), 0)[41]))
    assert left == pytest.approx([1.0, 0.8, 0.0, 0.0])


def test_normalised_features_exclude_bits_one_hots_and_shares() -> None:
    spec = obs_spec(1)
    bits = (*range(10), 17, 19, 22, *range(26, 29), 31, 32)
    exempt = {0, *range(13, 25), 28, 29, *(BASE + i for i in bits)}
    assert not any(bool(spec.continuous[i]) for i in exempt)
    assert bool(spec.continuous[[1, 2, BASE + 11, BASE + 12, BASE + 36]].all())
    signed = [BASE + i for i in (11, 12, 15, 16, 18)]
    assert not bool(spec.sentinel[signed].any())


# defect 22
def test_prospect_is_valid_after_the_first_training_epoch() -> None:
    envs = make(tiny())
    envs.begin_round(0)
    germinated = play(envs, germinate(envs, 0))
    assert float(slot_part(germinated.observation.features[0], 0)[17]) == 0.0
    training = play(envs, row(envs, Op.ADVANCE, 0))
    part = slot_part(training.observation.features[0], 0)
    assert float(part[17]) == 1.0
    assert float(part[16]) != 0.0
    assert training.observation.ids.tolist() == [[blueprint_id("bottleneck"), -1]]


def test_observing_twice_gives_the_same_bits_and_changes_nothing() -> None:
    envs = make(tiny())
    envs.begin_round(0)
    result = play(envs, germinate(envs, 0))
    again = envs._observe(envs.runs[0], envs.runs[0].moment)
    masks = actions.masks(envs.runs[0].legal, envs.heads)
    assert torch.equal(again.features, result.observation.features)
    assert all(torch.equal(masks[name], result.masks[name]) for name in masks)
    envs.step([act(envs, row(envs))])
