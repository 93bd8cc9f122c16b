"""The picture: latency over message size, log-log, a panel a transport, and the tree's bars."""

from __future__ import annotations

import math
from html import escape

from report import Results, number, size_name
from systems import MESSAGE, TRANSPORTS, TREE, Case

# One a system, in their order, whether it was measured or not.
COLOURS = [
    "#bbbbbb",
    "#444444",
    "#d62728",
    "#ff9896",
    "#1f77b4",
    "#17a2b8",
    "#9ecae1",
    "#98d8d8",
    "#2ca02c",
    "#9467bd",
]
PANEL_WIDTH, PANEL_HEIGHT, MARGIN = 400, 320, 60
BAR_HEIGHT = 18
LABEL_WIDTH = 240
FONT = 'font-family="sans-serif" font-size="12"'


def text(x: float, y: float, words: str, anchor: str = "start", extra: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {extra}>{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{colour}"/>'


def decades(values: list[float]) -> range:
    """The powers of ten that bound the values, both ends included."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return range(low, max(high, low + 1) + 1)


def panel(
    results: Results, transport: str, sizes: list[int], powers: range, left: float, top: float
) -> list[str]:
    def x(size: int) -> float:
        low, high = math.log2(sizes[0]), math.log2(sizes[-1])
        return left + (math.log2(size) - low) / max(high - low, 1) * PANEL_WIDTH

    def y(us: float) -> float:
        share = (math.log10(us) - powers[0]) / (powers[-1] - powers[0])
        return top + PANEL_HEIGHT * (1 - share)

    parts = [text(left, top - 12, f"{transport}: us one way, median", extra='font-weight="bold"')]
    for power in powers:
        level = y(10.0**power)
        parts.append(line(left, level, left + PANEL_WIDTH, level, "#dddddd"))
        parts.append(text(left - 6, level + 4, f"{10.0**power:g}", "end"))
    for size in sizes:
        parts.append(line(x(size), top, x(size), top + PANEL_HEIGHT, "#eeeeee"))
        parts.append(text(x(size), top + PANEL_HEIGHT + 18, size_name(size), "middle"))
    for system, colour in zip(results.systems, COLOURS, strict=False):
        found = [
            (size, results.median_us(system, Case(transport, MESSAGE, size))) for size in sizes
        ]
        points = [(x(size), y(us)) for size, us in found if us is not None]
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [
            f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3" fill="{colour}"/>' for px, py in points
        ]
    return parts


def bars(results: Results, left: float, top: float, width: float) -> list[str]:
    """The tree's round trips, linear from 0."""
    rows = []
    for transport in TRANSPORTS:
        for system, colour in zip(results.systems, COLOURS, strict=False):
            one_way = results.median_us(system, Case(transport, TREE, 0))
            if one_way is not None:
                rows.append((f"{system}, {transport}", 2 * one_way, colour))
    if not rows:
        return []
    scale = (width - LABEL_WIDTH - MARGIN) / max(us for _, us, _ in rows)
    title = "64-node draft request and reply: us a round trip, median"
    parts = [text(left, top - 12, title, extra='font-weight="bold"')]
    for i, (name, us, colour) in enumerate(rows):
        middle = top + i * (BAR_HEIGHT + 4)
        start = left + LABEL_WIDTH
        parts.append(text(start - 6, middle + 13, name, "end"))
        size = f'width="{us * scale:.1f}" height="{BAR_HEIGHT}"'
        parts.append(f'<rect x="{start:.1f}" y="{middle:.1f}" {size} fill="{colour}"/>')
        parts.append(text(start + us * scale + 4, middle + 13, number(us)))
    return parts


def svg(results: Results, sizes: list[int]) -> str:
    width = MARGIN + len(TRANSPORTS) * (PANEL_WIDTH + MARGIN)
    powers = decades([s.p50_us for s in results.samples if s.test == MESSAGE])
    top = 40.0
    parts = []
    for i, transport in enumerate(TRANSPORTS):
        left = MARGIN + i * (PANEL_WIDTH + MARGIN)
        parts += panel(results, transport, sizes, powers, left, top)
    legend_top = top + PANEL_HEIGHT + 44
    columns = 3
    measured = {sample.system for sample in results.samples}
    legend = [pair for pair in zip(results.systems, COLOURS, strict=False) if pair[0] in measured]
    for i, (system, colour) in enumerate(legend):
        x = MARGIN + (i % columns) * (width - MARGIN) / columns
        y = legend_top + (i // columns) * 20
        parts.append(f'<rect x="{x:.1f}" y="{y - 10:.1f}" width="12" height="12" fill="{colour}"/>')
        parts.append(text(x + 18, y, system))
    bars_top = legend_top + math.ceil(len(legend) / columns) * 20 + 36
    bar_parts = bars(results, MARGIN, bars_top, width - MARGIN)
    height = bars_top + sum(part.startswith("<rect") for part in bar_parts) * (BAR_HEIGHT + 4) + 20
    shape = f'width="{width}" height="{height:.0f}" viewBox="0 0 {width} {height:.0f}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {shape} {FONT}>',
            '<rect width="100%" height="100%" fill="white"/>',
            *parts,
            *bar_parts,
            "</svg>\n",
        ]
    )
