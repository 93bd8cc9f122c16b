#!/usr/bin/env python3
"""Draws the dashboards from what a Prometheus holds: a picture without a Grafana.

    scripts/dashboards/plot_dashboards.py --prometheus http://127.0.0.1:9090 --seconds 120 \\
        --folder docs/pictures

One SVG a dashboard, its panels where Grafana would have them, nothing selected. It needs what
`scripts/setup --deploy` installs.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import time
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, Formatter, PercentFormatter, ScalarFormatter

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "helm" / "specfabric" / "dashboards"
COLUMN_INCHES, ROW_INCHES = 0.7, 0.36  # of a cell of Grafana's grid
MARGIN = (1.5, 1.0, 0.4, 1.6)  # left, top, right, bottom of a chart inside its panel, in cells
MOST_LEGENDS = 8
UNIT_NAMES = {"cps": "/s", "reqps": "/s", "Bps": "B/s", "s": "s"}


@dataclass(frozen=True)
class Series:
    name: str
    times: list[float]
    values: list[float]


@dataclass(frozen=True)
class Source:
    """A Prometheus, and the time that is drawn."""

    url: str
    begin: float
    end: float
    step: float
    window: str  # of rates

    def read(self, target: dict[str, Any]) -> list[Series]:
        expr = re.sub(r"\$(namespace|job|instance)\b", ".*", target["expr"])
        query = urllib.parse.urlencode(
            {
                "query": expr.replace("$__rate_interval", self.window),
                "start": self.begin,
                "end": self.end,
                "step": self.step,
            }
        )
        with urllib.request.urlopen(f"{self.url}/api/v1/query_range?{query}", timeout=30) as answer:
            result = json.load(answer)["data"]["result"]
        return [self._series(one, target["legendFormat"]) for one in result]

    def _series(self, one: dict[str, Any], legend: str) -> Series:
        labels = one["metric"]
        name = re.sub(r"\{\{(\w+)\}\}", lambda match: labels.get(match[1], ""), legend)
        times = [float(at) - self.begin for at, _ in one["values"]]
        return Series(name, times, [float(value) for _, value in one["values"]])


def formatter(unit: str) -> Formatter:
    if unit == "percentunit":
        return PercentFormatter(xmax=1, decimals=0)
    if unit in UNIT_NAMES:
        return EngFormatter(unit=UNIT_NAMES[unit], sep=" ")
    return ScalarFormatter()


def in_words(value: float, unit: str) -> str:
    if math.isnan(value):
        return "-"
    if unit == "percentunit":
        return f"{value:.1%}"
    if unit in UNIT_NAMES:
        return EngFormatter(unit=UNIT_NAMES[unit], places=1, sep=" ")(value)
    return f"{value:.3g}"


def draw_stat(axes: Axes, panel: dict[str, Any], series: list[Series]) -> None:
    axes.set_axis_off()
    value = series[0].values[-1] if series else math.nan
    unit = panel["fieldConfig"]["defaults"]["unit"]
    axes.text(0.5, 0.4, in_words(value, unit), ha="center", va="center", fontsize=17)


def filled(series: Series, times: list[float]) -> list[float]:
    """Its values at `times`, 0 where it has none: for stacking."""
    known = dict(zip(series.times, series.values, strict=True))
    return [0.0 if math.isnan(known.get(at, 0.0)) else known.get(at, 0.0) for at in times]


def draw_chart(axes: Axes, panel: dict[str, Any], series: list[Series]) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    if defaults["custom"]["stacking"]["mode"] == "normal" and series:
        # What is nothing all the time would only lengthen the legend.
        series = [one for one in series if any(value > 0 for value in one.values)] or series[:1]
        times = sorted({at for one in series for at in one.times})
        axes.stackplot(
            times,
            [filled(one, times) for one in series],
            labels=[one.name for one in series],
            alpha=0.8,
        )
    else:
        for one in series:
            axes.plot(one.times, one.values, label=one.name, linewidth=1.2)
    axes.set_ylim(bottom=0, top=defaults.get("max"))
    axes.yaxis.set_major_formatter(formatter(defaults["unit"]))
    axes.tick_params(labelsize=6, length=2)
    axes.grid(alpha=0.25, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        axes.legend(
            handles[:MOST_LEGENDS],
            labels[:MOST_LEGENDS],
            loc="upper left",
            bbox_to_anchor=(-0.1, -0.1),
            ncols=2 if max(map(len, labels[:MOST_LEGENDS])) > 16 else 4,
            fontsize=5.5,
            frameon=False,
            handlelength=1,
            columnspacing=1,
        )


def draw(dashboard: dict[str, Any], source: Source, path: Path) -> None:
    rows = max(p["gridPos"]["y"] + p["gridPos"]["h"] for p in dashboard["panels"]) + 2
    figure = Figure(figsize=(24 * COLUMN_INCHES, rows * ROW_INCHES))
    figure.text(0.01, 1 - 0.9 / rows, dashboard["title"], fontsize=15, weight="bold", va="center")
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        top = 1 - (place["y"] + 2) / rows  # of the panel, below the title
        left = place["x"] / 24
        if panel["type"] == "row":
            figure.text(0.01, top - 0.5 / rows, panel["title"], fontsize=11, va="center")
            continue
        series = [one for target in panel["targets"] for one in source.read(target)]
        before, above, after, below = MARGIN if panel["type"] != "stat" else (0, 1, 0, 0)
        axes = figure.add_axes(
            (
                left + before / 24,
                top - (place["h"] - below) / rows,
                (place["w"] - before - after) / 24,
                (place["h"] - above - below) / rows,
            )
        )
        figure.text(left + 0.3 / 24, top - 0.5 / rows, panel["title"], fontsize=8, weight="bold")
        draw_stat(axes, panel, series) if panel["type"] == "stat" else draw_chart(
            axes, panel, series
        )
    figure.savefig(path, metadata={"Date": None})


def main() -> int:
    parser = argparse.ArgumentParser(description="Draws the dashboards from Prometheus' data.")
    parser.add_argument("--prometheus", required=True, help="its address, http://host:port")
    parser.add_argument("--seconds", type=float, default=3600, help="how far back")
    parser.add_argument("--window", default="1m", help="what rates are taken over")
    parser.add_argument("--folder", type=Path, required=True, help="where the pictures go")
    arguments = parser.parse_args()
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "specfabric"})
    end = time.time()
    source = Source(
        arguments.prometheus.rstrip("/"),
        end - arguments.seconds,
        end,
        max(1.0, arguments.seconds / 240),
        arguments.window,
    )
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(FOLDER.glob("*.json")):
        draw(json.loads(path.read_text()), source, arguments.folder / f"{path.stem}.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main())
