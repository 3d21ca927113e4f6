"""Golden values of training.md 2.12 and the registry."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from tests.worker.envs.morph.reward_cases import slots, term, transition
from worker.envs.morph.life.stages import Op, Stage
from worker.envs.morph.rewards import RewardConfig, make_reward, modes, registered_modes, terms
from worker.envs.morph.rewards.context import RewardContext

GAMMA = 0.995
CFG = RewardConfig()
EMPTY, GERM, TRAIN, BLEND, HOLD, FOSS, PRUNED = (
    Stage.DORMANT,
    Stage.GERMINATED,
    Stage.TRAINING,
    Stage.BLENDING,
    Stage.HOLDING,
    Stage.FOSSILIZED,
    Stage.PRUNED,
)


def reward(mode: str, ctx: RewardContext, **constants: float) -> float:
    return float(make_reward(mode, constants, gamma=GAMMA, task="digits_tiny")(ctx).reward)


def component(mode: str, ctx: RewardContext, name: str) -> float:
    return float(make_reward(mode, {}, gamma=GAMMA, task="digits_tiny")(ctx).components[name])


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ((EMPTY, 0), (GERM, 0), 0.2985),
        ((TRAIN, 4), (TRAIN, 5), 0.08475),
        ((TRAIN, 10), (BLEND, 0), -0.00525),
        ((HOLD, 1), (FOSS, 0), 0.051),
        ((TRAIN, 7), (PRUNED, 0), -1.05),
    ],
)
def test_shaping_of_stage_change_matches_golden(
    before: tuple[int, int], after: tuple[int, int], expected: float
) -> None:
    ctx = transition(slots([before[0]], e=[before[1]]), slots([after[0]], e=[after[1]]))
    assert float(term(terms.shaping, ctx, CFG, GAMMA, CFG.pbrs_weight)) == pytest.approx(expected, abs=1e-9)


def test_shaping_over_a_full_life_telescopes_to_zero() -> None:
    path = [(EMPTY, 0)]
    for stage, count in ((GERM, 1), (TRAIN, 11), (BLEND, 5), (HOLD, 3), (FOSS, 2)):
        path += [(stage, e) for e in range(count)]
    pays = []
    for t, (before, after) in enumerate(pairwise(path)):
        ctx = transition(
            slots([before[0]], e=[before[1]]),
            slots([after[0]], e=[after[1]]),
            terminated=t == len(path) - 2,
        )
        pays.append(float(term(terms.shaping, ctx, CFG, GAMMA, CFG.pbrs_weight)))
    assert abs(sum(GAMMA**t * f for t, f in enumerate(pays))) < 1e-12
    assert sum(pays) == pytest.approx(-0.1182, abs=5e-5)


def test_rent_and_shock_match_golden() -> None:
    held = slots([BLEND], alpha=[0.5], params=[592.0])
    assert float(term(terms.rent, transition(held, held), CFG)) == pytest.approx(0.0244047, abs=1e-7)
    moved = transition(slots([BLEND], alpha=[0.4], params=[592.0]), slots([BLEND], alpha=[0.6], params=[592.0]))
    assert float(term(terms.shock, moved, CFG)) == pytest.approx(0.000722428, abs=1e-9)


def test_attribution_matches_golden() -> None:
    one = slots([HOLD], c=[2.0], cf=2.0, germinated_at=[4])
    assert float(term(terms.attribution, transition(one, one), CFG)) == pytest.approx(1.28)
    two = slots([HOLD, FOSS], c=[3.0, 2.0], cf=2.5, germinated_at=[12, 15])
    assert float(term(terms.attribution, transition(two, two), CFG)) == pytest.approx(2.5)


@pytest.mark.parametrize(("cf", "expected"), [(0.8, -0.05), (0.05, -0.18), (3.0, 0.0)])
def test_ratio_penalty_matches_golden(cf: float, expected: float) -> None:
    state = slots([HOLD, HOLD], c=[4.0, 2.0], cf=cf)
    assert float(term(terms.ratio_penalty, transition(state, state), CFG)) == pytest.approx(expected)


def test_shaped_commit_pay_matches_golden() -> None:
    pre = slots([HOLD], c=[2.0], cf=2.0, e=[3])
    ctx = transition(pre, slots([FOSS], c=[2.0], cf=2.0), Op.FOSSILIZE, 0)
    assert component("shaped", ctx, "op_pay") == pytest.approx(0.988723, abs=1e-6)


def test_escrow_changes_match_golden() -> None:
    ledgers: dict[str, torch.Tensor] = {}
    paid = []
    for stable in (1.0, 4.0, 4.0, -1.0):
        # the window minimum equals the wanted c~ when its older entries are not smaller
        ledgers["escrow_window"] = torch.full((1, 1, 3), 9.0, dtype=torch.float64)
        state = slots([HOLD], c=[stable], cf=max(stable, 0.0))
        result = make_reward("escrow", {}, gamma=GAMMA, task="digits_tiny")(transition(state, state, ledgers=ledgers))
        ledgers = result.ledgers
        paid.append(float(result.components["escrow"]))
    assert paid == pytest.approx([1.0, 2.0, 1.0, -5.0])
    assert sum(paid) == pytest.approx(-1.0)


def test_basic_commit_and_terminal_match_golden() -> None:
    ctx = transition(slots([HOLD], c=[2.0], cf=3.0, e=[4]), slots([FOSS]), Op.FOSSILIZE, 0)
    assert component("basic", ctx, "commit") == pytest.approx(1.2)
    end = transition(slots([EMPTY]), slots([EMPTY], accuracy=62.5), is_last=True, terminated=True)
    assert component("basic", end, "terminal") == pytest.approx(2.625)


def test_simplified_and_sparse_last_step_match_golden() -> None:
    post = slots([FOSS, FOSS, HOLD], c=[1.0, 2.0, 5.0], cf=3.0, accuracy=62.5)
    ctx = transition(post, post, is_last=True, terminated=True)
    assert component("simplified", ctx, "terminal") == pytest.approx(5.875)
    kept = slots([FOSS], params=[9280.0], committed=62.5)
    assert reward("sparse", transition(kept, kept, is_last=True)) == pytest.approx(0.623144, abs=1e-9)


def test_loss_gain_matches_golden() -> None:
    ctx = transition(slots([EMPTY], loss=2.3), slots([EMPTY], loss=2.1))
    assert component("loss", ctx, "loss_gain") == pytest.approx(20.0)


@pytest.mark.parametrize("mode", sorted(modes.MODES))
def test_rollback_pays_death_pay_alone(mode: str) -> None:
    pre = slots([HOLD, EMPTY], c=[2.0, float("nan")], cf=2.0, e=[3, 0])
    ctx = transition(pre, slots([EMPTY, EMPTY]), rolled_back=True, terminated=True, is_last=True)
    expected = -1.0 if mode in ("sparse", "minimal") else -10.0
    assert reward(mode, ctx) == pytest.approx(expected)


def test_rollback_closes_the_escrow_account() -> None:
    held = {
        "escrow": torch.tensor([[3.0]], dtype=torch.float64),
        "escrow_window": torch.full((1, 1, 3), 4.0, dtype=torch.float64),
    }
    ctx = transition(slots([HOLD]), slots([EMPTY]), rolled_back=True, terminated=True, ledgers=held)
    result = make_reward("escrow", {}, gamma=GAMMA, task="digits_tiny")(ctx)
    assert float(result.reward) == -10.0
    assert float(result.ledgers["escrow"]) == 0.0
    assert result.ledgers["escrow_window"].isnan().all()


def test_hindsight_is_capped_once_per_commit() -> None:
    pair = [[float("nan"), 4.0], [4.0, float("nan")]]
    state = slots([HOLD, HOLD], c=[20.0, 20.0], cf=20.0, interactions=pair)
    function = make_reward("shaped", {}, gamma=GAMMA, task="digits_tiny")
    seen = function(transition(state, state, t=1))
    commit = function(transition(state, slots([FOSS, HOLD]), Op.FOSSILIZE, 0, t=2, ledgers=seen.ledgers))
    single = 0.1 * torch.tanh(torch.tensor(0.1 * 4.0 * 20.0)) * GAMMA
    assert float(commit.components["hindsight"]) == pytest.approx(float(single))
    strong = make_reward("shaped", {"hindsight_weight": 0.5}, gamma=GAMMA, task="digits_tiny")
    capped = strong(transition(state, slots([FOSS, HOLD]), Op.FOSSILIZE, 0, t=2, ledgers=seen.ledgers))
    assert float(capped.components["hindsight"]) == pytest.approx(0.2)


def test_unknown_mode_key_and_value_are_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"reward.mode='shape' is not installed here; did you mean 'shaped'"):
        make_reward("shape", {}, gamma=GAMMA, task="digits_tiny")
    with pytest.raises(ValueError, match=r"reward.rent_wieght is unknown; known are .*rent_weight"):
        make_reward("shaped", {"rent_wieght": 1.0}, gamma=GAMMA, task="digits_tiny")
    with pytest.raises(ValueError, match=r"reward.rent_weight=nan"):
        make_reward("shaped", {"rent_weight": float("nan")}, gamma=GAMMA, task="digits_tiny")
    with pytest.raises(ValueError, match=r"baseline, target and sigma"):
        make_reward("loss", {}, gamma=GAMMA, task="my_task")
    with pytest.raises(ValueError, match=r"disable_terminal"):
        make_reward("sparse", {"disable_terminal": True}, gamma=GAMMA, task="digits_tiny")


def test_registry_names_every_built_in_mode_with_its_version() -> None:
    assert {m: registered_modes()[m] for m in modes.MODES} == dict.fromkeys(modes.MODES, "1")


def test_config_hash_changes_with_any_constant_only() -> None:
    plain = make_reward("shaped", {}, gamma=GAMMA, task="digits_tiny")
    same = make_reward("shaped", {"mode": "shaped", "rent_weight": 0.5}, gamma=GAMMA, task="digits_tiny")
    other = make_reward("shaped", {"rent_weight": 0.6}, gamma=GAMMA, task="digits_tiny")
    assert plain.config_hash == same.config_hash != other.config_hash
