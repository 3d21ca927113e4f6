"""The plots of the report as inline SVG. Every plot states n and names its band or interval.

A few SVG primitives: axes, lines and marks on a frame. Text is escaped; colours are CSS classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from math import ceil, floor, log10
from typing import Any

from lockstep.report.numbers import exact, plain, signed
from lockstep.report.rendering.tables import interval_names


@dataclass
class Frame:
    """A plot area in a view box; ``x`` and ``y`` are data ranges, y grows upwards."""

    title: str
    x: tuple[float, float]
    y: tuple[float, float]
    width: int = 720
    height: int = 300
    left: int = 64
    right: int = 16
    top: int = 16
    bottom: int = 44
    parts: list[str] = field(default_factory=list)

    def px(self, value: float) -> float:
        """Return the horizontal position of a data value."""
        low, high = self.x
        return round(self.left + (value - low) / (high - low) * (self.width - self.left - self.right), 2)

    def py(self, value: float) -> float:
        """Return the vertical position of a data value."""
        low, high = self.y
        return round(
            self.height - self.bottom - (value - low) / (high - low) * (self.height - self.top - self.bottom),
            2,
        )

    def line(self, points: Iterable[tuple[float, float]], css: str) -> None:
        """Draw a polyline through data points."""
        path = " ".join(f"{self.px(x)},{self.py(y)}" for x, y in points)
        self.parts.append(f'<polyline class="{css}" points="{path}"/>')

    def area(self, points: Sequence[tuple[float, float]], css: str) -> None:
        """Draw a filled polygon through data points."""
        path = " ".join(f"{self.px(x)},{self.py(y)}" for x, y in points)
        self.parts.append(f'<polygon class="{css}" points="{path}"/>')

    def dot(self, x: float, y: float, css: str, note: str) -> None:
        """Draw a point with a tooltip."""
        self.parts.append(
            f'<circle class="{css}" cx="{self.px(x)}" cy="{self.py(y)}" r="4"><title>{escape(note)}</title></circle>'
        )

    def cross(self, x: float, y: float, css: str, note: str) -> None:
        """Draw a cross (a failed run) with a tooltip."""
        a, b = self.px(x), self.py(y)
        path = f"M{a - 5},{b - 5}L{a + 5},{b + 5}M{a - 5},{b + 5}L{a + 5},{b - 5}"
        self.parts.append(f'<path class="{css}" d="{path}"><title>{escape(note)}</title></path>')

    def text(self, px: float, py: float, text: str, css: str = "label", anchor: str = "middle") -> None:
        """Write text at a position of the view box."""
        self.parts.append(
            f'<text class="{css}" x="{round(px, 1)}" y="{round(py, 1)}" text-anchor="{anchor}">{escape(text)}</text>'
        )

    def axis_y(self, label: str) -> None:
        """Draw horizontal grid lines with numbers, and the label of the axis."""
        for tick in ticks(*self.y):
            self.line([(self.x[0], tick), (self.x[1], tick)], "grid")
            self.text(self.left - 8, self.py(tick) + 4, tick_text(tick), "tick", "end")
        middle = (self.top + self.height - self.bottom) / 2
        self.parts.append(
            f'<text class="label" transform="rotate(-90 14 {middle})" x="14" y="{middle}" '
            f'text-anchor="middle">{escape(label)}</text>'
        )

    def axis_x(self, label: str, at: Sequence[float] | None = None) -> None:
        """Draw vertical ticks with numbers, and the label of the axis."""
        for tick in ticks(*self.x) if at is None else at:
            self.text(self.px(tick), self.height - self.bottom + 18, tick_text(tick), "tick")
        self.text((self.left + self.width - self.right) / 2, self.height - 6, label)

    def render(self) -> str:
        """Return the SVG element."""
        name = escape(self.title, quote=True)
        return (
            f'<svg viewBox="0 0 {self.width} {self.height}" role="img" aria-label="{name}">'
            f"<title>{escape(self.title)}</title>{''.join(self.parts)}</svg>"
        )


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return round numbers between two values."""
    raw = (high - low) / count
    power = 10.0 ** floor(log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw)
    first = ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, floor(high / step + 1e-9) + 1)]


def tick_text(value: float) -> str:
    """Return a tick label."""
    return f"{value:g}" if abs(value) < 1e6 else plain(value)


def padded(values: Iterable[float], share: float = 0.06) -> tuple[float, float]:
    """Return a range that holds all values with some margin, never empty."""
    known = list(values)
    low, high = min(known), max(known)
    margin = (abs(low) * 0.1 or 1.0) if low == high else (high - low) * share
    return low - margin, high + margin


Report = Mapping[str, Any]
#: Width over which the replicates of an arm are spread, in distances between arms.
_JITTER, _GOLDEN = 0.22, (5**0.5 - 1) / 2


def plots(report: Report) -> list[tuple[str, str, str]]:
    """Return (title, caption, SVG) of every plot that the data allow."""
    makers = (strip_plot, forest_plot, curve_plot, profile_plot, threshold_plot, sequential_plot)
    return [made for made in (make(report) for make in makers) if made is not None]


def strip_plot(report: Report) -> tuple[str, str, str] | None:
    """Return every replicate's score, blocks joined by lines, with the interval of each arm's mean."""
    rows = [row for row in report["scores"] if row["value"] is not None]
    arms = report["facts"]["arms"]
    if not rows:
        return None
    intervals = [end for row in report["table"] if row["mean_ci"] for end in row["mean_ci"]]
    frame = Frame(
        "Score of every replicate", (-0.6, len(arms) - 0.4), padded([*(r["value"] for r in rows), *intervals])
    )
    frame.axis_y(_metric_label(report))
    place = {arm: i for i, arm in enumerate(arms)}
    if report["registration"]["analysis"]["paired"]:
        _join_blocks(frame, rows, place)
    for row in rows:
        draw = frame.cross if row["status"] == "failed" else frame.dot
        note = f"{row['arm']}, replicate {row['replicate']}: {plain(row['value'], 5)}"
        draw(_spread(row, place), row["value"], f"mark arm{place[row['arm']]}", note)
    for row in report["table"]:
        i = place[row["arm"]]
        if row["mean_ci"]:
            frame.line([(i + 0.18, row["mean_ci"][0]), (i + 0.18, row["mean_ci"][1])], f"bar arm{i}")
        if row["mean"] is not None:
            frame.line([(i + 0.12, row["mean"]), (i + 0.24, row["mean"])], f"bar arm{i}")
        frame.text(frame.px(i), frame.height - frame.bottom + 18, f"{row['arm']} (n = {row['n']})", "tick")
    caption = (
        "One dot per replicate (one complete training run); a cross is a failed run at its score (see Method). Dots "
        "are spread sideways so that equal scores stay visible. "
        "Thin lines join the arms of one block, which share their random seeds. The bar beside the dots "
        "is the "
        "mean with its 95 % t interval: how well the mean is known, not how far runs spread."
    )
    return "Every replicate", caption, frame.render()


def forest_plot(report: Report) -> tuple[str, str, str] | None:
    """Return the differences with their intervals, zero and the band of the smallest effect of interest."""
    rows = [c for c in report["comparisons"] if c["estimate"] is not None]
    if not rows:
        return None
    sesoi = report["registration"]["analysis"]["sesoi"]
    values = [0.0, *(c["estimate"] for c in rows), *(x for c in rows for x in _bounds(c))]
    values += [sesoi, -sesoi] if sesoi else []
    frame = Frame("Differences between arms", padded(values), (0, len(rows)), height=70 + 46 * len(rows), left=190)
    if sesoi:
        frame.area([(-sesoi, 0), (sesoi, 0), (sesoi, len(rows)), (-sesoi, len(rows))], "sesoi")
    frame.line([(0, 0), (0, len(rows))], "zero")
    for i, c in enumerate(rows):
        _forest_row(frame, c, len(rows) - i - 0.5)
    frame.axis_x(f"advantage of the first arm ({report['facts']['difference_unit'] or 'raw units'})")
    superiority, equivalence = interval_names({c["alpha_used"] for c in report["comparisons"]})
    n = _n_text(report)
    band = f"The shaded band is the smallest effect of interest, +/-{exact(sesoi)}. " if sesoi else ""
    caption = (
        f"Dot: estimated difference ({n}). Thin line: {superiority}, by which an arm is called better when it lies "
        f"wholly beyond 0. Thick line: {equivalence}, by which two arms are called equivalent when it lies wholly "
        f"inside the band. {band}A missing line means that this n allows no interval."
    )
    return "Differences", caption, frame.render()


def curve_plot(report: Report) -> tuple[str, str, str] | None:
    """Return learning curves: thin lines per replicate, the mean, a pointwise band."""
    curves = report["curves"]
    if curves is None or len(curves["steps"]) < 2:
        return None
    steps = curves["steps"]
    every = [v for arm in curves["arms"] for run in arm["runs"] for v in run["values"] if v is not None]
    every += [v for arm in curves["arms"] for v in (*arm["low"], *arm["high"]) if v is not None]
    if not every:
        return None
    frame = Frame("Learning curves", (min(steps), max(steps)), padded(every))
    frame.axis_y(_metric_label(report))
    for i, arm in enumerate(curves["arms"]):
        band = [(s, lo, hi) for s, lo, hi in zip(steps, arm["low"], arm["high"], strict=True) if lo is not None]
        if len(band) > 1:
            frame.area([*((s, hi) for s, _, hi in band), *((s, lo) for s, lo, _ in reversed(band))], f"band arm{i}")
        for run in arm["runs"]:
            frame.line([(s, v) for s, v in zip(steps, run["values"], strict=True) if v is not None], f"thin arm{i}")
        frame.line([(s, v) for s, v in zip(steps, arm["mean"], strict=True) if v is not None], f"curve arm{i}")
    frame.axis_x("round")
    sizes = ", ".join(f"{arm['arm']} n = {arm['n']}" for arm in curves["arms"])
    caption = (
        f"Thin lines: single replicates ({sizes}); thick line: their mean. Band: {curves['band']}; it "
        f"holds at one "
        "round at a time, so it does not support a claim about several rounds or about the whole curve."
    )
    return "Learning curves", caption, frame.render()


def profile_plot(report: Report) -> tuple[str, str, str] | None:
    """Return the share of replicates above each score (ten or more replicates)."""
    profile = report["profile"]
    if profile is None:
        return None
    frame = Frame("Share of replicates above a score", padded(profile["tau"], 0.0), (-0.02, 1.02))
    frame.axis_y("share of replicates above")
    for i, arm in enumerate(profile["arms"]):
        frame.line(zip(profile["tau"], arm["share"], strict=True), f"curve arm{i}")
    frame.axis_x(_metric_label(report))
    caption = (
        f"For each score on the horizontal axis, the share of replicates that did better "
        f"({_n_text(report)}). A curve "
        "further to the right is better. No band is drawn: this describes the runs that were made."
    )
    return "Distribution of runs", caption, frame.render()


def threshold_plot(report: Report) -> tuple[str, str, str] | None:
    """Return the share of runs that have reached the threshold by each round."""
    data = report["time_to_threshold"]
    if data is None:
        return None
    frame = Frame("Time to threshold", (0, data["horizon"] or 1), (-0.02, 1.02))
    frame.axis_y("share of runs that got there")
    for i, arm in enumerate(data["arms"]):
        times, share, points = sorted(arm["times"]), 0.0, [(0.0, 0.0)]
        for time, reached in times:
            points.append((time, share))
            share += reached / len(times)
            points.append((time, share))
        points.append((data["horizon"], share))
        frame.line(points, f"curve arm{i}")
    frame.axis_x("round")
    sizes = ", ".join(f"{arm['arm']} n = {len(arm['times'])}" for arm in data["arms"])
    kind = "registered" if data["registered"] else "descriptive (half way between first and last scores)"
    caption = (
        f"Share of runs whose score had reached {plain(data['threshold'])} ({kind} threshold; {sizes}). "
        f"Runs that never "
        "got there stay in the count as censored at the last round. No band is drawn."
    )
    return "Time to threshold", caption, frame.render()


def sequential_plot(report: Report) -> tuple[str, str, str] | None:
    """Return the statistic of the deciding comparison against its boundary, over blocks."""
    data = report["sequential"]
    if data is None:
        return None
    anytime = data["mode"] == "anytime"
    values = [log10(e) if e else 0.0 for e in data["e"]] if anytime else data["z"]
    bounds = [log10(data["threshold"])] * len(data["n"]) if anytime else data["boundary"]
    known = [(n, v) for n, v in zip(data["n"], values, strict=True) if v is not None]
    top = padded([0.0, *(v for _, v in known), *bounds])
    frame = Frame("Statistic against boundary", (0, max(data["n"]) * 1.04), top)
    frame.axis_y("log10 of the e-value" if anytime else "|z| of the look")
    frame.line(zip(data["n"], bounds, strict=True), "boundary")
    if known:
        frame.line(known, "curve arm0")
    for n, v in known:
        frame.dot(n, v, "mark arm0", f"after {n} blocks: {plain(v)}")
    frame.axis_x("complete blocks", data["n"] if len(data["n"]) <= 12 else None)
    caption = (
        f"`{data['a']}` against `{data['b']}` ({_n_text(report)}). The dashed line is the boundary that "
        f"was registered: "
        "only at or above it may the arms be called different."
    )
    return "Looks at the data", caption, frame.render()


def _join_blocks(frame: Frame, rows: list[Any], place: Mapping[str, int]) -> None:
    blocks: dict[int, list[tuple[float, float]]] = {}
    for row in rows:
        blocks.setdefault(row["replicate"], []).append((_spread(row, place), row["value"]))
    for points in blocks.values():
        frame.line(sorted(points), "join")


def _spread(row: Mapping[str, Any], place: Mapping[str, int]) -> float:
    """Return where a replicate stands beside its arm's place: equal scores must not hide one another.

    Multiples of the golden ratio lie evenly whatever their number; a block keeps its offset in every arm.
    """
    return place[row["arm"]] + _JITTER * (int(row["replicate"]) * _GOLDEN % 1 - 0.5)


def _forest_row(frame: Frame, c: Mapping[str, Any], y: float) -> None:
    frame.text(frame.left - 12, frame.py(y) + 4, f"{c['a']} - {c['b']}", "tick", "end")
    for key, css in (("ci_superiority", "interval"), ("ci_equivalence", "interval wide")):
        if c[key]:
            frame.line([(c[key][0], y), (c[key][1], y)], css)
    frame.dot(c["estimate"], y, "mark point", f"{c['a']} minus {c['b']}: {signed(c['estimate'])}")


def _bounds(c: Mapping[str, Any]) -> list[float]:
    return [*(c["ci_superiority"] or []), *(c["ci_equivalence"] or [])]


def _metric_label(report: Report) -> str:
    unit = report["facts"]["unit"]
    return f"{report['facts']['metric']} ({unit})" if unit else str(report["facts"]["metric"])


def _n_text(report: Report) -> str:
    sizes = sorted({row["n"] for row in report["table"]})
    return f"n = {sizes[0]}" if len(sizes) == 1 else f"n = {sizes[0]} to {sizes[-1]}"
