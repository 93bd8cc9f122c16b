"""The dashboards are what Grafana wants, and ask for metrics that exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from watching import (
    DASHBOARDS,
    ROOT,
    RULE_FILES,
    expressions,
    load_dashboard,
    load_rules,
    panels_of,
    promtool,
)

HISTOGRAM_PARTS = ("_bucket", "_sum", "_count")
LOADED = {path.stem: load_dashboard(path) for path in DASHBOARDS}


def documented() -> set[str]:
    """The names in docs/metrics.md, and Prometheus' own."""
    text = (ROOT / "docs" / "metrics.md").read_text()
    return {*re.findall(r"^\| `([\w:]+)`", text, re.MULTILINE), "up", "ALERTS"}


def names_in(expr: str) -> set[str]:
    return set(re.findall(r"(?:specfabric_|vllm:)\w+", expr))


def base_name(name: str) -> str:
    for part in HISTOGRAM_PARTS:
        if name.endswith(part):
            return name.removesuffix(part)
    return name


def test_there_are_three() -> None:
    assert set(LOADED) == {"specfabric-service", "specfabric-speculation", "specfabric-fabric"}


def test_files_are_those_that_the_tables_give() -> None:
    script = ROOT / "scripts" / "dashboards" / "write_dashboards.py"
    result = subprocess.run(
        [sys.executable, script, "--check"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("name", LOADED)
def test_a_dashboard_is_whole(name: str) -> None:
    dashboard = LOADED[name]
    assert dashboard["uid"] == name
    assert 38 <= dashboard["schemaVersion"] <= 41
    assert dashboard["title"]
    assert dashboard["description"]
    variables = {variable["name"]: variable for variable in dashboard["templating"]["list"]}
    assert set(variables) == {"datasource", "namespace", "job", "instance"}
    assert variables["datasource"]["type"] == "datasource"
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))


def overlap(a: dict[str, int], b: dict[str, int]) -> bool:
    return (
        a["x"] < b["x"] + b["w"]
        and b["x"] < a["x"] + a["w"]
        and a["y"] < b["y"] + b["h"]
        and b["y"] < a["y"] + a["h"]
    )


@pytest.mark.parametrize("name", LOADED)
def test_panels_lie_beside_each_other(name: str) -> None:
    places = [panel["gridPos"] for panel in LOADED[name]["panels"]]
    for i, place in enumerate(places):
        assert place["x"] >= 0
        assert place["x"] + place["w"] <= 24
        assert not any(overlap(place, other) for other in places[:i])


@pytest.mark.parametrize("name", LOADED)
def test_each_panel_says_what_it_shows(name: str) -> None:
    panels = panels_of(LOADED[name])
    titles = [panel["title"] for panel in panels]
    assert len(titles) == len(set(titles))
    for panel in panels:
        assert len(panel["description"]) > 20, panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}", panel["title"]
        references = [target["refId"] for target in panel["targets"]]
        assert references
        assert len(references) == len(set(references))
        for target in panel["targets"]:
            assert "$S" not in target["expr"]
            assert "$R" not in target["expr"]
            assert target["legendFormat"] or panel["type"] == "stat", panel["title"]
            for variable in ("namespace", "job", "instance"):
                assert f'{variable}=~"${variable}"' in target["expr"], panel["title"]


def test_promtool_takes_every_expression(tmp_path: Path) -> None:
    rules: list[dict[str, Any]] = [
        {"record": f"specfabric:panel:{i}", "expr": expression.expr}
        for i, expression in enumerate(expressions("5m"))
    ]
    path = tmp_path / "panels.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    result = promtool("check", "rules", path)
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_metric_asked_for_is_documented() -> None:
    recorded = {r["record"] for path in RULE_FILES for r in load_rules(path) if "record" in r}
    exprs = [expression.expr for expression in expressions("5m")]
    exprs += [rule["expr"] for path in RULE_FILES for rule in load_rules(path)]
    known = documented()
    for expr in exprs:
        without_records = re.sub(r"specfabric:[\w:]+", "", expr)
        assert set(re.findall(r"specfabric:[\w:]+", expr)) <= recorded, expr
        for name in names_in(without_records):
            assert name in known or base_name(name) in known, f"{name} is not in docs/metrics.md"


def test_every_documented_drop_and_refusal_is_shown() -> None:
    """What goes wrong silently must be on some dashboard."""
    shown = " ".join(expression.expr for expression in expressions("5m"))
    for name in documented():
        if re.search(r"refused|errors|failures|dropped|stale_tensors|late_|malformed|lost", name):
            assert name in shown, f"no panel shows {name}"
