"""What a registered design can find: its own rule, run on simulated experiments.

Scores are drawn under a scenario, one arm is made better by an effect, and the rule that was registered decides: tests,
levels of looks and families, the weaker of two treatments of failures. Nothing is read off a power formula, so that K
arms, looks, failures and discrete scores count as they are. Seeded: the same design and scenario give the same numbers.
Unit: the replicate. The estimates have a standard error of at most .011 at 2,000 experiments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations, permutations
from math import factorial

import numpy as np
from numpy.typing import NDArray

from lockstep.stats.batches import Batch, batch
from lockstep.stats.exact import LEVEL_SLACK, min_p, smallest_n
from lockstep.stats.planning import Goal, replicates_needed, sd_inflation
from lockstep.stats.registered import Design
from lockstep.stats.results import Floats
from lockstep.stats.verdict import (
    DIFFERENT_BUT_NEGLIGIBLE,
    EQUIVALENT,
    INCONCLUSIVE,
    NO_INFERENCE,
    TIE_AT_TOP,
    TREATMENTS_BETTER,
    WINNER,
    WINNER_MEANINGFUL,
)

EXPERIMENTS = 2_000
#: Experiments for each step of a search; the steps share their draws.
_SEARCH = 300
_DRAWS, _SEARCH_DRAWS = 399, 199
_ORDERS = 500
#: More replicates than this are never proposed.
MOST = 300
POWER = 0.8
#: How far a smoothed pilot score moves, in SDs of its arm.
_SMOOTHING = 0.3

#: Pair codes from weakest to strongest claim.
_OPEN, _EQUAL, _NEGLIGIBLE, _BETTER, _MEANINGFUL = range(5)
_NAMES = (INCONCLUSIVE, EQUIVALENT, DIFFERENT_BUT_NEGLIGIBLE, WINNER, WINNER_MEANINGFUL)
Codes = NDArray[np.int64]


@dataclass(frozen=True)
class Look:
    """One analysis: after how many complete blocks, at which two-sided level."""

    n: int
    level: float


@dataclass(frozen=True)
class Plan:
    """A registered design with its number of arms and its analyses; under anytime one, which counts every block."""

    design: Design
    num_arms: int
    looks: tuple[Look, ...]

    def at(self, n: int) -> Plan:
        """Return the plan with n blocks in all, looks moved in proportion."""
        last = self.looks[-1].n
        moved = tuple(replace(look, n=max(2, round(look.n * n / last))) for look in self.looks)
        return replace(self, looks=moved)


@dataclass(frozen=True)
class Scenario:
    """How scores are thought to fall, oriented and apart from the effect.

    Attributes:
        sd: of paired differences when paired, within an arm otherwise; unused with a pilot.
        pilot: scores of an earlier experiment, one row a block, one column an arm; NaN is a failed run. Each arm is
            centred; rows are drawn together, so that correlation within blocks, shape and failures are the pilot's.
        failure: probability that a run fails, without a pilot.
        location: typical score of a successful run, which says how far away the failures' floor is.
        inflate: factor on the spread, for the upper bound of an SD.
        step: distance of attainable scores where they are few, such as 10 for shares of ten episodes in percent.
    """

    sd: float = 1.0
    pilot: tuple[tuple[float, ...], ...] | None = None
    failure: float = 0.0
    location: float = 0.0
    inflate: float = 1.0
    step: float | None = None


@dataclass(frozen=True)
class Outlook:
    """What a plan finds when one arm is better than the others by ``effect`` (raw units).

    ``power``: how often that arm is named better (for ``all_pairs``: than a given other one). ``verdicts``: probability
    of every verdict code. ``blocks``: expected complete blocks.
    """

    effect: float
    power: float
    verdicts: tuple[tuple[str, float], ...]
    blocks: float


@dataclass(frozen=True)
class Needed:
    """Replicates in all for 80 % power at the smallest effect of interest: as the SD seems, and at its 80 % bound."""

    plugin: int | None
    upper80: int | None


@lru_cache(maxsize=256)
def outlook(
    plan: Plan, scenario: Scenario, effect: float, seed: int = 0, experiments: int = EXPERIMENTS, draws: int = _DRAWS
) -> Outlook:
    """Return what a plan finds under a scenario and an effect of the first arm (of the first treatment)."""
    n = plan.looks[-1].n
    rng = np.random.Generator(np.random.Philox(key=seed))
    arms = _drawn(scenario, plan, n, effect, experiments, rng)
    judged, blocks = _judged(arms, plan, _pairs(plan), _Effort(draws))
    return Outlook(effect, float(judged.hit.mean()), judged.shares(), float(blocks.mean()))


def detectable(plan: Plan, scenario: Scenario, seed: int = 0, power: float = POWER) -> float | None:
    """Return the smallest effect (raw units) that is found with the wanted power, None when no effect is."""
    unit = scenario.inflate * (_pilot_sd(plan, scenario) if scenario.pilot is not None else scenario.sd)
    unit = unit or plan.design.sesoi or 1.0
    if plan.design.estimand in ("learned", "p_superiority"):
        return None
    low, high = 0.0, 8.0 * unit
    if _searched(plan, scenario, high, seed) < power:
        return None
    for _ in range(7):
        middle = (low + high) / 2
        low, high = (low, middle) if _searched(plan, scenario, middle, seed) >= power else (middle, high)
    return high


def needed(plan: Plan, scenario: Scenario, seed: int = 0, pilot_size: int | None = None) -> Needed:
    """Return the smallest numbers of blocks that find the smallest effect of interest with 80 % power.

    ``pilot_size``: replicates behind the SD; without it the SD is taken as known and both numbers are the same.
    """
    plugin = _smallest(plan, scenario, seed)
    if pilot_size is None or pilot_size < 2:
        return Needed(plugin, plugin)
    wider = replace(scenario, inflate=scenario.inflate * sd_inflation(pilot_size))
    upper = None if plugin is None else _smallest(plan, wider, seed)
    return Needed(plugin, None if upper is None else max(upper, plugin or 0))


@lru_cache(maxsize=256)
def _searched(plan: Plan, scenario: Scenario, effect: float, seed: int) -> float:
    """Return the power alone, from few experiments and only the comparisons that can name the raised arm.

    With one look it hangs on who is better, not on how much or on who is equal; between looks equality may end it.
    """
    rng = np.random.Generator(np.random.Philox(key=seed))
    arms = _drawn(scenario, plan, plan.looks[-1].n, effect, _SEARCH, rng)
    pairs = _pairs(plan)
    if not _is_family(plan):
        pairs = [pair for pair in pairs if _raised(plan) in pair]
    judged, _ = _judged(arms, plan, pairs, _Effort(_SEARCH_DRAWS, sizes=len(plan.looks) > 1))
    return float(judged.hit.mean())


def _smallest(plan: Plan, scenario: Scenario, seed: int) -> int | None:
    design, sesoi = plan.design, plan.design.sesoi or 0.0
    least = _least(plan)

    def enough(n: int) -> bool:
        return _searched(plan.at(n), scenario, sesoi, seed) >= POWER

    spread = _pilot_sd(plan, scenario) if scenario.pilot is not None else scenario.sd
    guess = replicates_needed(10, spread * scenario.inflate, Goal(sesoi, design.paired, "mean", plan.looks[-1].level))
    low, high = least - 1, min(MOST, max(least, guess.plugin if guess else least))
    while not enough(high):
        if high == MOST:
            return None
        low, high = high, min(MOST, high + max(2, high // 2))
    while high - low > max(1, high // 40):
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _least(plan: Plan) -> int:
    return smallest_n(plan.looks[-1].level, plan.design.paired)


def _pilot_sd(plan: Plan, scenario: Scenario) -> float:
    rows = np.array(scenario.pilot, dtype=np.float64)
    residuals = rows - np.nanmean(rows, axis=0)
    if plan.design.paired and rows.shape[1] > 1:
        spread = residuals[:, 0] - residuals[:, 1]
        known = spread[np.isfinite(spread)]
        return float(known.std(ddof=1)) if known.size > 1 else 0.0
    return float(np.sqrt(np.nanmean(residuals**2)))


def _drawn(scenario: Scenario, plan: Plan, n: int, effect: float, experiments: int, rng: np.random.Generator) -> Floats:
    """Return oriented scores, shape (experiments, arms, n); -inf is a failed run."""
    shape = (experiments, plan.num_arms, n)
    if scenario.pilot is None:
        # independent arms whose paired difference has the SD that was given
        spread = scenario.sd / np.sqrt(2) if plan.design.paired else scenario.sd
        values = scenario.location + scenario.inflate * spread * rng.standard_normal(shape)
        failed = rng.random(shape) < scenario.failure
    else:
        values, failed = _resampled(scenario, shape, rng)
    better = _raised(plan)
    if plan.design.estimand == "learned":
        values = _more_learned(values, better, effect, plan.design, rng)
    else:
        values[:, better] += effect
    if scenario.step is not None:
        values = np.round(values / scenario.step) * scenario.step
    return np.where(failed, -np.inf, values)


def _raised(plan: Plan) -> int:
    """Return which arm is made better: under vs_control the second, because the first stands for the control."""
    return 1 if plan.design.comparisons == "vs_control" else 0


def _more_learned(values: Floats, better: int, effect: float, design: Design, rng: np.random.Generator) -> Floats:
    """Return scores in which a share of the runs that did not reach the threshold does, so that shares differ."""
    threshold = np.inf if design.threshold is None else design.threshold
    missed = values[:, better] < threshold
    share = min(1.0, effect / max(float(missed.mean()), 1e-9))
    lifted = missed & (rng.random(missed.shape) < share)
    values[:, better] = np.where(lifted, threshold, values[:, better])
    return values


def _resampled(
    scenario: Scenario, shape: tuple[int, int, int], rng: np.random.Generator
) -> tuple[Floats, NDArray[np.bool_]]:
    rows = np.array(scenario.pilot, dtype=np.float64)
    size, columns = rows.shape
    means = np.nanmean(np.where(np.isfinite(rows).any(axis=0), rows, 0.0), axis=0)
    centre = float(means.mean())
    # a sample's spread about its own mean is too small by this factor
    residuals = (rows - means) * scenario.inflate * np.sqrt(size / max(1, size - 1))
    # what the arms of a block share, and what each has of its own
    shared = np.nanmean(np.where(np.isfinite(rows).any(axis=1, keepdims=True), residuals, 0.0), axis=1, keepdims=True)
    shared = shared if columns > 1 else np.zeros_like(shared)
    own = residuals - shared
    drawn = rng.integers(0, size, size=(shape[0], -(-shape[1] // columns), shape[2]))
    places = [(drawn[:, k // columns], k % columns) for k in range(shape[1])]
    apart = np.stack([own[rows_of, column] for rows_of, column in places], axis=1)
    failed = np.isnan(apart)
    known = rows[np.isfinite(rows)]
    if np.unique(known).size > 0.8 * known.size:
        # continuous scores: smooth the ties that drawing with replacement makes, at the same variance
        noise = np.sqrt(np.nanmean(own**2)) * rng.standard_normal(apart.shape)
        apart = (apart + _SMOOTHING * noise) / np.sqrt(1 + _SMOOTHING**2)
    together = np.stack([shared[rows_of, 0] for rows_of, _ in places], axis=1)
    return centre + np.where(failed, 0.0, apart + together), failed


@dataclass(frozen=True)
class _Effort:
    """How many random signs or splits; ``sizes``: whether it matters how large a difference is, or only its sign."""

    draws: int
    sizes: bool = True


def _pairs(plan: Plan) -> list[tuple[int, int]]:
    """Return the comparisons that the rule reads; the first arm stands for the control."""
    pairs = combinations(range(plan.num_arms), 2)
    return [pair for pair in pairs if plan.design.comparisons != "vs_control" or 0 in pair]


def _is_family(plan: Plan) -> bool:
    asked = plan.design.comparisons
    return asked == "vs_control" or (asked == "all_pairs" and plan.num_arms > 2)


def _is_named(signs: Codes, pairs: Sequence[tuple[int, int]], plan: Plan) -> NDArray[np.bool_]:
    """Return whether the raised arm is called better: than every other, or in the first comparison of a family."""
    raised = _raised(plan)
    ways = [(k, 1 if raised == i else -1) for k, (i, j) in enumerate(pairs) if raised in (i, j)]
    asked = ways[:1] if _is_family(plan) else ways
    return np.asarray(np.all([signs[:, k] == way for k, way in asked], axis=0))


@dataclass(frozen=True)
class _Judged:
    """Per experiment: index of the verdict code among ``names``, and whether the raised arm was named."""

    codes: Codes
    names: tuple[str, ...]
    hit: NDArray[np.bool_]

    def shares(self) -> tuple[tuple[str, float], ...]:
        counts = np.bincount(self.codes, minlength=len(self.names)) / self.codes.size
        return tuple((name, float(share)) for name, share in zip(self.names, counts, strict=True) if share > 0)


def _judged(arms: Floats, plan: Plan, pairs: Sequence[tuple[int, int]], effort: _Effort) -> tuple[_Judged, Floats]:
    """Return the verdicts, and how many blocks each experiment took: the first crossing stands."""
    codes = np.zeros((len(arms), len(pairs)), dtype=np.int64)
    signs = np.zeros_like(codes)
    blocks = np.full(len(arms), float(plan.looks[-1].n))
    open_ = np.ones(len(arms), dtype=bool)
    for look in plan.looks:
        rows = np.flatnonzero(open_)
        if rows.size == 0 or min_p(plan.design.paired, look.n) > look.level * (1 + LEVEL_SLACK):
            continue
        found, better = _pair_codes(arms[rows][:, :, : look.n], replace(plan.design, level=look.level), pairs, effort)
        fresh = codes[rows] == _OPEN
        codes[rows], signs[rows] = np.where(fresh, found, codes[rows]), np.where(fresh, better, signs[rows])
        answered = _experiment(codes[rows], signs[rows], pairs, plan)[1]
        blocks[rows[answered]] = look.n
        open_[rows[answered]] = False
    return _experiment(codes, signs, pairs, plan)[0], blocks


def _pair_codes(arms: Floats, design: Design, pairs: Sequence[tuple[int, int]], effort: _Effort) -> tuple[Codes, Codes]:
    """Return code and better arm of every pair; with failures the weaker of what both floors allow."""
    failed = np.isneginf(arms)
    seen = np.where(failed, np.inf, arms)
    floor = float(seen.min()) if design.floor is None else design.floor
    codes, signs = _at_floor(arms, replace(design, floor=min(floor, float(seen.min()))), pairs, effort)
    hit = np.flatnonzero(failed.any(axis=(1, 2)))
    if hit.size == 0 or design.estimand == "learned":
        return codes, signs
    worst = seen[hit].min(axis=(1, 2), keepdims=True)
    filled = np.where(failed[hit], np.minimum(worst, arms[hit].max()), arms[hit])
    other, theirs = _at_floor(filled, design, pairs, effort)
    codes[hit], signs[hit] = _weaker((codes[hit], signs[hit]), (other, theirs))
    return codes, signs


def _weaker(ours: tuple[Codes, Codes], theirs: tuple[Codes, Codes]) -> tuple[Codes, Codes]:
    (code, sign), (other, their_sign) = ours, theirs
    same_arm = (sign == their_sign) & (sign != 0)
    weaker = np.minimum(code, other)
    # one says that the size does not matter, the other denies it: both say "better", neither how much
    weaker = np.where((weaker == _NEGLIGIBLE) & (code != other), _BETTER, weaker)
    kept = np.where(same_arm, weaker, np.where((code == other) & (sign == their_sign), code, _OPEN))
    return kept, np.where(kept >= _NEGLIGIBLE, sign, 0)


def _at_floor(arms: Floats, design: Design, pairs: Sequence[tuple[int, int]], effort: _Effort) -> tuple[Codes, Codes]:
    found = [batch(arms[:, i], arms[:, j], design, effort.draws) for i, j in pairs]
    p = np.stack([b.p for b in found], axis=1)
    levels = _levels(p, arms, design, pairs)
    judged = [_codes(b, levels[:, k], design, effort.sizes) for k, b in enumerate(found)]
    return np.stack([c for c, _ in judged], axis=1), np.stack([s for _, s in judged], axis=1)


def _codes(tested: Batch, level: Floats, design: Design, sizes: bool) -> tuple[Codes, Codes]:
    """Return the verdict table for one pair in every experiment; without ``sizes`` only who is better."""
    sesoi = design.sesoi or 0.0
    limit = level * (1 + LEVEL_SLACK)
    sign = np.sign(tested.estimate).astype(np.int64)
    superior = (tested.p <= limit) & (sign != 0)
    codes = np.where(superior, _BETTER, _OPEN)
    if not sizes:
        return codes, np.where(superior, sign, 0)
    for way in (1, -1):
        rows = np.flatnonzero(superior & (sign == way) & (way * tested.estimate > sesoi))
        if rows.size:
            codes[rows] = np.where(tested.p_at(way * sesoi, rows) <= limit[rows], _MEANINGFUL, _BETTER)
    # an anytime interval has one level for both
    wide = limit if design.mode == "anytime" else 2 * limit
    inside = (np.abs(tested.estimate) < sesoi) & (codes != _MEANINGFUL)
    for way in (1, -1):
        rows = np.flatnonzero(inside & ((tested.estimate >= 0) == (way == 1)))
        # the nearer margin fails more often: the other one is asked only where it does not
        for theta in (way * sesoi, -way * sesoi):
            if rows.size:
                rows = rows[tested.p_at(theta, rows) <= wide[rows]]
        codes[rows] = np.where(superior[rows], _NEGLIGIBLE, _EQUAL)
    return codes, np.where(codes >= _NEGLIGIBLE, sign, 0)


def _levels(p: Floats, arms: Floats, design: Design, pairs: Sequence[tuple[int, int]]) -> Floats:
    """Return the level at which each pair of each experiment is judged: the step of the family's correction."""
    if design.comparisons == "winner":
        return np.full(p.shape, design.level)
    if _is_max_t(design, arms.shape[1]):
        adjusted = np.maximum(_max_t(arms, design, pairs), p)
        return np.where(adjusted <= design.level, design.level * p / adjusted, design.level / len(pairs))
    m, order = p.shape[1], np.argsort(p, axis=1, kind="stable")
    ranked = np.take_along_axis(p, order, axis=1)
    steps = design.level / (m - np.arange(m))
    passed = np.cumprod(ranked <= steps * (1 + LEVEL_SLACK), axis=1).astype(bool)
    # those after the first that fails share its level
    failed_at = np.minimum(passed.sum(axis=1), m - 1)
    own = np.where(passed, steps[None, :], steps[failed_at][:, None])
    levels = np.empty(own.shape)
    np.put_along_axis(levels, order, own, axis=1)
    return levels


def _is_max_t(design: Design, num_arms: int) -> bool:
    if design.comparisons == "vs_control" or design.estimand == "learned" or design.mode == "anytime":
        return False
    wanted = design.adjust == "max_t" or (design.adjust == "auto" and num_arms == 3)
    return wanted and design.paired


def _max_t(arms: Floats, design: Design, pairs: Sequence[tuple[int, int]]) -> Floats:
    """Return the share of within-block permutations whose largest |difference| reaches that of each pair."""
    floor = 0.0 if design.floor is None else design.floor
    scores = np.where(np.isneginf(arms), floor, arms)
    size, count, n = scores.shape
    rng = np.random.Generator(np.random.Philox(key=n))
    orders = np.array(list(permutations(range(count))))[rng.integers(0, factorial(count), size=(_ORDERS, n))]
    orders[0] = np.arange(count)
    # sums of every arm under every permutation: a 0-1 matrix says which score goes where
    goes = (orders[:, :, None, :] == np.arange(count)[:, None]).astype(np.float64)
    sums = scores.transpose(0, 2, 1).reshape(size, -1) @ goes.transpose(1, 2, 0, 3).reshape(n * count, -1)
    sums = sums.reshape(size, _ORDERS, count)
    first, second = np.array(pairs).T
    spread = np.abs(sums[:, :, first] - sums[:, :, second])
    largest, limit = spread.max(axis=2), 1e-9 * np.abs(scores).sum(axis=(1, 2))[:, None]
    return np.stack([(largest >= spread[:, 0, [k]] - limit).mean(axis=1) for k in range(len(pairs))], axis=1)


def _experiment(
    codes: Codes, signs: Codes, pairs: Sequence[tuple[int, int]], plan: Plan
) -> tuple[_Judged, NDArray[np.bool_]]:
    """Return the answer to the registered question in every experiment, and whether it is final."""
    return _family(codes, signs, pairs, plan) if _is_family(plan) else _winner(codes, signs, pairs, plan)


def _family(
    codes: Codes, signs: Codes, pairs: Sequence[tuple[int, int]], plan: Plan
) -> tuple[_Judged, NDArray[np.bool_]]:
    control = plan.design.comparisons == "vs_control"
    # the control stands first in its pairs: the second arm is better where the sign is negative
    named = (signs < 0).any(axis=1) if control else (signs != 0).any(axis=1)
    equal = np.isin(codes, (_EQUAL, _NEGLIGIBLE)).all(axis=1)
    names = (TREATMENTS_BETTER, EQUIVALENT, INCONCLUSIVE)
    found = np.where(named, 0, np.where(equal, 1, 2))
    settled = (codes != _OPEN).all(axis=1)
    return _Judged(found, names, _is_named(signs, pairs, plan)), np.where(named, settled, equal)


def _winner(
    codes: Codes, signs: Codes, pairs: Sequence[tuple[int, int]], plan: Plan
) -> tuple[_Judged, NDArray[np.bool_]]:
    wins = np.zeros((len(codes), plan.num_arms), dtype=bool)
    weakest = np.full((len(codes), plan.num_arms), _MEANINGFUL)
    for arm in range(plan.num_arms):
        mine = [(k, 1 if arm == i else -1) for k, (i, j) in enumerate(pairs) if arm in (i, j)]
        if len(mine) < plan.num_arms - 1:  # not compared with every other arm
            continue
        wins[:, arm] = np.all([signs[:, k] == way for k, way in mine], axis=0)
        weakest[:, arm] = np.max([_rank_of(codes[:, k]) for k, _ in mine], axis=0)
    names = (*_NAMES, TIE_AT_TOP, NO_INFERENCE)
    won, equal = wins.any(axis=1), np.isin(codes, (_EQUAL, _NEGLIGIBLE)).all(axis=1)
    level = np.array([_MEANINGFUL, _BETTER, _NEGLIGIBLE])[np.where(wins, weakest, 0).max(axis=1)]
    found = np.where(won, level, np.where(equal, _EQUAL, _OPEN))
    return _Judged(found, names, _is_named(signs, pairs, plan)), np.asarray(won | equal)


def _rank_of(codes: Codes) -> Codes:
    """Return 0 for the strongest claim, 2 for the weakest."""
    return np.asarray(np.clip(_MEANINGFUL - codes, 0, 2))
