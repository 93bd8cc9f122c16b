"""What the tests of rules and dashboards share: their files, and a Prometheus of their own."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

import plain_http
import setup_script
from cluster import STOP_SECONDS, free_address, wait_until

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "helm" / "specfabric" / "rules"
RULE_FILES = [RULES / "recording.yaml", RULES / "alerts.yaml"]
DASHBOARDS = sorted((ROOT / "helm" / "specfabric" / "dashboards").glob("*.json"))
RUNBOOKS = ROOT / "docs" / "runbooks"
PROGRAMS = Path(os.environ.get("SPECFABRIC_DEPLOY_DIR", setup_script.folder("deploy")))


def program(name: str) -> str:
    path = PROGRAMS / name
    assert path.is_file(), f"{path} is not there: run scripts/setup --deploy"
    return str(path)


@dataclass(frozen=True)
class Expression:
    """One query of a panel, its variables standing for everything."""

    dashboard: str
    panel: str
    legend: str
    unit: str
    expr: str

    def __str__(self) -> str:
        return f"{self.dashboard} / {self.panel} / {self.legend or 'value'}"


def load_dashboard(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def panels_of(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def resolve(expr: str, window: str) -> str:
    """The query as Grafana sends it where nothing is selected."""
    resolved = re.sub(r"\$(namespace|job|instance)\b", ".*", expr)
    return resolved.replace("$__rate_interval", window)


def expressions(window: str) -> list[Expression]:
    return [
        Expression(
            dashboard["uid"],
            panel["title"],
            target["legendFormat"],
            panel["fieldConfig"]["defaults"]["unit"],
            resolve(target["expr"], window),
        )
        for dashboard in map(load_dashboard, DASHBOARDS)
        for panel in panels_of(dashboard)
        for target in panel["targets"]
    ]


def load_rules(path: Path) -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]


def alerts() -> list[dict[str, Any]]:
    return load_rules(RULES / "alerts.yaml")


def hasten(source: Path, target: Path, windows: dict[str, str], hold: str) -> None:
    """A copy of a rule file for a test that has seconds where a cluster has hours.

    `windows` replaces ranges such as [10m]; each `for` becomes `hold`, and rules are evaluated
    every second. Thresholds, labels and everything else stay.
    """
    content = yaml.safe_load(source.read_text())
    for group in content["groups"]:
        group["interval"] = "1s"
        for rule in group["rules"]:
            rule["expr"] = re.sub(
                r"\[(\w+)\]", lambda match: f"[{windows[match[1]]}]", rule["expr"]
            )
            if "for" in rule:
                rule["for"] = hold
    target.write_text(yaml.safe_dump(content, width=1000))


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program("promtool"), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@dataclass
class Prometheus:
    """A running Prometheus; made by `started_prometheus`."""

    address: str
    process: subprocess.Popen[bytes]

    def get(self, path: str, **parameters: str) -> Any:
        response = plain_http.get(
            f"http://{self.address}/api/v1/{path}", params=parameters, timeout=30
        )
        body = response.json()
        assert body["status"] == "success", (path, parameters, body)
        return body["data"]

    def query(self, expr: str) -> list[dict[str, Any]]:
        """The samples of an instant query, one a series."""
        data = self.get("query", query=expr)
        assert data["resultType"] == "vector", (expr, data)
        return data["result"]

    def states(self) -> dict[str, str]:
        """The state of every alert rule, by the alert's name; the worst of those with one name."""
        order = ["inactive", "pending", "firing"]
        found: dict[str, str] = {}
        for group in self.get("rules", type="alert")["groups"]:
            for rule in group["rules"]:
                assert rule["health"] == "ok", rule
                state = found.get(rule["name"], "inactive")
                found[rule["name"]] = max(state, rule["state"], key=order.index)
        return found

    def active(self) -> dict[str, dict[str, Any]]:
        """What is pending or firing, by the alert's name; of several, one that fires."""
        found: dict[str, dict[str, Any]] = {}
        for alert in self.get("alerts")["alerts"]:
            name = alert["labels"]["alertname"]
            if name not in found or alert["state"] == "firing":
                found[name] = alert
        return found


@contextlib.contextmanager
def started_prometheus(config: dict[str, Any], folder: Path) -> Iterator[Prometheus]:
    """On a free loopback port, its data in `folder`; ended by its pid."""
    path = folder / "prometheus.yml"
    path.write_text(yaml.safe_dump(config))
    address = free_address()
    log = folder / "prometheus.log"
    command = [
        program("prometheus"),
        f"--config.file={path}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
        "--log.level=warn",
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:

        def ready() -> bool:
            assert process.poll() is None, log.read_text()
            return plain_http.status_of(f"http://{address}/-/ready") == 200

        wait_until(ready, "Prometheus is ready", 60)
        yield Prometheus(address, process)
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
