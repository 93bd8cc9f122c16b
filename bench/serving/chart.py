"""The pictures of the serving benches.

`picture` is a sweep's: throughput and time per token over load, a curve a mode. `ratios` shows how
rates compare: a panel each, ratios with their intervals over the number of clients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.serving.turns import Interval
from bench.svg import Axis, Panel, document, from_zero, key, line, text

COLOURS = ["#d62728", "#444444", "#1f77b4", "#2ca02c"]
WIDTH, HEIGHT, MARGIN, TOP = 400, 320, 60, 40
RATIO_WIDTH, RATIO_HEIGHT, RATIO_COLUMNS = 300, 180, 3

# By number of clients.
Curve = Mapping[int, Interval]


def picture(
    load_name: str,
    loads: Sequence[float],
    tokens_per_second: Mapping[str, Sequence[float]],
    tpot_ms: Mapping[str, Sequence[float]],
) -> str:
    """An SVG; values by mode, one a load. Loads are ascending."""
    load_axis = Axis([(load, f"{load:g}") for load in loads], logarithmic=True)
    parts = []
    for i, (title, by_mode) in enumerate(
        (("output tokens/s", tokens_per_second), ("TPOT, mean, ms", tpot_ms))
    ):
        left = MARGIN + i * (WIDTH + MARGIN)
        values = from_zero([value for values in by_mode.values() for value in values])
        panel = Panel(left, TOP, WIDTH, HEIGHT, load_axis, values)
        parts += panel.frame(f"{title} over {load_name}")
        for values_of_mode, colour in zip(by_mode.values(), COLOURS, strict=False):
            parts += panel.curve(list(zip(loads, values_of_mode, strict=True)), colour)
    legend = TOP + HEIGHT + 44
    for i, (mode, colour) in enumerate(zip(tokens_per_second, COLOURS, strict=False)):
        parts += key(MARGIN + i * 160, legend, mode, colour)
    return document(2 * (WIDTH + MARGIN) + MARGIN, legend + 20, parts)


def ratios(panels: Mapping[str, Mapping[str, Curve]]) -> str:
    """An SVG of a panel for each title, with a curve for each name; names are alike in all."""
    names = list(dict.fromkeys(name for curves in panels.values() for name in curves))
    clients = sorted({n for curves in panels.values() for curve in curves.values() for n in curve})
    over = Axis([(n, str(n)) for n in clients], logarithmic=True)
    parts = []
    for i, (title, curves) in enumerate(panels.items()):
        row, column = divmod(i, RATIO_COLUMNS)
        values = from_zero([1.0, *(r.high for curve in curves.values() for r in curve.values())])
        panel = Panel(
            MARGIN + column * (RATIO_WIDTH + MARGIN),
            TOP + row * (RATIO_HEIGHT + MARGIN),
            RATIO_WIDTH,
            RATIO_HEIGHT,
            over,
            values,
        )
        parts += panel.frame(title)
        parts.append(line(*panel.place(clients[0], 1), *panel.place(clients[-1], 1), "#888888"))
        for name, curve in curves.items():
            colour = COLOURS[names.index(name) % len(COLOURS)]
            points = sorted(curve.items())
            parts += panel.curve([(n, r.value) for n, r in points], colour)
            for n, r in points:
                parts.append(line(*panel.place(n, r.low), *panel.place(n, r.high), colour))
    rows = -(-len(panels) // RATIO_COLUMNS)
    legend = TOP + rows * (RATIO_HEIGHT + MARGIN)
    for i, name in enumerate(names):
        parts += key(MARGIN + i * 160, legend, name, COLOURS[i % len(COLOURS)])
    parts.append(text(MARGIN + len(names) * 160, legend, "over clients; intervals of 95 %"))
    width = max(RATIO_COLUMNS * (RATIO_WIDTH + MARGIN) + MARGIN, MARGIN + 160 * len(names) + 240)
    return document(width, legend + 20, parts)
