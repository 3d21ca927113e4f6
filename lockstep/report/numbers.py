"""How numbers are written: signs, digits, p values, units; and JSON-safe floats."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, inf, isfinite, log10

from lockstep.spec.metrics import find_metric
from lockstep.stats.results import Interval


def number(value: float | None) -> float | None:
    """Return a JSON-safe float: None for a missing or non-finite value, and no negative zero."""
    if value is None or not isfinite(value):
        return None
    return float(value) + 0.0


def ends(interval: Interval | None) -> list[float] | None:
    """Return both ends of an interval, or None when it is unavailable or unbounded."""
    if interval is None or not (isfinite(interval.low) and isfinite(interval.high)):
        return None
    return [float(interval.low) + 0.0, float(interval.high) + 0.0]


def plain(value: float | None, digits: int = 3) -> str:
    """Return a number with about ``digits`` significant digits, never in exponent form below 1e6."""
    if value is None or not isfinite(value):
        return "n/a"
    if value == 0:
        return "0"
    # of the rounded value: 9.999 and 10.00 have as many digits
    magnitude = floor(log10(abs(float(f"{value:.{digits - 1}e}"))))
    if magnitude >= 6 or magnitude < -4:
        return f"{value:.{digits - 1}e}"
    return f"{value:.{max(0, digits - 1 - magnitude)}f}"


def digits_beside(value: float, mark: float, digits: int = 3, most: int = 12) -> int:
    """Return the fewest digits, from ``digits`` on, with which ``value`` is written on its own side of ``mark``."""
    if not isfinite(value):
        return digits
    for count in range(digits, most):
        shown = float(plain(value, count))
        if (shown > mark) == (value > mark) and (shown < mark) == (value < mark):
            return count
    return most


def exact(value: float | None) -> str:
    """Return a registered constant as it was written, such as 0.05 or 2."""
    return "n/a" if value is None else f"{value:.10g}"


def signed(value: float | None, digits: int = 3) -> str:
    """Return a difference with its sign."""
    text = plain(value, digits)
    return f"+{text}" if value is not None and isfinite(value) and value > 0 else text


def p_text(p: float | None, alpha: float = 0.05) -> str:
    """Return a p value without leading zero; never 0, and never rounded across ``alpha``."""
    if p is None:
        return "n/a"
    if p < 0.0001:
        return "< .0001"
    if p >= 0.9995:
        return "= 1"
    fine = p < 0.01 or abs(p - alpha) < 0.0005
    text = f"{p:.4f}" if fine else f"{p:.3f}"
    return f"= {text.rstrip('0').lstrip('0') if fine else text.lstrip('0')}"


def percent(level: float) -> str:
    """Return a confidence level such as 95 or 97.8 (percent) for a share such as .95."""
    return f"{100 * level:.1f}".removesuffix(".0")


def unit_of(metric: str) -> str:
    """Return the unit of a score, empty when the metric is unknown."""
    known = find_metric(metric)
    return known.unit if known else ""


def clipped(ends_: Sequence[float] | None, metric: str) -> list[float] | None:
    """Return both ends of a range of scores (raw units), cut at the bounds of the metric."""
    if ends_ is None:
        return None
    known = find_metric(metric)
    low = -inf if known is None or known.lower is None else known.lower
    high = inf if known is None or known.upper is None else known.upper
    return [min(max(end, low), high) for end in ends_]


def difference_unit(metric: str, estimand: str = "shift") -> str:
    """Return the unit of a difference: percentage points for percentages, none for probabilities."""
    if estimand in ("p_superiority", "learned"):
        return "in P(better)" if estimand == "p_superiority" else "in P(learned)"
    unit = unit_of(metric)
    return "pp" if unit == "%" else unit


def joined(parts: Sequence[str]) -> str:
    """Return ``a``, ``a and b`` or ``a, b and c``."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
