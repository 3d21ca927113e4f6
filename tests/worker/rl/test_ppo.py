"""The update: ratio one, KL stop, true gradients, masked heads, gates (training.md 1, 8)."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from tests.worker.rl.cases import HEADS, learner_config, make_learner, random_rollout
from worker.envs.base import HeadSpec
from worker.rl.algorithms.ppo import Prepared, prepare, update
from worker.rl.algorithms.ppo_anchor import AnchorMismatch, next_values
from worker.rl.algorithms.ppo_loss import (
    Batch,
    Replay,
    _shares,
    _surrogate,
    _value_loss,
    loss_of_outputs,
    normalise_advantages,
    ppo_loss,
    slopes_of_loss,
)
from worker.rl.config import entropy_coefficient, floor_scale, learning_rate
from worker.rl.heads import Floors, evaluate
from worker.rl.learner import Adam, Learner, adam_step
from worker.rl.nets import FlatParameters
from worker.rl.rollout import PolicyError, Rollout

T, E, O = 16, 6, 5  # noqa: E741 - axis letters
#: A choice beside two Gaussians.
REAL = (HeadSpec("arm", 2, bounds=((-1.0, 1.0),) * 2), HeadSpec("grip", 3), HeadSpec("turn", 1, bounds=((0.0, 2.0),)))


def setup(body: str, heads: tuple[HeadSpec, ...] = HEADS, **changes: Any) -> tuple[Learner, Rollout, Prepared]:
    learner = make_learner(learner_config(body, **changes), heads, O, E)
    with torch.no_grad():
        # away from the nearly uniform initial policy
        noise = np.random.default_rng(4).standard_normal(learner.flat.data.numel())
        learner.flat.data.add_(torch.from_numpy(0.1 * noise).float())
    rollout = random_rollout(learner, heads, T, np.random.default_rng(11))
    return learner, rollout, prepare(learner, rollout, 0.01, None)


def order() -> np.random.Generator:
    return np.random.default_rng(5)


@pytest.mark.parametrize("heads", [HEADS, REAL], ids=["choices", "real"])
@pytest.mark.parametrize("body", ["mlp", "lstm"])
def test_first_minibatch_has_ratio_one_with_episode_ends_inside(body: str, heads: tuple[HeadSpec, ...]) -> None:
    learner, rollout, prepared = setup(body, heads, epochs=1, minibatches=1)
    assert bool((rollout.terminated | rollout.truncated)[:-1].any())
    metrics = update(learner, prepared, 3e-3, order())
    assert abs(metrics["ratio_max"] - 1) < 1e-5
    assert abs(metrics["ratio_min"] - 1) < 1e-5
    assert abs(metrics["approx_kl"]) < 1e-8
    assert metrics["clip_frac"] == 0.0
    assert prepared.anchor_gap < 1e-5


@pytest.mark.parametrize("body", ["mlp", "lstm"])
def test_later_epochs_move_the_ratio_and_a_large_rate_clips_and_stops(body: str) -> None:
    learner, _, prepared = setup(body, epochs=2, minibatches=1)
    metrics = update(learner, prepared, 3e-3, order())
    assert max(metrics["ratio_max"] - 1, 1 - metrics["ratio_min"]) > 1e-4
    learner, _, prepared = setup(body, epochs=8, minibatches=2, target_kl=0.015)
    hot = update(learner, prepared, 30 * 3e-3, order())
    assert hot["clip_frac"] > 0
    assert hot["kl_stop_epoch"] < 7
    assert hot["steps_skipped"] > 0
    assert hot["steps_done"] + hot["steps_skipped"] == 16


def test_steps_after_the_kl_stop_change_nothing() -> None:
    learner, _, prepared = setup("mlp", epochs=1, minibatches=1, target_kl=1e-12)
    # a stop in the second epoch leaves the parameters of the first
    two, _, prepared_two = setup("mlp", epochs=2, minibatches=1, target_kl=1e-12)
    update(learner, prepared, 3e-3, order())
    metrics = update(two, prepared_two, 3e-3, order())
    assert metrics["kl_stop_epoch"] == 1.0
    assert torch.equal(learner.flat.data, two.flat.data)
    assert two.adam.steps == 1


def test_approx_kl_at_ratio_one_and_a_half_is_the_stated_number() -> None:
    rho = 1.5
    assert (rho - 1) - math.log(rho) == pytest.approx(0.0945349, abs=1e-7)
    learner, _, prepared = setup("mlp", epochs=1, minibatches=1)
    batch = prepared.replay.batch
    shifted = batch.old_log_prob.clone()
    shifted[..., 0] -= math.log(rho)
    replay = replace(prepared.replay, batch=replace(batch, old_log_prob=shifted))
    _, stats = ppo_loss(learner.net, replay, prepared.rule)
    assert float(stats[3]) == pytest.approx(0.0945349, abs=1e-5)
    assert float(stats[4]) == 1.0


def test_wait_steps_give_no_gradient_to_the_other_heads() -> None:
    learner, _, prepared = setup("lstm")
    batch = prepared.replay.batch
    rows, relevant = batch.rows, learner.heads.relevant(torch.zeros_like(batch.actions))
    all_wait = replace(
        batch,
        actions=learner.heads.canonical.expand_as(batch.actions) * torch.tensor([0, 1, 1]),
        relevant=relevant,
        rows=rows,
        old_log_prob=torch.where(relevant, batch.old_log_prob - 0.1, 0.0),
    )
    learner.flat.grad.zero_()
    loss, _ = ppo_loss(learner.net, replace(prepared.replay, batch=all_wait), prepared.rule)
    loss.backward()  # type: ignore[no-untyped-call]
    grads = {name: p.grad for name, p in learner.net.named_parameters() if p.grad is not None}
    for index in (1, 2):
        assert float(grads[f"outputs.layers.{index}.weight"].abs().sum()) == 0.0
        assert float(grads[f"outputs.layers.{index}.bias"].abs().sum()) == 0.0
    assert float(grads["outputs.layers.0.weight"].abs().sum()) > 0.0


LOSSES: dict[str, dict[str, Any]] = {
    "joint": {},
    "per_head": {"ratio": "per_head"},
    "value_clip": {"value_clip": 0.05},
    "raw_entropy": {"entropy_normalised": False, "entropy_head_weights": {"op": 2.0, "size": 0.5}},
    "minibatch_norm": {"adv_norm": "minibatch"},
    "floors": {"prob_floor": {"op": 0.1, "size": 0.15}},
    "real": {"heads": REAL},
    "real_per_head": {"heads": REAL, "ratio": "per_head", "entropy_normalised": False},
}


@pytest.mark.parametrize("loss_of", list(LOSSES))
@pytest.mark.parametrize("body", ["mlp", "lstm"])
def test_gradient_of_the_full_loss_equals_finite_differences(body: str, loss_of: str) -> None:
    changes = LOSSES[loss_of]
    learner, _, prepared = setup(body, hidden=8, **changes)
    never = {"op": (2,)} if "prob_floor" in changes else {}
    floors = Floors.build(learner.heads, changes.get("prob_floor", {}), never, 1.0)
    if floors is not None:
        floors = Floors(floors.value.double(), floors.allowed)
    # large enough that a wrong slope of the entropy shows
    prepared = replace(prepared, rule=replace(prepared.rule, entropy_coef=0.5, floors=floors))
    learner.net.double()
    batch = prepared.replay.batch.map(lambda x: x.double() if x.dtype == torch.float32 else x)
    state = tuple(s.double() for s in prepared.replay.state)
    resets = tuple((t, keep.double()) for t, keep in prepared.replay.resets)
    # old values off the current ones, away from the clip kinks at 0.8 and 1.2
    shift = torch.from_numpy(np.random.default_rng(2).uniform(-0.05, 0.05, batch.old_log_prob.shape))
    with torch.no_grad():
        batch = replace(batch, old_log_prob=torch.where(batch.relevant, batch.old_log_prob + shift, 0.0))
        if floors is not None:
            logits, _ = learner.net.sequence(batch.features, batch.ids, state, resets)
            mixed = evaluate(learner.heads, logits, batch.actions, batch.rows, batch.relevant, floors).log_prob
            batch = replace(batch, old_log_prob=torch.where(batch.relevant, mixed + shift, 0.0))
        if "value_clip" in changes:
            # on both sides of the clip
            away = torch.from_numpy(np.random.default_rng(3).uniform(-0.1, 0.1, batch.old_value.shape))
            batch = replace(batch, old_value=batch.old_value + away)
    replay = Replay(batch, state, resets)
    parameters = list(learner.net.parameters())
    loss, _ = ppo_loss(learner.net, replay, prepared.rule)
    grads = torch.autograd.grad(loss, parameters)
    rng = np.random.default_rng(9)
    for parameter, grad in zip(parameters, grads, strict=True):
        direction = torch.from_numpy(rng.standard_normal(tuple(parameter.shape)))
        h = 1e-6
        sides = []
        for sign in (1, -1):
            with torch.no_grad():
                parameter.add_(sign * h * direction)
                sides.append(float(ppo_loss(learner.net, replay, prepared.rule)[0]))
                parameter.sub_(sign * h * direction)
        numeric, exact = (sides[0] - sides[1]) / (2 * h), float((grad * direction).sum())
        assert abs(numeric - exact) <= 1e-5 * max(abs(exact), 1e-3)


ONE_HEAD: dict[str, dict[str, Any]] = {
    "choice": {},
    "value_clip": {"value_clip": 0.05},
    "normalised": {"adv_norm": "minibatch", "entropy_normalised": True, "entropy_head_weights": {"op": 2.0}},
    "real": {"heads": REAL[:1], "entropy_normalised": False},
    "squashed": {"heads": REAL[:1], "action_bounds": "tanh"},
}


@pytest.mark.parametrize("case", list(ONE_HEAD))
def test_derivatives_that_are_written_out_are_those_of_autograd_in_float64(case: str) -> None:
    changes = {"heads": HEADS[:1], **ONE_HEAD[case]}
    learner, _, prepared = setup("mlp", hidden=8, **changes)
    rule = replace(prepared.rule, entropy_coef=0.5)
    whole = prepared.replay.batch.map(lambda x: x.double() if x.dtype == torch.float32 else x)
    draw = np.random.default_rng(2)
    # on both sides of both clips, with ratios beyond their clamp, illegal choices, and steps that count for nothing
    moved = whole.old_log_prob + torch.from_numpy(draw.normal(0.0, 0.4, whole.old_log_prob.shape))
    moved[0, 0], moved[1, 1] = moved[0, 0] + 40.0, moved[1, 1] - 40.0
    value = whole.old_value + torch.from_numpy(draw.uniform(-0.2, 0.2, whole.old_value.shape))
    whole = replace(whole, old_log_prob=moved, old_value=value)
    for name in ("valid", "unforced", "open_steps"):
        getattr(whole, name)[3:5] = 0.0
    if not rule.heads.specs[0].is_gaussian:
        whole.rows[5] &= torch.nn.functional.one_hot(whole.actions[5], 3).bool() | torch.tensor([True, False, False])
    learner.net.double()
    with torch.no_grad():
        logits, values = learner.net.sequence(whole.features, whole.ids, (), ())
    assert not logits.requires_grad
    found = slopes_of_loss(logits, values, whole, rule)
    logits.requires_grad_(), values.requires_grad_()
    loss, stats = loss_of_outputs(logits, values, whole, rule)
    expected = torch.autograd.grad(loss, (logits, values))
    assert torch.allclose(found.loss, loss, rtol=1e-12)
    assert torch.allclose(found.stats, stats, rtol=1e-12, equal_nan=True)
    for slope, wanted in zip((found.by_logits, found.by_values), expected, strict=True):
        assert float(wanted.abs().max()) > 1e-4
        assert torch.allclose(slope, wanted, rtol=1e-10, atol=1e-14)


def test_forced_and_invalid_steps_do_not_enter_policy_loss_or_normalisation() -> None:
    learner, _, prepared = setup("mlp")
    batch = prepared.replay.batch
    unforced = batch.unforced.clone()
    unforced[::2] = 0.0
    wild = torch.where(unforced > 0, batch.advantage, 1e9)
    one = replace(prepared.replay, batch=replace(batch, unforced=unforced))
    two = replace(prepared.replay, batch=replace(batch, unforced=unforced, advantage=wild))
    _, stats_one = ppo_loss(learner.net, one, prepared.rule)
    _, stats_two = ppo_loss(learner.net, two, prepared.rule)
    assert float(stats_one[0]) == float(stats_two[0])
    counts = unforced > 0
    a = normalise_advantages(batch.advantage, unforced, 0.0)
    b = normalise_advantages(wild.where(counts, torch.tensor(0.0)), unforced, 0.0)
    assert torch.equal(a[counts], b[counts])


def test_advantage_floor_is_the_least_divisor() -> None:
    a = torch.tensor([0.0, 0.002])
    ones = torch.ones(2)
    assert normalise_advantages(a, ones, 0.0).tolist() == pytest.approx([-1.0, 1.0])
    assert normalise_advantages(a, ones, 0.1).tolist() == pytest.approx([-0.01, 0.01])


@pytest.mark.parametrize("body", ["mlp", "lstm"])
def test_truncation_bootstraps_the_final_observation_with_the_carried_state(body: str) -> None:
    learner, rollout, _ = setup(body)
    rollout.truncated[:] = False
    rollout.terminated[:] = False
    rollout.truncated[3, 2] = True
    with torch.no_grad():
        values = torch.zeros(T, E)
        after = next_values(learner, rollout, values)
        final, end = rollout.finals[3], rollout.finals[T - 1]
        expected = learner.net.step_values(final.features, final.ids, rollout.states[3])[2]
        last = learner.net.step_values(end.features, end.ids, rollout.states[T - 1])
    torch.testing.assert_close(after[3, 2], expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(after[-1], last, atol=1e-6, rtol=0)
    assert float(after[:3].abs().sum()) == 0.0


def test_a_reward_scale_scales_what_is_learnt_from() -> None:
    learner, rollout, _ = setup("mlp")
    rollout.rewards *= 4
    plain = prepare(learner, rollout, 0.01, None)
    rollout.rewards /= 4
    learner.cfg = replace(learner.cfg, reward_scale=4.0)
    assert torch.equal(prepare(learner, rollout, 0.01, None).returns, plain.returns)


def test_padding_after_an_early_end_never_leaks() -> None:
    results = []
    for filler in (0.0, 50.0):
        learner, rollout, _ = setup("lstm")
        rollout.valid[9:, 1] = False
        rollout.terminated[8, 1] = True
        rollout.features[9:, 1] = filler
        rollout.rewards[9:, 1] = filler
        rollout.log_probs[9:, 1] = 0.0
        prepared = prepare(learner, rollout, 0.01, None)
        update(learner, prepared, 3e-3, order())
        results.append(learner.flat.data.clone())
    assert torch.equal(results[0], results[1])


def test_lstm_minibatches_partition_the_environments() -> None:
    learner, _, prepared = setup("lstm", epochs=1, minibatches=4)
    batch = prepared.replay.batch
    marked = replace(batch, target=torch.arange(E, dtype=torch.float32).expand(T, E).contiguous())
    from worker.rl.algorithms import ppo

    parts = list(ppo._minibatches(learner, replace(prepared.replay, batch=marked), order()))
    rows = [int(x) for part in parts for x in part.batch.target[0].tolist()]
    assert sorted(rows) == list(range(E))
    assert len(parts) == 4


def test_update_repeats_bit_for_bit() -> None:
    for body in ("mlp", "lstm"):
        first, second = (setup(body) for _ in range(2))
        update(first[0], first[2], 3e-3, order())
        update(second[0], second[2], 3e-3, order())
        assert torch.equal(first[0].flat.data, second[0].flat.data)


def test_adam_equals_the_library_optimiser() -> None:
    rng = torch.Generator().manual_seed(0)
    start = torch.randn(50, generator=rng)
    flat = FlatParameters(start.clone(), torch.zeros(50))
    adam = Adam(torch.zeros(50), torch.zeros(50))
    theirs = torch.nn.Parameter(start.clone())
    optimiser = torch.optim.Adam([theirs], lr=0.01, eps=1e-5)
    for _ in range(20):
        grad = torch.randn(50, generator=rng)
        flat.grad.copy_(grad)
        theirs.grad = grad.clone()
        adam_step(flat, adam, 0.01, 1e-5, 1.0)
        optimiser.step()
    torch.testing.assert_close(flat.data, theirs.detach(), atol=1e-6, rtol=1e-5)


def test_non_finite_gradients_are_skipped_and_counted() -> None:
    learner, _, prepared = setup("mlp", epochs=1, minibatches=2)
    target = prepared.replay.batch.target.clone()
    target[:] = torch.nan
    broken = replace(prepared, replay=replace(prepared.replay, batch=replace(prepared.replay.batch, target=target)))
    before = learner.flat.data.clone()
    for dead in (1, 2, 3):
        metrics = update(learner, broken, 3e-3, order())
        assert learner.dead_updates == dead
    assert metrics["steps_non_finite"] == 2.0
    assert torch.equal(learner.flat.data, before)
    update(learner, prepared, 3e-3, order())
    assert learner.dead_updates == 0


def test_an_update_that_would_not_reach_a_parameter_is_refused() -> None:
    learner, _, prepared = setup("lstm")
    parameter = dict(learner.net.named_parameters())["lstm.weight_ih_l0"]
    parameter.data = parameter.data.clone()
    with pytest.raises(RuntimeError, match=r"optimiser changes: lstm\.weight_ih_l0"):
        update(learner, prepared, 3e-3, order())


def test_a_rollout_that_the_sequence_path_does_not_reproduce_raises() -> None:
    learner, rollout, _ = setup("lstm")
    rollout.log_probs[2, 1] += 1e-3
    with pytest.raises(AnchorMismatch, match="differ by"):
        prepare(learner, rollout, 0.01, None)


def test_a_non_finite_policy_raises_in_act_and_in_the_anchor() -> None:
    learner, rollout, _ = setup("mlp")
    with torch.no_grad():
        learner.flat.data[:] = torch.nan
    with pytest.raises(PolicyError):
        rollout.act(learner.net, 0, torch.rand(E, 3, generator=torch.Generator().manual_seed(0)), None)
    with pytest.raises(PolicyError):
        prepare(learner, rollout, 0.01, None)


def test_a_relevant_head_without_a_legal_choice_raises() -> None:
    learner, rollout, _ = setup("mlp")
    rollout.masks["op"][3, 2] = False
    with pytest.raises(PolicyError, match="no legal choice"):
        prepare(learner, rollout, 0.01, None)


def test_value_clip_takes_the_larger_error() -> None:
    learner, _, prepared = setup("mlp", value_clip=0.1)
    free, _, prepared_free = setup("mlp")
    _, clipped = ppo_loss(learner.net, prepared.replay, prepared.rule)
    _, plain = ppo_loss(free.net, prepared_free.replay, prepared_free.rule)
    assert float(clipped[1]) == pytest.approx(float(plain[1]), rel=1e-6)
    far = replace(prepared.replay.batch, old_value=prepared.replay.batch.old_value + 5.0)
    _, moved = ppo_loss(learner.net, replace(prepared.replay, batch=far), prepared.rule)
    assert float(moved[1]) > float(clipped[1])


def test_per_head_ratio_reports_kl_of_every_head() -> None:
    learner, _, prepared = setup("mlp", ratio="per_head")
    metrics = update(learner, prepared, 3e-3, order())
    assert {f"approx_kl_{h.name}" for h in HEADS} <= set(metrics)


def test_schedules_run_from_start_to_end() -> None:
    cfg = learner_config(lr=1.0, lr_schedule="linear", lr_end_frac=0.1).ppo
    assert [learning_rate(cfg, r, 10) for r in (0, 5, 10)] == pytest.approx([1.0, 0.55, 0.1])
    cosine = cfg.model_copy(update={"lr_schedule": "cosine"})
    assert [learning_rate(cosine, r, 10) for r in (0, 5, 10)] == pytest.approx([1.0, 0.55, 0.1])
    assert learning_rate(cfg.model_copy(update={"lr_schedule": "constant"}), 9, 10) == 1.0
    entropy = cfg.model_copy(update={"entropy_coef_start": 0.1, "entropy_coef_end": 0.0, "entropy_anneal_rounds": 4})
    assert [entropy_coefficient(entropy, r) for r in (0, 2, 4, 9)] == pytest.approx([0.1, 0.05, 0.0, 0.0])
    assert [floor_scale(cfg, r, 10) for r in (0, 2, 5, 9)] == pytest.approx([1.0, 0.6, 0.0, 0.0])


def test_surrogate_and_clipped_value_loss_are_the_textbook_forms_in_value_and_slope() -> None:
    rng, eps = np.random.default_rng(3), 0.2
    advantage, old, target = (torch.from_numpy(rng.normal(size=400)) for _ in range(3))
    advantage[:5] = 0.0
    ratio = torch.from_numpy(rng.uniform(0.5, 1.6, 400)).requires_grad_()
    values = (old + torch.from_numpy(rng.normal(scale=0.4, size=400))).detach().requires_grad_()
    weight = torch.from_numpy((rng.random(400) < 0.8).astype(np.float64))
    plain = torch.minimum(ratio * advantage, ratio.clamp(1 - eps, 1 + eps) * advantage)
    near = old + (values - old).clamp(-eps, eps)
    worse = torch.maximum((values - target) ** 2, (near - target) ** 2)
    wanted = -(plain * weight).sum() / weight.sum(), 0.5 * (worse * weight).sum() / weight.sum()
    batch = cast(Batch, SimpleNamespace(target=target, old_value=old, valid=weight))
    found = _surrogate(ratio, advantage, _shares(weight), eps), _value_loss(values, batch, eps)
    for own, textbook, free in zip(found, wanted, (ratio, values), strict=True):
        assert float(own.detach()) == pytest.approx(float(textbook.detach()), abs=1e-12)
        slope, wanted_slope = (torch.autograd.grad(loss, free, retain_graph=True)[0] for loss in (own, textbook))
        assert torch.allclose(slope, wanted_slope, atol=1e-15)
        assert 0 < int((slope == 0).sum()) < 400
