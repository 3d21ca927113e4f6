"""A few SVG primitives: axes, lines and marks on a frame. Text is escaped; colours are CSS classes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from math import ceil, floor, log10

from app.domain.report.numbers import plain


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
