"""The chart: latency over message size, log-log, one panel a transport, and bars for the tree."""

from __future__ import annotations

import math
import sys
from pathlib import Path

from report import Results, number, size_name
from systems import MESSAGE, TRANSPORTS, TREE, Case

sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench.svg import Axis, Panel, decades, document, key, text  # noqa: E402

# One for each system, in their order, also for those that were not measured.
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


def panel(
    results: Results, transport: str, sizes: list[int], us_axis: Axis, left: float, top: float
) -> list[str]:
    size_axis = Axis([(size, size_name(size)) for size in sizes], logarithmic=True)
    shape = Panel(left, top, PANEL_WIDTH, PANEL_HEIGHT, size_axis, us_axis)
    parts = shape.frame(f"{transport}: us one way, median")
    for system, colour in zip(results.systems, COLOURS, strict=False):
        found = [
            (size, results.median_us(system, Case(transport, MESSAGE, size))) for size in sizes
        ]
        parts += shape.curve([(size, us) for size, us in found if us is not None], colour)
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
    us_axis = decades([s.p50_us for s in results.samples if s.test == MESSAGE])
    top = 40.0
    parts = []
    for i, transport in enumerate(TRANSPORTS):
        left = MARGIN + i * (PANEL_WIDTH + MARGIN)
        parts += panel(results, transport, sizes, us_axis, left, top)
    legend_top = top + PANEL_HEIGHT + 44
    columns = 3
    measured = {sample.system for sample in results.samples}
    legend = [pair for pair in zip(results.systems, COLOURS, strict=False) if pair[0] in measured]
    for i, (system, colour) in enumerate(legend):
        x = MARGIN + (i % columns) * (width - MARGIN) / columns
        y = legend_top + (i // columns) * 20
        parts += key(x, y, system, colour)
    bars_top = legend_top + math.ceil(len(legend) / columns) * 20 + 36
    bar_parts = bars(results, MARGIN, bars_top, width - MARGIN)
    height = bars_top + sum(part.startswith("<rect") for part in bar_parts) * (BAR_HEIGHT + 4) + 20
    return document(width, height, [*parts, *bar_parts])
