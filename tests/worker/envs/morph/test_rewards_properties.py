"""Properties P1 to P14 of the reward modes on random legal trajectories (training.md 2.13)."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.worker.envs.morph import reward_oracle as oracle
from tests.worker.envs.morph.reward_cases import level, term
from tests.worker.envs.morph.reward_oracle import ADVANCE, FOSSILIZE, GERMINATE, PRUNE, WAIT, Moment
from tests.worker.envs.morph.reward_walks import batch, walk
from worker.envs.morph.rewards import RewardConfig, RewardFunction, make_builtin, terms
from worker.envs.morph.rewards.context import RewardContext, RewardResult, SlotState
from worker.envs.morph.rewards.modes import MODES

GAMMA = 0.995
CFG = RewardConfig()
ALL = sorted(MODES)
WITH_SHAPING = [m for m in ALL if m not in ("sparse", "minimal")]
SIZES = [pytest.param(1_000, id="1000"), pytest.param(10_000, id="10000", marks=pytest.mark.slow)]
T = 24


def function(mode: str, **constants: Any) -> RewardFunction:
    return make_builtin(mode, constants, gamma=GAMMA, task="digits_tiny")


def walks(count: int, *, num_slots: int = 2, horizon: int = T, seed: int = 0, **keys: Any) -> list[list[Moment]]:
    rng = np.random.default_rng(seed)
    return [walk(rng, num_slots, horizon, **keys) for _ in range(count)]


@cache
def random_steps(count: int, num_slots: int = 2, *, truncated: bool = False) -> list[RewardContext]:
    """The transitions of ``count`` random episodes; read only."""
    return contexts(walks(count, num_slots=num_slots, truncated=truncated))


@cache
def fatal_walks(count: int) -> list[list[Moment]]:
    """Episodes of three slots, some of which end in a rollback; read only."""
    episodes = walks(count, num_slots=3, seed=8)
    rng = np.random.default_rng(0)
    for episode in episodes[::7]:
        fatal = int(rng.integers(T))
        episode[fatal].rolled_back = episode[fatal].terminated = True
        for m in episode[fatal + 1 :]:
            m.op, m.target = WAIT, -1
    return episodes


@cache
def cycles(count: int) -> list[list[Moment]]:
    """Episodes in which the only slot lives and is pruned once, at constant loss; read only."""
    rng = np.random.default_rng(5)
    episodes = [walk(rng, 1, T, _one_cycle(rng), truncated=True) for _ in range(count)]
    for episode in episodes:
        for m in episode:
            m.pre.loss = m.post.loss = 2.0
    return episodes


@cache
def cycle_steps(count: int) -> list[RewardContext]:
    return contexts(cycles(count))


@cache
def fatal_steps(count: int) -> list[RewardContext]:
    return contexts(fatal_walks(count))


def contexts(episodes: list[list[Moment]]) -> list[RewardContext]:
    steps: list[RewardContext] = []
    for column in zip(*episodes, strict=True):
        steps.append(batch(list(column), pre=steps[-1].post if steps else None))
    return steps


def play(reward: RewardFunction, steps: list[RewardContext]) -> list[RewardResult]:
    ledgers: dict[str, Tensor] = {}
    results = []
    for ctx in steps:
        results.append(reward(replace(ctx, ledgers=ledgers)))
        ledgers = results[-1].ledgers
    return results


def total(results: list[RewardResult], *names: str) -> Tensor:
    parts = [r.components[n] for r in results for n in (names or r.components) if n in r.components]
    return torch.stack(parts).sum(0)


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("truncated", [False, True])
def test_p1_shaping_telescopes(count: int, truncated: bool) -> None:
    steps = random_steps(count, truncated=truncated)
    w = CFG.pbrs_weight
    paid = sum(GAMMA**t * term(terms.shaping, ctx, CFG, GAMMA, w) for t, ctx in enumerate(steps))
    expected = -w * level(steps[0].pre, CFG)
    if truncated:
        expected = expected + w * GAMMA**T * level(steps[-1].post, CFG)
    assert isinstance(paid, Tensor)
    assert float((paid - expected).abs().max()) < 1e-9


def test_p2_forward_paths_never_lower_the_potential_and_cycles_never_pay() -> None:
    forward = walks(300, policy=_no_prune_of(np.random.default_rng(1)))
    for ctx in contexts(forward):
        assert float((level(ctx.post, CFG) - level(ctx.pre, CFG)).min()) >= -1e-12
    steps = random_steps(200)
    levels = torch.stack([level(steps[0].pre, CFG)] + [level(c.post, CFG) for c in steps])
    pays = torch.stack([term(terms.shaping, replace(c, terminated=c.is_last & False), CFG, GAMMA, 0.3) for c in steps])
    sums = torch.cat([torch.zeros(1, pays.shape[1]), pays.cumsum(0)])
    for a in range(T):
        for b in range(a + 1, T + 1):
            cycle = (levels[a] - levels[b]).abs() < 1e-12
            assert bool((sums[b] - sums[a] <= 1e-12)[cycle].all())


def _no_prune_of(rng: np.random.Generator) -> Any:
    def choose(options: list[tuple[int, int]], _state: Any, _t: int) -> tuple[int, int]:
        allowed = [o for o in options if o[0] != PRUNE]
        return allowed[rng.integers(len(allowed))]

    return choose


def _one_cycle(rng: np.random.Generator) -> Any:
    """Germinate the single slot, live a random while, prune, then wait."""
    length = int(rng.integers(2, 20))
    plan = {"born": False, "dead": False}

    def choose(options: list[tuple[int, int]], _state: Any, t: int) -> tuple[int, int]:
        if plan["dead"] or (not plan["born"] and (GERMINATE, 0) not in options):
            return WAIT, -1
        if not plan["born"]:
            plan["born"] = True
            return GERMINATE, 0
        if t >= length and (PRUNE, 0) in options:
            plan["dead"] = True
            return PRUNE, 0
        rest = [o for o in options if o[0] not in (PRUNE, FOSSILIZE)]
        return rest[rng.integers(len(rest))]

    return choose


@pytest.mark.parametrize("mode", ALL)
@pytest.mark.parametrize("count", SIZES)
def test_p3_no_farm_loop(mode: str, count: int) -> None:
    episodes = cycles(count)
    results = play(function(mode), cycle_steps(count))
    free = {"attribution", "synergy", "terminal"}
    names = [n for n in results[0].components if n not in free]
    loop = total(results, *names)
    bound = -0.005 if mode == "shaped" else 0.0
    assert float(loop.max()) <= bound + 1e-9
    never_good = torch.tensor([all(not m.post.slots[0].c > 0 for m in e) for e in episodes])
    assert int(never_good.sum()) > 50
    everything = loop + (total(results, "attribution") if mode == "shaped" else 0.0)
    worst = float(everything[never_good].max())
    if mode == "sparse":
        assert worst == 0.0
    elif mode == "minimal":
        old = torch.tensor([max(m.pre.slots[0].age for m in e) >= 10 for e in episodes])
        assert float(everything[never_good & ~old].max()) < 0
        assert worst <= 0.0
    else:
        assert worst < 0


def bumped(state: SlotState, name: str, amount: float, index: int | None = None) -> SlotState:
    value = getattr(state, name).clone()
    if index is None:
        value += amount
    else:
        value[:, index] += amount
    return replace(state, **{name: value})


@pytest.mark.parametrize("count", SIZES)
def test_p4_attribution_and_terminal_grow_with_the_signal_and_reward_falls_with_parameters(
    count: int,
) -> None:
    rng = np.random.default_rng(2)
    free = RewardConfig(disable_anti_gaming=True)
    for ctx in random_steps(count):
        amount = float(rng.uniform(0.01, 5))
        base = term(terms.attribution, ctx, free)
        for i in range(2):
            more = replace(ctx, post=bumped(ctx.post, "contribution", amount, i))
            assert float((term(terms.attribution, more, free) - base).min()) >= -1e-12
        more = replace(ctx, post=bumped(ctx.post, "cf", amount))
        assert float((term(terms.attribution, more, free) - base).min()) >= -1e-12
    last = random_steps(count)[-1]
    for mode in ALL:
        column = "committed_accuracy" if mode in ("sparse", "minimal") else "accuracy"
        more = replace(last, post=bumped(last.post, column, 3.0))
        gain = function(mode)(more).components["terminal"] - function(mode)(last).components["terminal"]
        assert float(gain.min()) >= (0.0 if mode == "loss" else 1e-6)
        heavy = replace(last, post=bumped(last.post, "params", 500.0, 0))
        assert float((function(mode)(heavy).reward - function(mode)(last).reward).max()) <= 1e-12


@pytest.mark.parametrize("c", [1.0, 2.5, 9.0])
@pytest.mark.parametrize("horizon", [30, 150])
def test_p5_committing_beats_holding_to_the_end(c: float, horizon: int) -> None:
    returns = []
    for commits in (True, False):
        episode = _held_graft(c, horizon, commits=commits)
        returns.append(float(total(play(function("shaped"), contexts([episode])))))
    assert returns[0] > returns[1]


def _held_graft(c: float, horizon: int, *, commits: bool) -> list[Moment]:
    """From HOLDING with m = 1, contribution and cf constant."""
    moments = []
    slot = oracle.Slot(6, 5, 12, 1.0, 592.0, 2, c)
    state = oracle.State([slot], c, [[oracle.NAN]], 50.0, 50.0 - c, 2.0)
    for t in range(horizon):
        op = FOSSILIZE if commits and t == 0 else WAIT
        old = state.slots[0]
        stage, e = (7, 0) if op == FOSSILIZE else (old.stage, old.e + 1)
        after = oracle.Slot(stage, e, old.age + 1, 1.0, 592.0, 2, c)
        nxt = oracle.State([after], c, [[oracle.NAN]], 50.0, 50.0 if stage == 7 else 50.0 - c, 2.0)
        last = t + 1 == horizon
        moments.append(Moment(state, nxt, op, 0 if op else -1, t, horizon, last, last, 6418.0, 10.0))
        state = nxt
    return moments


@pytest.mark.parametrize("count", SIZES)
def test_p6_escrow_pays_what_is_committed_and_charges_harm(count: int) -> None:
    episodes = walks(count, num_slots=1, seed=3)
    steps = contexts(episodes)
    results = play(function("escrow"), steps)
    paid = total(results, "escrow")
    kept = torch.where(steps[-1].post.stage[:, 0] == 7, results[-1].ledgers["escrow"][:, 0], 0.0)
    harm = torch.zeros_like(paid)
    window: list[list[float]] = [[] for _ in episodes]
    for t in range(T):
        for k, episode in enumerate(episodes):
            s = episode[t].post.slots[0]
            if s.stage not in (2, 3, 4, 6, 7):
                window[k] = []
            elif s.c == s.c:
                window[k] = [*window[k], s.c][-3:]
                if s.stage != 7:
                    harm[k] += min(*window[k], 0.0)
    assert float((paid - kept - harm).abs().max()) < 1e-9


def test_p7_releases_never_exceed_the_pool_and_reach_it_for_a_constant_contribution() -> None:
    results = play(function("basic_plus"), random_steps(1_000))
    pool = results[-1].ledgers["pool"].sum(1)
    # a slot may be committed once only, so pools add up
    positive = torch.stack([r.components["release"].clamp(min=0) for r in results]).sum(0)
    assert float((results[-1].ledgers["pool_paid"].sum(1) - pool).max()) <= 1e-9
    assert float((positive - pool)[pool > 0].max()) <= 1e-9
    episode = _held_graft(1.2, 40, commits=True)
    steady = play(function("basic_plus"), contexts([episode]))
    assert float(total(steady, "release")) == pytest.approx(float(steady[-1].ledgers["pool"]), abs=1e-9)


def test_p8_loss_gains_telescope() -> None:
    steps = random_steps(1_000)
    gained = total(play(function("loss"), steps), "loss_gain")
    psi = [x.clamp(max=4.6) / 0.05 for x in (steps[0].pre.loss, steps[-1].post.loss)]
    assert float((gained - 5 * (psi[0] - psi[1])).abs().max()) < 1e-9


@pytest.mark.parametrize("count", SIZES)
def test_p9_positive_credit_never_exceeds_the_total_effect(count: int) -> None:
    for ctx in random_steps(count, 3):
        harm = torch.nan_to_num(ctx.post.contribution, nan=0.0).clamp(max=0).sum(1)
        positive = term(terms.attribution, ctx, CFG) - harm
        assert float((positive - torch.nan_to_num(ctx.post.cf, nan=0.0).clamp(min=0)).max()) <= 1e-9


def test_p10_swapping_on_and_off_flips_the_sign_of_attribution() -> None:
    rng = np.random.default_rng(6)
    for c in rng.normal(0, 5, 200):
        values = []
        for value in (float(c), -float(c)):
            state = oracle.State([oracle.Slot(6, 3, 9, 1.0, 100.0, 15, value)], value, [[oracle.NAN]], 50, 40, 2)
            ctx = batch([Moment(state, state, WAIT, -1, 20, 30, False, False, 6418.0, 10.0)])
            values.append(float(term(terms.attribution, ctx, CFG)))
        assert values[0] == pytest.approx(-values[1], abs=1e-12)


def permuted(ctx: RewardContext, order: list[int]) -> RewardContext:
    def state(s: SlotState) -> SlotState:
        fields = ("stage", "epochs_in_stage", "age", "alpha", "params", "germinated_at", "contribution")
        changed = {name: getattr(s, name)[:, order] for name in fields}
        return replace(s, interactions=s.interactions[:, order][:, :, order], **changed)

    place = torch.tensor([order.index(i) for i in range(len(order))] + [-1])
    return replace(ctx, pre=state(ctx.pre), post=state(ctx.post), target_slot=place[ctx.target_slot])


@pytest.mark.parametrize("mode", ALL)
def test_p11_slots_may_be_permuted_and_empty_ones_added(mode: str) -> None:
    steps = random_steps(200, 3)
    plain = play(function(mode), steps)
    turned = play(function(mode), [permuted(c, [2, 0, 1]) for c in steps])
    wider = play(function(mode), [with_empty(c) for c in steps])
    for one, two, three in zip(plain, turned, wider, strict=True):
        torch.testing.assert_close(one.reward, two.reward, atol=1e-9, rtol=0)
        torch.testing.assert_close(one.reward, three.reward, atol=1e-9, rtol=0)


def with_empty(ctx: RewardContext) -> RewardContext:
    def state(s: SlotState) -> SlotState:
        E, S = s.stage.shape
        pad = {"stage": 1, "epochs_in_stage": 7, "germinated_at": -1, "contribution": torch.nan}
        fields = ("stage", "epochs_in_stage", "age", "alpha", "params", "germinated_at", "contribution")
        changed = {
            name: torch.cat([getattr(s, name), torch.full((E, 1), pad.get(name, 0)).to(getattr(s, name))], 1)
            for name in fields
        }
        pairs = torch.full((E, S + 1, S + 1), torch.nan, dtype=s.interactions.dtype)
        pairs[:, :S, :S] = s.interactions
        return replace(s, interactions=pairs, **changed)

    return replace(ctx, pre=state(ctx.pre), post=state(ctx.post))


@pytest.mark.parametrize("mode", ALL)
def test_p12_host_drift_changes_only_the_terminal_pay(mode: str) -> None:
    steps = random_steps(200)

    def drift(s: SlotState, delta: float) -> SlotState:
        return bumped(bumped(s, "accuracy", delta), "committed_accuracy", delta)

    drifted = [replace(c, pre=drift(c.pre, 1.7 * t), post=drift(c.post, 1.7 * (t + 1))) for t, c in enumerate(steps)]
    for one, two in zip(play(function(mode), steps), play(function(mode), drifted), strict=True):
        for name in set(one.components) - {"terminal"}:
            assert torch.equal(one.components[name], two.components[name]), name


@pytest.mark.parametrize("mode", ALL)
@pytest.mark.parametrize("count", SIZES)
def test_p13_vectorised_equals_the_scalar_oracle(mode: str, count: int) -> None:
    episodes = fatal_walks(count // 5)
    fatal_at = [next((t for t, m in enumerate(e) if m.rolled_back), T) for e in episodes]
    results = play(function(mode), fatal_steps(count // 5))
    for k, episode in enumerate(episodes):
        memory: dict[str, Any] = {}
        for t, m in enumerate(episode[: fatal_at[k] + 1]):
            m.memory = memory
            assert float(results[t].reward[k]) == pytest.approx(oracle.reward(mode, m), abs=1e-6)


@pytest.mark.parametrize("mode", ALL)
def test_p14_doing_nothing_scores_the_terminal_term_only(mode: str) -> None:
    episodes = walks(20, policy=lambda _options, _state, _t: (WAIT, -1))
    results = play(function(mode), contexts(episodes))
    paying = {"terminal"} | ({"loss_gain"} if mode == "loss" else set())
    for name in set(results[0].components) - paying:
        assert float(total(results, name).abs().max()) == 0.0, name


@pytest.mark.parametrize("mode", ALL)
def test_components_sum_to_the_reward_inputs_stay_and_bits_repeat(mode: str) -> None:
    episodes = fatal_walks(200)
    single = [[batch(list(column), torch.float32)] for column in zip(*episodes, strict=True)]
    before = [[x.clone() for x in ctx.post.__dict__.values()] for [ctx] in single]
    first = play(function(mode), [ctx for [ctx] in single])
    second = play(function(mode), [ctx for [ctx] in single])
    for one, two, [ctx], kept in zip(first, second, single, before, strict=True):
        assert one.reward.dtype == torch.float32
        assert bool(torch.isfinite(one.reward).all())
        torch.testing.assert_close(torch.stack(list(one.components.values())).sum(0), one.reward, atol=1e-5, rtol=0)
        assert torch.equal(one.reward, two.reward)
        for x, y in zip(ctx.post.__dict__.values(), kept, strict=True):
            assert torch.equal(torch.nan_to_num(x), torch.nan_to_num(y))


@pytest.mark.parametrize("mode", WITH_SHAPING)
def test_switch_for_shaping_removes_it_alone(mode: str) -> None:
    steps = random_steps(200)
    with_it, without = play(function(mode), steps), play(function(mode, disable_pbrs=True), steps)
    for one, two in zip(with_it, without, strict=True):
        assert float(two.components["shaping"].abs().max()) == 0.0
        torch.testing.assert_close(one.reward - one.components["shaping"], two.reward, atol=1e-9, rtol=0)


def test_switches_remove_terminal_and_anti_gaming_terms() -> None:
    steps = random_steps(200)
    results = play(function("shaped", disable_terminal=True, disable_anti_gaming=True), steps)
    for name in ("terminal", "shock", "ratio_penalty"):
        assert float(total(results, name).abs().max()) == 0.0


def test_advancing_is_charged_from_training_only() -> None:
    def pay(stage: int) -> float:
        pre = oracle.State([oracle.Slot(stage, 3, 5, 0.0, 100.0, 1)], oracle.NAN, [[oracle.NAN]], 50, 40, 2)
        ctx = batch([Moment(pre, pre, ADVANCE, 0, 5, 30, False, False, 6418.0, 10.0)])
        return float(term(terms.op_pay, ctx, CFG))

    assert [pay(2), pay(3), pay(4)] == pytest.approx([0.0, -0.1, 0.0])
