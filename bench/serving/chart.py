"""The picture of a sweep: throughput and time per token over load, a curve a mode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.svg import Axis, Panel, document, from_zero, key

COLOURS = ["#d62728", "#444444", "#1f77b4", "#2ca02c"]
WIDTH, HEIGHT, MARGIN, TOP = 400, 320, 60, 40


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
