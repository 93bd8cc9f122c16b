"""What a dashboard is, and the JSON that Grafana wants of it.

A panel is what matters: title, unit, description, queries. What Grafana wants besides (ids, places,
options) is the same for all and follows from that. In a query `$S` stands for the dashboard's
selector of processes, `$R` for the window of a rate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SELECTOR = 'namespace=~"$namespace",job=~"$job",instance=~"$instance"'
RATE = "$__rate_interval"
SCHEMA_VERSION = 39
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS = 24  # of Grafana's grid


@dataclass(frozen=True)
class Query:
    expr: str
    legend: str = ""


@dataclass(frozen=True)
class Panel:
    title: str
    unit: str
    description: str
    queries: list[Query]
    kind: str = "timeseries"
    stacked: bool = False
    width: int = 8
    height: int = 8
    maximum: float | None = None


@dataclass(frozen=True)
class Row:
    title: str
    panels: list[Panel]


@dataclass(frozen=True)
class Dashboard:
    uid: str
    title: str
    description: str
    rows: list[Row]


def stat(title: str, unit: str, description: str, expr: str) -> Panel:
    return Panel(title, unit, description, [Query(expr)], kind="stat", width=4, height=4)


def percentiles(metric: str, quantiles: list[float]) -> list[Query]:
    return [
        Query(
            f"histogram_quantile({q}, sum by (le) (rate({metric}_bucket{{$S}}[$R])))",
            f"p{q * 100:g}",
        )
        for q in quantiles
    ]


def rates(by: str, *metrics: str) -> list[Query]:
    """The rate of each counter, in all; `by` is the legend's words in the same order."""
    words = by.split("|")
    return [
        Query(f"sum(rate({metric}{{$S}}[$R]))", word)
        for metric, word in zip(metrics, words, strict=True)
    ]


def share(part: str, whole: str) -> str:
    return f"sum(rate({part}[$R])) / sum(rate({whole}[$R]))"


def _variable(name: str, label: str) -> dict[str, Any]:
    query = f"label_values(specfabric_build_info, {name})"
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "definition": query,
        "query": {"query": query, "refId": name},
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
        "refresh": 2,
        "sort": 1,
    }


def _panel(panel: Panel, number: int, x: int, y: int) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if panel.maximum is not None:
        defaults["max"] = panel.maximum
    options: dict[str, Any]
    if panel.kind == "stat":
        options = {"reduceOptions": {"calcs": ["lastNotNull"]}, "graphMode": "area"}
    else:
        defaults["custom"] = {
            "fillOpacity": 40 if panel.stacked else 5,
            "showPoints": "never",
            "stacking": {"mode": "normal" if panel.stacked else "none"},
        }
        options = {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "gridPos": {"h": panel.height, "w": panel.width, "x": x, "y": y},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": [
            {
                "refId": chr(ord("A") + i),
                "datasource": DATASOURCE,
                "expr": query.expr.replace("$S", SELECTOR).replace("$R", RATE),
                "legendFormat": query.legend,
            }
            for i, query in enumerate(panel.queries)
        ],
    }


def _panels(rows: list[Row]) -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = []
    y = 0
    for row in rows:
        place = {"h": 1, "w": COLUMNS, "x": 0, "y": y}
        panels.append({"id": len(panels) + 1, "type": "row", "title": row.title, "gridPos": place})
        x, y, height = 0, y + 1, 0
        for panel in row.panels:
            if x + panel.width > COLUMNS:
                x, y, height = 0, y + height, 0
            panels.append(_panel(panel, len(panels) + 1, x, y))
            x, height = x + panel.width, max(height, panel.height)
        y += height
    return panels


def to_json(dashboard: Dashboard) -> dict[str, Any]:
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.description,
        "tags": ["specfabric"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "links": [
            {
                "title": "SpecFabric",
                "type": "dashboards",
                "tags": ["specfabric"],
                "asDropdown": False,
                "includeVars": True,
                "keepTime": True,
            }
        ],
        "annotations": {
            "list": [
                {
                    "name": "Alerts",
                    "datasource": DATASOURCE,
                    "enable": True,
                    "expr": 'ALERTS{alertname=~"SpecFabric.*",alertstate="firing",'
                    'namespace=~"$namespace"}',
                    "iconColor": "red",
                    "titleFormat": "{{alertname}}",
                    "textFormat": "{{instance}}",
                }
            ]
        },
        "templating": {
            "list": [
                {
                    "name": "datasource",
                    "label": "Data source",
                    "type": "datasource",
                    "query": "prometheus",
                    "current": {},
                },
                _variable("namespace", "Namespace"),
                _variable("job", "Job"),
                _variable("instance", "Instance"),
            ]
        },
        "panels": _panels(dashboard.rows),
    }
