"""A slow scalar reading of training.md 2.4 to 2.11, written from the text alone: one env, plain floats.

The oracle of P13. It shares nothing with the vectorised code but the stage integers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

GAMMA = 0.995
PHI = {2: 1.0, 3: 2.0, 4: 3.5, 6: 5.5, 7: 6.0}
GAP = {2: 1.0, 3: 1.5, 4: 2.0, 6: 0.5, 7: 0.0}
WAIT, GERMINATE, SET_ALPHA, PRUNE, FOSSILIZE, ADVANCE = range(6)
NAN = math.nan


@dataclass
class Slot:
    stage: int = 1
    e: int = 0
    age: int = 0
    alpha: float = 0.0
    params: float = 0.0
    germinated_at: int = -1
    c: float = NAN


@dataclass
class State:
    slots: list[Slot]
    cf: float
    pairs: list[list[float]]
    accuracy: float
    committed: float
    loss: float


@dataclass
class Moment:
    pre: State
    post: State
    op: int
    target: int
    t: int
    horizon: int
    is_last: bool
    terminated: bool
    host: float
    a0: float
    rolled_back: bool = False
    memory: dict[str, Any] = field(default_factory=dict)


def reward(mode: str, m: Moment) -> float:
    if m.rolled_back:
        return -1.0 if mode in ("sparse", "minimal") else -10.0
    return {
        "shaped": shaped,
        "escrow": escrow,
        "basic": basic,
        "basic_plus": basic_plus,
        "simplified": simplified,
        "sparse": sparse,
        "minimal": minimal,
        "loss": loss_mode,
    }[mode](m)


def known(x: float) -> bool:
    return not math.isnan(x)


def phi(state: State) -> float:
    return sum(PHI[s.stage] + min(0.3 * s.e, GAP[s.stage]) for s in state.slots if s.stage in PHI)


def shaping(m: Moment, w: float = 0.3) -> float:
    after = 0.0 if m.terminated else phi(m.post)
    return w * (GAMMA * after - phi(m.pre))


def eff(m: Moment) -> float:
    return sum(0.0039 * m.host + s.alpha * s.params for s in m.post.slots if s.stage in (4, 6, 7))


def penalty(m: Moment) -> float:
    p0 = sum(max(s.c, 0.0) for s in m.post.slots if known(s.c))
    cf = m.post.cf
    if p0 <= 1 or not known(cf):
        return 0.0
    if cf > 0.1:
        return -min(0.3, 0.1 * (p0 / cf - 5) / 5) if p0 / cf > 5 else 0.0
    return -0.3 * min(1.0, p0 / 10)


def share(total: float, cf: float) -> float:
    return min(1.0, max(cf if known(cf) else 0.0, 0.0) / total) if total > 0 else 0.0


def attribution(m: Moment) -> float:
    credits, harm = [], 0.0
    for s in m.post.slots:
        if not known(s.c):
            continue
        tau = 0.4 + 0.6 * s.germinated_at / 10 if s.germinated_at < 10 else 1.0
        credits.append(max(s.c, 0.0) * tau)
        harm += min(s.c, 0.0)
    total = sum(credits)
    return total * share(total, m.post.cf) + harm


def common(m: Moment) -> float:
    pre, post, h = m.pre, m.post, max(m.host, 200.0)
    value = shaping(m)
    value -= min(0.5 * math.log(1 + eff(m) / h), 1.5)
    moved = sum((b.alpha - a.alpha) ** 2 * max(a.params, b.params) for a, b in zip(pre.slots, post.slots, strict=True))
    value -= min(0.1958 * moved / h, 1.0)
    live = sum(s.stage in (2, 3, 4, 6) for s in post.slots)
    fossil = sum(s.stage == 7 for s in post.slots)
    value -= 0.01 * max(0, live + fossil - 1) + 0.002 * fossil
    value -= pressure(m)
    value += synergy(m) + hindsight(m) + op_pay(m)
    if m.is_last:
        value += 0.05 * post.accuracy
    return value


def pressure(m: Moment) -> float:
    blending, holding = [0.0], [0.0]
    for i, s in enumerate(m.pre.slots):
        if s.stage == 4 and m.pre.cf < 0:
            blending.append(0.1 + min(0.05 * s.e, 0.3))
        decided = m.op in (FOSSILIZE, PRUNE) and m.target == i
        if s.stage == 6 and s.c > 0 and s.e >= 2 and not decided:
            holding.append(min(0.1 + 0.05 * max(0, s.e - 2), 0.3))
    return max(blending) + max(holding)


def synergy(m: Moment) -> float:
    value = 0.0
    for i, s in enumerate(m.post.slots):
        total = sum(x for x in m.post.pairs[i] if known(x))
        if total > 0 and s.c > 0 and m.post.cf > 0:
            value += 0.1 * math.tanh(0.5 * total)
    return value


def hindsight(m: Moment) -> float:
    events: dict[tuple[int, int], tuple[float, int]] = m.memory.setdefault("events", {})
    pay = 0.0
    if m.op == FOSSILIZE:
        c = m.pre.slots[m.target].c
        for (_a, b), (boost, when) in events.items():
            if b == m.target and known(c):
                pay += 0.1 * math.tanh(0.1 * boost * c) * GAMMA ** (m.t - when)
    alive = [s.stage in (2, 3, 4, 6, 7) for s in m.post.slots]
    for pair in [p for p in events if not (alive[p[0]] and alive[p[1]])]:
        del events[pair]
    for a, row in enumerate(m.post.pairs):
        for b, boost in enumerate(row):
            if alive[a] and alive[b] and boost > 0 and (a, b) not in events:
                events[(a, b)] = (boost, m.t)
    return min(pay, 0.2)


def op_pay(m: Moment) -> float:
    if m.op in (WAIT, GERMINATE, SET_ALPHA):
        return {WAIT: 0.0, GERMINATE: -0.15, SET_ALPHA: -0.005}[m.op]
    s, cf = m.pre.slots[m.target], m.pre.cf
    if m.op == ADVANCE:
        return -0.1 if s.stage == 3 else 0.0
    if m.op == PRUNE:
        if not known(s.c):
            return -0.005
        if s.c < -0.5:
            return -0.005 + 0.15
        return -0.005 + (0.1 if s.c < 0 else -min(0.3 + 0.05 * s.c, 0.9))
    if not known(s.c) or not known(cf):
        return -0.01
    if cf < 0:
        return -0.01 - 0.5 - min(0.2 * abs(cf), 1.0) - (0.3 if s.c > 0.1 and cf < -0.2 else 0.0)
    if s.c >= 1:
        return -0.01 + min(1.0, s.e / 5) * (0.5 + 0.1 * s.c + 3 * math.tanh(1 / 3))
    return -0.01 - 0.2


def shaped(m: Moment) -> float:
    return common(m) + attribution(m) + penalty(m)


def escrow(m: Moment) -> float:
    held: dict[int, float] = m.memory.setdefault("held", {})
    window: dict[int, list[float]] = m.memory.setdefault("window", {})
    here = {i for i, s in enumerate(m.post.slots) if s.stage in (2, 3, 4, 6, 7)}
    for i in range(len(m.post.slots)):
        if i not in here:
            window[i] = []
        elif known(m.post.slots[i].c):
            window[i] = [*window.get(i, []), m.post.slots[i].c][-3:]
    stable = {i: min(w) for i, w in window.items() if w}
    total = sum(max(c, 0.0) for c in stable.values())
    fine = penalty(m)
    pay = 0.0
    for i, s in enumerate(m.post.slots):
        level = held.get(i, 0.0)
        if i not in here:
            pay -= level
            held[i] = 0.0
            continue
        if s.stage == 7:
            continue
        change = 0.0
        if known(s.c):
            c = stable[i]
            if c < 0:
                change, level = c - level, 0.0
            else:
                credit = c * share(total, m.post.cf) + (fine * c / total if total > 0 else 0.0)
                change = min(max(max(0.0, credit) - level, -2.0), 2.0)
                level += change
        if m.is_last:
            change -= level
            level = 0.0
        held[i] = level
        pay += change
    return common(m) + pay


def commit(m: Moment) -> float:
    if m.op != FOSSILIZE:
        return 0.0
    s, cf = m.pre.slots[m.target], m.pre.cf
    if not known(s.c) or not known(cf):
        return 0.0
    if cf > 0 and s.c >= 1:
        return (0.3 + 0.5 * 2 * s.c * cf / (s.c + cf)) * min(1.0, s.e / 5)
    return -0.5 if cf <= 0 and s.c > 0.1 else -0.2


def basic_rest(m: Moment) -> float:
    value = shaping(m) - 0.1 * eff(m) / 500_000
    return value + (5.0 * (m.post.accuracy - m.a0) / 100 if m.is_last else 0.0)


def basic(m: Moment) -> float:
    return basic_rest(m) + commit(m)


def basic_plus(m: Moment) -> float:
    pools: dict[int, dict[str, float]] = m.memory.setdefault("pools", {})
    value = basic_rest(m)
    for i, pool in pools.items():
        c = m.post.slots[i].c if known(m.post.slots[i].c) else 0.0
        release = pool["size"] / max(pool["left"], 5) * c / max(pool["c"], 1.0)
        release = min(max(release, -0.05), 0.1)
        release = min(release, pool["size"] - pool["paid"])
        pool["paid"] += max(release, 0.0)
        value += release
    c = commit(m)
    if c > 0:
        left = m.horizon - 1 - m.t
        pools[m.target] = {"size": 0.7 * c, "left": left, "c": m.pre.slots[m.target].c, "paid": 0.0}
        return value + 0.3 * c
    return value + c


def simplified(m: Moment) -> float:
    value = shaping(m) - (0.01 if m.op != WAIT else 0.0)
    if m.is_last:
        good = sum(s.stage == 7 and s.c >= 1.0 for s in m.post.slots)
        value += 3.0 * m.post.accuracy / 100 + 2.0 * good
    return value


def sparse(m: Moment) -> float:
    if not m.is_last:
        return 0.0
    fossil = sum(s.params for s in m.post.slots if s.stage == 7)
    return min(max(m.post.committed / 100 - 0.1 * fossil / 500_000, -1.0), 1.0)


def minimal(m: Moment) -> float:
    early = m.op == PRUNE and m.pre.slots[m.target].age < 10
    return sparse(m) - (0.1 if early else 0.0)


def loss_mode(m: Moment) -> float:
    baseline, target, sigma, weight = 2.3, 0.1, 0.05, 0.05

    def psi(x: float) -> float:
        return min(x, 2 * baseline) / sigma

    value = 5 * (psi(m.pre.loss) - psi(m.post.loss)) + shaping(m, 0.1)
    if m.t >= 3:
        added = sum(s.params for s in m.post.slots)
        value -= min(weight * math.log(1 + added / m.host), 5.0)
    if m.is_last:
        value += min(max((baseline - m.post.loss) / (baseline - target), 0.0), 1.0)
    return value
