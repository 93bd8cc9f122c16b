"""The elements that the benches' pictures are drawn of: axes, panels, curves, words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

FONT = 'font-family="sans-serif" font-size="12"'


def text(x: float, y: float, words: str, anchor: str = "start", extra: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {extra}>{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{colour}"/>'


def key(x: float, y: float, words: str, colour: str) -> list[str]:
    """A legend's entry."""
    square = f'<rect x="{x:.1f}" y="{y - 10:.1f}" width="12" height="12" fill="{colour}"/>'
    return [square, text(x + 18, y, words)]


def document(width: float, height: float, parts: Sequence[str]) -> str:
    """A whole file."""
    shape = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {shape} {FONT}>',
            '<rect width="100%" height="100%" fill="white"/>',
            *parts,
            "</svg>\n",
        ]
    )


@dataclass(frozen=True)
class Axis:
    """One side of a panel: (value, label) of its ticks, ascending; they bound it."""

    ticks: Sequence[tuple[float, str]]
    logarithmic: bool

    def share(self, value: float) -> float:
        """Where a value lies, from 0 at the first tick to 1 at the last."""
        low, high, at = (self._scaled(v) for v in (self.ticks[0][0], self.ticks[-1][0], value))
        return (at - low) / (high - low) if high > low else 0.0

    def _scaled(self, value: float) -> float:
        return math.log(value) if self.logarithmic else value


def decades(values: Sequence[float]) -> Axis:
    """A logarithmic axis whose ticks are the powers of ten around the values."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    powers = [10.0**power for power in range(low, max(high, low + 1) + 1)]
    return Axis([(power, f"{power:g}") for power in powers], logarithmic=True)


def from_zero(values: Sequence[float]) -> Axis:
    """A linear axis from 0 to beyond the largest value, with four to ten round steps."""
    top = max(max(values), 1e-9)
    power = 10.0 ** math.floor(math.log10(top))
    step = power * next(factor for factor in (0.1, 0.2, 0.25, 0.5, 1) if top / power / factor <= 10)
    return Axis(
        [(i * step, f"{i * step:g}") for i in range(math.ceil(top / step) + 1)], logarithmic=False
    )


@dataclass(frozen=True)
class Panel:
    """A rectangle with two axes, in which curves are drawn."""

    left: float
    top: float
    width: float
    height: float
    x: Axis
    y: Axis

    def place(self, x: float, y: float) -> tuple[float, float]:
        return (
            self.left + self.x.share(x) * self.width,
            self.top + (1 - self.y.share(y)) * self.height,
        )

    def frame(self, title: str) -> list[str]:
        """The title, the grid and its labels."""
        bottom, right = self.top + self.height, self.left + self.width
        parts = [text(self.left, self.top - 12, title, extra='font-weight="bold"')]
        for value, label in self.y.ticks:
            level = self.top + (1 - self.y.share(value)) * self.height
            parts.append(line(self.left, level, right, level, "#dddddd"))
            parts.append(text(self.left - 6, level + 4, label, "end"))
        for value, label in self.x.ticks:
            column = self.left + self.x.share(value) * self.width
            parts.append(line(column, self.top, column, bottom, "#eeeeee"))
            parts.append(text(column, bottom + 18, label, "middle"))
        return parts

    def curve(self, points: Sequence[tuple[float, float]], colour: str) -> list[str]:
        places = [self.place(x, y) for x, y in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        return [
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>',
            *(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places),
        ]
