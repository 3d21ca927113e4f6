"""What an environment's returns are like under random actions, and values for an analysis that fit them.

A first specification needs the smallest effect that matters and the score of a run that diverges, and nobody knows them
of an environment that was written yesterday. These are measured, and no more than a first guess: the scale is that of
episodes of random actions.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

#: A smallest effect in SDs of single episodes: small by convention; the means that are compared vary far less.
_SMALL = 0.2
#: Where all random episodes return the same, a smallest effect is this share of it.
_SHARE = 0.05
#: A floor lies so many times the range of random episodes below the worst of them, unless steps cannot pay so little.
_BELOW = 2.0


@dataclass(frozen=True)
class Scale:
    """Returns of whole episodes of random actions, and what is suggested.

    Attributes:
        episodes: how many.
        low, high, mean, sd: of their returns; ``sd`` is 0 for one.
        sesoi: for analysis.sesoi; None where every return is 0.
        floor: for analysis.failure.floor.
    """

    episodes: int
    low: float
    high: float
    mean: float
    sd: float
    sesoi: float | None
    floor: float

    def lines(self) -> list[str]:
        """Return the section of a specification."""
        chosen = f"  sesoi: {self.sesoi:g}" if self.sesoi is not None else "  sesoi: 1.0"
        why = "a fifth of the SD of random episodes" if self.sd else "a twentieth of what random episodes return"
        told = why if self.sesoi is not None else "CHOOSE it: every random episode returned 0"
        floor = "no step paid less than 0" if self.floor == 0 else "below what random episodes returned"
        return [
            "analysis:",
            f"{chosen:34}# {told}; the smallest difference worth acting on is yours to say",
            f"{f'  failure: {{floor: {self.floor:g}}}':34}# {floor}; lower it if an episode can return less",
        ]


def scale_of(returns: Sequence[float], least_reward: float | None, limit: int | None) -> Scale | None:
    """Return the scale of returns and what is suggested; None without an episode.

    Args:
        returns: of whole episodes of random actions.
        least_reward: the least that a step paid; None where that is not known of every step.
        limit: steps after which an episode is cut, None without a limit.
    """
    if not returns:
        return None
    low, high, mean = min(returns), max(returns), statistics.fmean(returns)
    sd = statistics.stdev(returns) if len(returns) > 1 else 0.0
    width = _SMALL * sd or _SHARE * abs(mean)
    sesoi = float(f"{width:.0e}") if width > 0 else None
    return Scale(len(returns), low, high, mean, sd, sesoi, _floor(low, high, least_reward, limit))


def _floor(low: float, high: float, least_reward: float | None, limit: int | None) -> float:
    if low >= 0 and least_reward is not None and least_reward >= 0:
        return 0.0
    below = low - (_BELOW * (high - low) or 0.1 * abs(low))
    if least_reward is not None and least_reward < 0 and limit is not None:
        below = max(below, least_reward * limit)
    return _rounded_down(min(below, low))


def _rounded_down(value: float) -> float:
    """Return the next number of two digits at or below."""
    if value == 0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - 1)
    return float(f"{math.floor(value / unit + 1e-9) * unit:.12g}")
