"""The registered design as the tests see it: oriented units, one level, one generator.

``level`` is alpha of a fixed design, or the nominal level of the current look. All resampling of
one analysis starts from the same analysis seed, so that a test and its interval share their draws
and the order of the tests does not matter.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Design:
    """What decides how two arms are compared.

    Attributes:
        paired: arms share replicate seeds, blocks are matched sets.
        estimand: shift, mean or p_superiority.
        sesoi: smallest effect of interest, raw units (None only for demonstrations).
        level: two-sided level a.
        floor: oriented score of a failed replicate, None when none was registered.
        comparisons: winner, all_pairs or vs_control.
        control: label of the control.
        adjust: auto, holm or max_t.
        fallback: none or unpaired_rank (4 or 5 complete blocks).
        mode: fixed, planned or anytime.
        e_value: sign or t.
        inference: full or none.
        seed: analysis seed.
        equivalence: whether equivalence intervals are wanted (exploratory metrics go without).
        identity_check: identical single blocks may be called identical (A/A determinism).
    """

    paired: bool = True
    estimand: str = "shift"
    sesoi: float | None = None
    level: float = 0.05
    floor: float | None = None
    comparisons: str = "winner"
    control: str | None = None
    adjust: str = "auto"
    fallback: str = "none"
    mode: str = "fixed"
    e_value: str = "sign"
    inference: str = "full"
    seed: int = 0
    equivalence: bool = True
    identity_check: bool = False

    def rng(self) -> np.random.Generator:
        """Return a fresh generator from the analysis seed."""
        return np.random.Generator(np.random.Philox(key=self.seed))
