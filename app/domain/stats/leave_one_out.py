"""Leave-one-block-out: how far one block carries the result. Descriptive; never the verdict."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from app.domain.stats.attain import within
from app.domain.stats.sign_flip import sign_flip
from app.domain.stats.signed_rank import signed_rank
from app.domain.stats.t_tests import paired_t
from app.domain.stats.ties import as_floats


@dataclass(frozen=True)
class LeaveOneOut:
    """Range of p over the leave-one-out sets, and whether any block flips p <= alpha."""

    p_full: float
    p_range: tuple[float, float]
    any_flip: bool


def leave_one_out(d: ArrayLike, test: str, alpha: float, rng: np.random.Generator | None = None) -> LeaveOneOut:
    """Recompute a paired test without each block in turn (n >= 2)."""
    differences = as_floats(d, "d")
    if differences.size < 2:
        raise ValueError("leave-one-out needs at least two blocks")
    full = paired_p(differences, test, rng)
    left_out = [paired_p(np.delete(differences, i), test, rng) for i in range(differences.size)]
    flips = any(within(p, alpha) != within(full, alpha) for p in left_out)
    return LeaveOneOut(full, (min(left_out), max(left_out)), flips)


def paired_p(d: ArrayLike, test: str, rng: np.random.Generator | None = None) -> float:
    """Return the two-sided p of a named paired test: sign_flip, signed_rank or paired_t."""
    if test == "sign_flip":
        return sign_flip(d, rng).two_sided
    if test == "signed_rank":
        return signed_rank(d).p.two_sided
    if test == "paired_t":
        p = paired_t(d).p
        return 1.0 if p is None else p
    raise ValueError(f"test must be sign_flip, signed_rank or paired_t, got {test!r}")
