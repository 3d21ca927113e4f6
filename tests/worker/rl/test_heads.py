"""Masked, floored, factored heads (training.md 1.3 to 1.6, 8.4)."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
import torch

from tests.worker.rl.cases import HEADS, build_heads, full_masks, random_masks
from worker.envs.base import HeadSpec
from worker.rl.heads import BELOW_ONE, Floors, choose, evaluate, log_probabilities

LOGITS = torch.tensor([[0.3, -1.2, 2.0, 0.7]], dtype=torch.float64)


def test_masked_choice_has_probability_zero_and_no_gradient() -> None:
    logits = LOGITS.clone().requires_grad_()
    mask = torch.tensor([[True, False, True, False]])
    log_p = log_probabilities(logits, mask, None)
    p = log_p.exp()
    assert p[0, 1] == p[0, 3] == 0.0
    assert float(p.detach().sum()) == pytest.approx(1.0, abs=1e-12)
    [grad] = torch.autograd.grad(torch.where(mask, p * log_p, 0.0).sum() + log_p[0, 0], logits)
    assert grad[0, 1] == grad[0, 3] == 0.0
    assert bool(torch.isfinite(grad).all())


@pytest.mark.parametrize(("legal", "raw"), [(4, math.log(4)), (2, math.log(2)), (1, 0.0)])
def test_entropy_of_equal_legal_choices_is_log_of_their_number(legal: int, raw: float) -> None:
    heads = build_heads((HeadSpec("op", 4),))
    rows = (torch.arange(4) < legal).view(1, 1, 4)
    terms = evaluate(
        heads, torch.zeros(1, 1, 4), torch.zeros(1, 1, dtype=torch.int64), rows, torch.ones(1, 1) > 0, None
    )
    assert float(terms.entropy) == pytest.approx(raw, abs=1e-6)
    assert heads.width == 4


def test_joint_log_probability_equals_a_brute_force_table() -> None:
    heads = build_heads()
    rng = np.random.default_rng(0)
    logits = torch.from_numpy(rng.standard_normal((1, 3, 4)))
    masks = random_masks(HEADS, 1, rng)
    total = 0.0
    for op, where, size in product(range(3), range(2), range(4)):
        if (op == 0 and where != 0) or (op != 2 and size != 3):
            continue
        actions = torch.tensor([[op, where, size]])
        rows, relevant = heads.mask_rows(masks, actions), heads.relevant(actions)
        joint = float(evaluate(heads, logits, actions, rows, relevant, None).log_prob.sum())
        expected = _table(logits[0].numpy(), masks, (op, where, size))
        if expected == 0.0:
            assert joint < -1e8
        else:
            assert math.exp(joint) == pytest.approx(expected, rel=1e-9)
        total += expected
    assert total == pytest.approx(1.0, abs=1e-9)


def _table(logits: np.ndarray, masks: dict[str, torch.Tensor], action: tuple[int, int, int]) -> float:
    op, where, size = action
    p = _softmax(logits[0, :3], masks["op"][0].numpy())[op]
    if op in (1, 2):
        p *= _softmax(logits[1, :2], masks["where"][0, op].numpy())[where]
    if op == 2:
        p *= _softmax(logits[2, :4], masks["size"][0].numpy())[size]
    return float(p)


def _softmax(x: np.ndarray, mask: np.ndarray) -> np.ndarray:
    weights = np.exp(x) * mask
    return np.asarray(weights / weights.sum())


def test_sampling_frequencies_match_probabilities_and_stay_legal() -> None:
    heads = build_heads()
    rng = np.random.default_rng(1)
    n = 20_000
    logits = torch.from_numpy(rng.standard_normal((1, 3, 4)).astype(np.float32)).expand(n, -1, -1)
    masks = {k: m.expand(n, *m.shape[1:]) for k, m in random_masks(HEADS, 1, rng).items()}
    actions, joint = choose(heads, logits, masks, torch.from_numpy(rng.random((n, 3), dtype=np.float32)))
    rows = heads.mask_rows(masks, actions)
    relevant = heads.relevant(actions)
    taken = rows.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
    assert bool(taken[relevant].all())
    assert bool((actions[~relevant] == heads.canonical.expand(n, -1)[~relevant]).all())
    terms = evaluate(heads, logits, actions, rows, relevant, None)
    torch.testing.assert_close(terms.log_prob.sum(-1), joint)
    for action in {tuple(a) for a in actions.tolist()}:
        share = float((actions == torch.tensor(action)).all(-1).float().mean())
        single = {k: m[:1] for k, m in masks.items()}
        assert share == pytest.approx(_table(logits[0].double().numpy(), single, action), abs=0.015)


def test_extreme_uniforms_never_pick_an_illegal_choice() -> None:
    heads = build_heads((HeadSpec("op", 5),))
    rng = np.random.default_rng(2)
    logits = torch.from_numpy(rng.standard_normal((500, 1, 5)).astype(np.float32) * 8)
    masks = random_masks((HeadSpec("op", 5),), 500, rng)
    for u in (0.0, BELOW_ONE):
        actions, joint = choose(heads, logits, masks, torch.full((500, 1), u))
        assert bool(masks["op"].gather(1, actions).all())
        assert bool(torch.isfinite(joint).all())


def test_greedy_takes_the_best_legal_choice() -> None:
    heads = build_heads((HeadSpec("op", 4),))
    masks = {"op": torch.tensor([[True, True, False, False]])}
    actions, _ = choose(heads, LOGITS.float().unsqueeze(1), masks, None)
    assert actions.tolist() == [[0]]


def test_nan_logits_give_nan_log_probability() -> None:
    heads = build_heads((HeadSpec("op", 4),))
    full = full_masks((HeadSpec("op", 4),), 1)
    _, joint = choose(heads, torch.full((1, 1, 4), torch.nan), full, torch.zeros(1, 1))
    assert bool(joint.isnan().all())


def test_floor_mixture_sums_to_one_and_spares_forbidden_choices() -> None:
    heads = build_heads((HeadSpec("op", 4),))
    floors = Floors.build(heads, {"op": 0.1}, {"op": (2,)}, 1.0)
    assert floors is not None
    mask = torch.tensor([[True, True, True, False]])
    p = log_probabilities(torch.tensor([[-30.0, 0.0, 30.0, 5.0]]), mask, floors.head(0, 4)).exp()
    assert float(p.sum()) == pytest.approx(1.0, abs=1e-6)
    # two floored legal choices: pi' = (1 - 2 f) pi + f
    assert p[0].tolist() == pytest.approx([0.1, 0.1, 0.8, 0.0], abs=1e-6)
    assert Floors.build(heads, {"op": 0.1}, {}, 0.0) is None


def test_a_row_without_a_legal_choice_is_uniform_with_floors_as_without() -> None:
    heads = build_heads((HeadSpec("op", 4),))
    masks = {"op": torch.zeros(1, 4, dtype=torch.bool)}
    for floors in (None, Floors.build(heads, {"op": 0.1}, {}, 1.0)):
        actions, joint = choose(heads, LOGITS.float().unsqueeze(1), masks, torch.full((1, 1), 0.6), floors)
        assert actions.tolist() == [[2]]
        assert joint.tolist() == pytest.approx([-math.log(4)])


def test_floor_is_capped_at_99_percent_of_the_mass() -> None:
    heads = build_heads((HeadSpec("op", 4),))
    floors = Floors.build(heads, {"op": 0.9}, {}, 1.0)
    assert floors is not None
    p = log_probabilities(LOGITS, torch.ones(1, 4, dtype=torch.bool), floors.head(0, 4)).exp()
    assert float(p.sum()) == pytest.approx(1.0, abs=1e-9)
    assert float(p.min()) > 0.99 / 4


def test_unknown_head_and_late_parent_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown heads"):
        Floors.build(build_heads(), {"nope": 0.1}, {}, 1.0)
    with pytest.raises(ValueError, match="parents"):
        build_heads((HeadSpec("op", 2, ("slot",)), HeadSpec("slot", 2)))


def test_summary_counts_what_was_chosen_in_steps_that_count() -> None:
    heads = build_heads((HeadSpec("op", 3),))
    actions = torch.tensor([[[0], [1]], [[0], [2]]])
    legal = torch.tensor([[[True, False, False], [True, True, False]], [[True, True, True], [True, True, True]]])
    valid = torch.tensor([[True, True], [True, False]])
    entropy = torch.tensor([[[0.0], [math.log(2) / 2]], [[math.log(3)], [9.0]]])
    choices = heads.choices({"op": legal}, actions, valid)
    assert choices.open_steps[..., 0].tolist() == [[False, True], [True, False]]
    found = heads.summary(choices, actions, valid, entropy).tolist()
    # shares of each choice, forced, choice 0 among unforced; legal choices, open steps, entropy
    assert found == pytest.approx([2 / 3, 1 / 3, 0.0, 1 / 3, 1 / 2, 2.0, 2.0, 0.75])


@pytest.mark.parametrize("specs", [HEADS, (HeadSpec("op", 4),), (HeadSpec("push", 2, bounds=((-1.0, 1.0),) * 2),)])
def test_summary_of_several_runs_is_that_of_each_alone(specs: tuple[HeadSpec, ...]) -> None:
    heads, (runs, steps, envs) = build_heads(specs), (5, 128, 4)
    draw = torch.Generator().manual_seed(3)
    masks = {
        name: mask.view(runs, steps, envs, *mask.shape[1:])
        for name, mask in full_masks(specs, runs * steps * envs).items()
    }
    actions = torch.randint(0, 2, (runs, steps, envs, heads.num_columns), generator=draw).to(heads.canonical.dtype)
    valid = torch.rand(runs, steps, envs, generator=draw) > 0.1
    entropy = torch.rand(runs, steps, envs, len(specs), generator=draw)
    found = heads.summary(heads.choices(masks, actions, valid), actions, valid, entropy)
    for run in range(runs):
        own = {name: mask[run].clone() for name, mask in masks.items()}
        one, counts = actions[run].clone(), valid[run].clone()
        alone = heads.summary(heads.choices(own, one, counts), one, counts, entropy[run].clone())
        torch.testing.assert_close(found[run], alone, rtol=0, atol=0, equal_nan=True)
