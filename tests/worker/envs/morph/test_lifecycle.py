"""Transitions, alpha controller and gates."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worker.envs.morph.factories import tiny
from worker.envs.morph.engine.tracker import Tracker
from worker.envs.morph.life import gates
from worker.envs.morph.life.alpha import AlphaController, Curve, Ramp, shape
from worker.envs.morph.life.lifecycle import LEGAL, SlotTable
from worker.envs.morph.life.stages import Stage
from worker.envs.morph.task.config import EnvConfig

RUNNING = np.ones(1, dtype=bool)


@pytest.mark.parametrize(("here", "to"), list(itertools.product(Stage, Stage)))
def test_transition_is_accepted_exactly_when_it_is_in_the_table(here: Stage, to: Stage) -> None:
    table = SlotTable.empty(1, 1)
    table.stage[0, 0], table.epochs_in_stage[0, 0] = here, 7
    if (here, to) not in LEGAL:
        with pytest.raises(ValueError, match=f"from {here.name} to {to.name}"):
            table.move(0, 0, to)
        assert table.stage[0, 0] == here
        return
    table.move(0, 0, to)
    assert table.stage[0, 0] == to
    assert (table.previous_stage[0, 0], table.previous_epochs[0, 0]) == (here, 7)
    assert table.epochs_in_stage[0, 0] == 0


def test_fossil_is_terminal() -> None:
    assert not [pair for pair in LEGAL if pair[0] is Stage.FOSSILIZED]


def test_reserved_stage_numbers_are_rejected() -> None:
    for number in (0, 5):
        with pytest.raises(ValueError, match="not a valid Stage"):
            Stage(number)


def test_embargo_of_zero_steps_is_passed_through() -> None:
    table = SlotTable.empty(1, 1)
    table.stage[0, 0] = Stage.HOLDING
    table.prune(0, 0)
    seen = []
    for _ in range(3):
        table.end_step(RUNNING)
        seen.append(Stage(int(table.stage[0, 0])))
        table.tick_empty(RUNNING, 0)
    assert seen == [Stage.PRUNED, Stage.RESETTING, Stage.DORMANT]


def test_time_of_an_idle_environment_stands_still() -> None:
    table = SlotTable.empty(2, 1)
    table.move(0, 0, Stage.GERMINATED)
    table.blueprint[0, 0] = 1
    table.end_step(np.array([False, True]))
    assert table.age[0, 0] == 0
    assert table.epochs_in_stage.tolist() == [[0], [1]]


@settings(deadline=None, derandomize=True)
@given(st.sampled_from(list(Curve)), st.lists(st.floats(0, 1), min_size=2, max_size=20))
def test_ramp_shape_is_monotone_from_zero_to_one(curve: Curve, points: list[float]) -> None:
    t = np.array([0.0, *sorted(points), 1.0])
    values = shape(np.full(len(t), curve), t)
    assert values[0] == pytest.approx(0.0, abs=1e-12)
    assert values[-1] == pytest.approx(1.0, abs=1e-12)
    assert (np.diff(values) >= -1e-12).all()


@settings(deadline=None, derandomize=True)
@given(st.floats(0, 1), st.floats(0, 1), st.integers(0, 8), st.sampled_from(list(Curve)))
def test_ramp_arrives_exactly_and_never_turns_back(start: float, target: float, steps: int, curve: Curve) -> None:
    alpha = AlphaController.zeros(1, 1)
    alpha.snap(0, 0, start)
    alpha.retarget((0, 0), target, steps, curve)
    values = [float(alpha.alpha[0, 0])]
    for _ in range(steps):
        alpha.step(RUNNING)
        values.append(float(alpha.alpha[0, 0]))
    assert values[-1] == target
    assert alpha.mode[0, 0] == Ramp.HOLD
    direction = np.sign(target - start)
    assert (np.diff(values) * direction >= 0).all()


def test_retarget_during_a_ramp_raises() -> None:
    alpha = AlphaController.zeros(1, 1)
    alpha.retarget((0, 0), 1.0, 3, Curve.LINEAR)
    with pytest.raises(ValueError, match="under way"):
        alpha.retarget((0, 0), 0.5, 3, Curve.LINEAR)
    with pytest.raises(ValueError, match="outside"):
        AlphaController.zeros(1, 1).retarget((0, 0), 1.5, 0, Curve.LINEAR)


def state(stage: Stage, **measured: float) -> tuple[SlotTable, Tracker]:
    table, tracker = SlotTable.empty(1, 1), Tracker.unmeasured(1, 1)
    table.stage[0, 0], table.epochs_in_stage[0, 0] = stage, 10
    for name, value in measured.items():
        getattr(tracker, name)[0, 0] = value
    return table, tracker


def verdict(config: EnvConfig, table: SlotTable, tracker: Tracker) -> bool:
    found = gates.evaluate(table, tracker, config)
    return bool((found.advance() | found.fossilize)[0, 0])


@pytest.mark.parametrize(("measured", "passes"), [
    ({}, False),
    ({"health": 1.0, "exploding": 0.0}, True),
    ({"health": 0.69, "exploding": 0.0}, False),
    ({"health": 0.8, "exploding": 0.2}, False),
])  # fmt: skip
def test_gate_2_needs_measured_health_without_explosion(measured: dict[str, float], passes: bool) -> None:
    table, tracker = state(Stage.TRAINING, **measured)
    assert verdict(tiny(), table, tracker) == passes
    table.epochs_in_stage[0, 0] = 1
    assert not verdict(tiny(), table, tracker)


def test_strict_gate_2_needs_a_prospect_beyond_two_errors() -> None:
    good = {"health": 1.0, "exploding": 0.0}
    strict = tiny(gates="strict")
    assert not verdict(strict, *state(Stage.TRAINING, **good))
    assert not verdict(strict, *state(Stage.TRAINING, **good, prospective=0.1, prospective_se=0.05))
    assert verdict(strict, *state(Stage.TRAINING, **good, prospective=0.11, prospective_se=0.05))


def test_gate_3_needs_arrival_and_strict_gate_3_full_alpha() -> None:
    table, tracker = state(Stage.BLENDING)
    table.alpha.snap(0, 0, 0.5)
    assert verdict(tiny(), table, tracker)
    assert not verdict(tiny(gates="strict"), table, tracker)
    table.alpha.retarget((0, 0), 1.0, 2, Curve.LINEAR)
    assert not verdict(tiny(), table, tracker)
    table.alpha.snap(0, 0, 1.0)
    assert verdict(tiny(gates="strict"), table, tracker)


# defect 25
def test_gate_5_needs_a_fresh_contribution_and_strict_gate_5_a_sure_one() -> None:
    strict = tiny(gates="strict")
    good = {"accuracy_gain": 1.0, "loss_gain": 0.2, "loss_gain_se": 0.09}
    assert not verdict(tiny(), *state(Stage.HOLDING, **good))
    assert verdict(tiny(), *state(Stage.HOLDING, **good, fresh=True))
    assert verdict(strict, *state(Stage.HOLDING, **good, fresh=True))
    for name, value in (("accuracy_gain", 0.9), ("loss_gain", 0.18), ("loss_gain_se", 0.11)):
        assert not verdict(strict, *state(Stage.HOLDING, **{**good, name: value}, fresh=True))
    assert not verdict(strict, *state(Stage.HOLDING, accuracy_gain=9.0, fresh=True))
