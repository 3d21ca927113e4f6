"""The rollout's rewriting of the past, floors in force, recurrent state over ends."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.worker.rl.cases import HEADS, learner_config, make_learner, random_rollout
from worker.envs.base import Correction, Observation
from worker.rl.algorithms.ppo import prepare, update
from worker.rl.config import LearnerConfig
from worker.rl.heads import Floors
from worker.rl.learner import Streams
from worker.rl.rollout import Rollout

T, E = 12, 4


@pytest.mark.parametrize("step", [0, T // 2, T - 1])
def test_a_correction_makes_one_terminal_row_with_its_pay_and_keeps_the_prefix(step: int) -> None:
    learner = make_learner(learner_config("lstm"), HEADS, 5, E)
    rollout = random_rollout(learner, HEADS, T, np.random.default_rng(0), ends=0.0)
    prefix = rollout.rewards[:step, 1].clone()
    rollout._correct(Correction(1, step, -10.0))
    assert float(rollout.rewards[step, 1]) == -10.0
    assert bool(rollout.terminated[step, 1])
    assert int(rollout.terminated[:, 1].sum()) == 1
    assert rollout.valid[:, 1].tolist() == [t <= step for t in range(T)]
    assert torch.equal(rollout.rewards[:step, 1], prefix)
    assert bool(rollout.valid[:, [0, 2, 3]].all())
    prepared = prepare(learner, rollout, 0.01, None)
    assert float(prepared.returns[step, 1]) == pytest.approx(-10.0, abs=1e-4)
    update(learner, prepared, 1e-3, np.random.default_rng(0))


def test_state_is_zero_at_an_episode_start() -> None:
    learner = make_learner(learner_config("lstm"), HEADS, 5, E)
    rollout = random_rollout(learner, HEADS, T, np.random.default_rng(0), ends=1.0)
    assert float(rollout.state[0].abs().sum()) == 0.0
    assert float(rollout.states[-1][0].abs().sum()) > 0.0


def test_floors_of_the_rollout_are_those_of_the_update() -> None:
    learner = make_learner(learner_config("mlp", prob_floor={"op": 0.1}), HEADS, 5, E)
    floors = Floors.build(learner.heads, {"op": 0.1}, {"op": (2,)}, 1.0)
    rollout = random_rollout(learner, HEADS, T, np.random.default_rng(0))
    again = Rollout(T, learner.heads, None)
    noise = Streams(3).action_noise(0, (T, E, len(HEADS)))
    again.begin(Observation(rollout.raw[0], rollout.ids[0]), {k: m[0] for k, m in rollout.masks.items()}, ())
    for name in ("raw", "ids", "rewards", "terminated", "truncated", "valid"):
        getattr(again, name).copy_(getattr(rollout, name))
    for name, mask in again.masks.items():
        mask.copy_(rollout.masks[name])
    again.finals = rollout.finals
    for t in range(T):
        again.act(learner.net, t, noise[t], floors)
    metrics = update(learner, prepare(learner, again, 0.01, floors), 0.0, np.random.default_rng(0))
    assert metrics["ratio_max"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["ratio_min"] == pytest.approx(1.0, abs=1e-5)


def test_action_noise_is_a_function_of_env_round_step_and_head() -> None:
    few, many = (Streams(5).action_noise(2, (T, n, 3)) for n in (2, 6))
    assert torch.equal(few, many[:, :2])
    assert torch.equal(Streams(5).action_noise(2, (T + 3, 2, 3))[:T], few)
    assert not torch.equal(few, Streams(5).action_noise(3, (T, 2, 3)))
    assert not torch.equal(few, Streams(5, arm=1).action_noise(2, (T, 2, 3)))
    assert float(few.max()) < 1.0


def test_unknown_and_missing_settings_are_named() -> None:
    from lockstep.spec.resolve import parse

    raw = {"experiment": {"name": "t", "kind": "aa", "replicates": 1}, "preset": "digits_cpu"}
    config = dict(parse({**raw, "arms": [{"label": "A"}, {"label": "B"}]}).arms[0].config)
    assert LearnerConfig.parse(config).net.body == "lstm"
    with pytest.raises(ValueError, match=r"/net/widht: unknown key 'widht'"):
        LearnerConfig.parse({**config, "net": {**config["net"], "widht": 3}})
    for section, change, words in (
        ("precision", {"policy": "fp16"}, "'fp32' or 'bf16'"),
        ("ppo", {"minibatches": 9}, "env.n_envs=4"),
        ("obs_norm", {"sharing": "live"}, "'per_arm' or 'shared_frozen'"),
    ):
        with pytest.raises(ValueError, match=words):
            LearnerConfig.parse({**config, section: {**config[section], **change}})
