"""A real Prometheus watches a real cluster: every panel has data, and every fault is noticed.

The cluster serves under load for SPECFABRIC_WATCH_SECONDS (40); then every query of every dashboard
must have data and every alert must have been quiet. Then faults are made, one after the other; each
must raise its alert, and the alert must end with the fault.

The rules are the ones of the chart, but in a hurry (`watching.hasten`): windows of hours and
minutes are seconds, and `for` is one. And since nothing here has RDMA, shared memory plays its
part: the rule's list of RDMA wires is replaced by it, so that a draft that takes TCP instead has
fallen back.

With SPECFABRIC_WATCH_PICTURES=FOLDER the pictures of the dashboards, which are drawn in any case,
go there.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

import make
import plain_http
from cluster import DRAFT, TARGET, free_address, wait_for_drafts, wait_until
from prompts import PROMPTS
from units import Unit, started_units
from watching import (
    DASHBOARDS,
    ROOT,
    RULE_FILES,
    Prometheus,
    alerts,
    expressions,
    hasten,
    load_rules,
    started_prometheus,
)

SECONDS = float(os.environ.get("SPECFABRIC_WATCH_SECONDS", "40"))
PICTURES = os.environ.get("SPECFABRIC_WATCH_PICTURES", "")
FIRST_SCRAPES = 6.0  # seconds
WINDOW = "10s"  # of the panels' rates; scraped each second
WINDOWS = {"5m": "8s", "10m": "8s", "30m": "12s", "1h": "16s", "6h": "20s", "1d": "1d"}
RDMA_WIRES, OUR_WIRE = "(rc_|dc_|ud_|srd|gga_).*", ".*/memory"
NOTICE_SECONDS = 60.0  # how long to wait before an alert counts as missing

# Queries that may have no data here, and why. As few as can be.
MAY_BE_EMPTY: dict[tuple[str, str], str] = {}


class Load:
    """Clients that ask on and on, until stopped."""

    def __init__(self, url: str, clients: int, tokens: int) -> None:
        self.url, self.tokens = url, tokens
        self.answers: dict[int, int] = {}
        self.errors: list[str] = []
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._threads = [threading.Thread(target=self._run) for _ in range(clients)]

    def _run(self) -> None:
        with plain_http.client(self.url) as client:
            while not self._stop.is_set():
                try:
                    code = self._ask(client, next(self._numbers))
                except httpx.TransportError as error:
                    self.errors.append(repr(error))
                    self._stop.wait(0.2)
                    continue
                with self._lock:
                    self.answers[code] = self.answers.get(code, 0) + 1
                if code != 200:
                    self._stop.wait(0.1)

    def _ask(self, client: httpx.Client, number: int) -> int:
        body = {
            "prompt": PROMPTS[number % len(PROMPTS)],
            "max_tokens": self.tokens,
            "ignore_eos": True,
            "temperature": 0.6 * (number % 2),
            "seed": number,
            "stream": True,
        }
        with client.stream("POST", "/v1/completions", json=body) as response:
            for _ in response.iter_lines():
                if self._stop.is_set():
                    break
            return response.status_code

    def failures(self) -> int:
        """Answers other than 200, and connections lost, so far."""
        with self._lock:
            return sum(n for code, n in self.answers.items() if code != 200) + len(self.errors)

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a client does not end"


@contextlib.contextmanager
def load(url: str, clients: int, tokens: int) -> Iterator[Load]:
    running = Load(url, clients, tokens)
    running.start()
    try:
        yield running
    finally:
        running.stop()


@dataclass
class Scene:
    """The cluster, its load, and who watches it."""

    drafts: list[Unit]
    target: Unit
    gateway: Unit
    secret: Path
    folder: Path
    load: Load
    prometheus: Prometheus
    loaded: float = field(default_factory=time.monotonic)

    def wait_whole(self) -> None:
        """All processes are ready and know each other."""
        for unit in (*self.drafts, self.target, self.gateway):
            unit.wait_ready()
        wait_for_drafts(self.target.member, len(self.drafts))

    def wait_for(self, *names: str) -> None:
        """Each of these alerts fires, and its texts are whole."""

        def firing() -> bool:
            active = self.prometheus.active()
            return all(name in active and active[name]["state"] == "firing" for name in names)

        try:
            wait_until(firing, f"alerts {names} fire", NOTICE_SECONDS)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.prometheus.active()}") from error
        for name, alert in self.prometheus.active().items():
            for text in alert["annotations"].values():
                assert text, name
                assert "<" not in text, (name, text)
                assert "%!" not in text, (name, text)
                assert "NaN" not in text, (name, text)

    def wait_quiet(self) -> None:
        """No alert is left."""
        try:
            wait_until(lambda: not self.prometheus.active(), "alerts end", 2 * NOTICE_SECONDS)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.prometheus.active()}") from error


def hastened_rules(folder: Path) -> list[str]:
    paths = []
    for source in RULE_FILES:
        path = folder / source.name
        hasten(source, path, WINDOWS, "1s")
        text = path.read_text()
        if source.name == "alerts.yaml":
            assert text.count(RDMA_WIRES) == 1
        path.write_text(text.replace(RDMA_WIRES, OUR_WIRE))
        paths.append(str(path))
    return paths


def scrape_config(units: list[Unit], folder: Path) -> dict[str, Any]:
    return {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s", "scrape_timeout": "1s"},
        "rule_files": hastened_rules(folder),
        "scrape_configs": [
            {
                "job_name": role,
                "static_configs": [
                    {
                        "targets": [unit.admin for unit in units if unit.role == role],
                        "labels": {"namespace": "test"},
                    }
                ],
            }
            for role in ("gateway", "target", "draft")
        ],
    }


def cluster_units(folder: Path, secret: Path) -> tuple[list[Unit], Unit, Unit]:
    joined = f"--join_secret_file={secret}"
    draft = [f"--model={DRAFT}", "--dtype=float32", "--max_sessions=32", joined]
    drafts = [Unit("draft", f"draft{i}", draft, folder) for i in range(2)]
    target = Unit(
        "target",
        "target",
        [
            f"--model={TARGET}",
            "--dtype=float32",
            f"--drafts={','.join(unit.listen for unit in drafts)}",
            joined,
            # Draft tokens are verified whatever they gain, and only those of the draft models.
            "--speculation=always",
            "--ngram_lookup=false",
            # A machine under tests is no reason to be alarmed.
            "--max_draft_wait=2s",
            "--draft_latency_warn=5s",
            "--silence_timeout=2s",
            # So that a few dozen clients are too many.
            "--max_sequences=8",
            "--max_queue=32",
        ],
        folder,
    )
    gateway = Unit(
        "gateway",
        "gateway",
        [f"--model={TARGET}", f"--targets={target.listen}", joined, "--target_wait=1s"],
        folder,
    )
    return drafts, target, gateway


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("watch")
    secret = folder / "secret"
    secret.write_text("the secret of this cluster\n")
    drafts, target, gateway = cluster_units(folder, secret)
    units = [*drafts, target, gateway]
    with started_units(units):
        wait_for_drafts(target.member, len(drafts))
        with (
            load(f"http://{gateway.listen}", 3, 48) as clients,
            started_prometheus(scrape_config(units, folder), folder) as prometheus,
        ):
            yield Scene(drafts, target, gateway, secret, folder, clients, prometheus)


@pytest.fixture(scope="module")
def served(scene: Scene) -> Scene:
    """After the time under load."""
    time.sleep(max(0.0, scene.loaded + SECONDS - time.monotonic()))
    return scene


def has_data(samples: list[dict[str, Any]]) -> bool:
    return any(not math.isnan(float(sample["value"][1])) for sample in samples)


def test_no_request_fails_while_all_is_well(served: Scene) -> None:
    assert served.load.failures() == 0, (served.load.answers, served.load.errors)
    assert served.load.answers[200] > 3


def test_every_query_of_every_dashboard_has_data(served: Scene) -> None:
    empty = {
        (query.dashboard, query.panel): str(query)
        for query in expressions(WINDOW)
        if not has_data(served.prometheus.query(query.expr))
    }
    assert set(empty) <= set(MAY_BE_EMPTY), sorted(empty.values())


def test_panels_under_load_show_more_than_zeros(served: Scene) -> None:
    """A misspelt label value would have data too, as nothing but 0."""
    moving = {
        "specfabric-service": ["Requests", "First token (p95)", "Tokens", "Running and waiting"],
        "specfabric-speculation": ["Tokens a round", "Goodput", "Accepted, by depth", "Sessions"],
        "specfabric-fabric": ["Time of a round", "By wire", "Bytes sent", "Frames sent"],
    }
    for uid, panels in moving.items():
        for panel in panels:
            values = [
                float(sample["value"][1])
                for query in expressions(WINDOW)
                if query.dashboard == uid and query.panel == panel
                for sample in served.prometheus.query(query.expr)
            ]
            assert values, (uid, panel)
            assert max(values) > 0, (uid, panel)


def test_every_alert_is_evaluated_and_was_quiet(served: Scene) -> None:
    assert set(served.prometheus.states()) == {rule["alert"] for rule in alerts()}
    # Nothing is scraped yet when the rules are evaluated for the first time.
    since = f"{math.floor(time.monotonic() - served.loaded - FIRST_SCRAPES)}s"
    fired = served.prometheus.query(f'max_over_time(ALERTS{{alertstate="firing"}}[{since}])')
    assert not fired, fired


def test_every_recording_rule_has_a_value(served: Scene) -> None:
    for path in RULE_FILES:
        for rule in load_rules(path):
            if "record" in rule:
                assert has_data(served.prometheus.query(rule["record"])), rule["record"]


def test_the_dashboards_can_be_drawn(served: Scene, tmp_path: Path) -> None:
    folder = Path(PICTURES or tmp_path)
    script = ROOT / "scripts" / "dashboards" / "plot_dashboards.py"
    subprocess.run(
        [
            sys.executable,
            script,
            f"--prometheus=http://{served.prometheus.address}",
            f"--seconds={SECONDS}",
            f"--window={WINDOW}",
            f"--folder={folder}",
        ],
        check=True,
    )
    for path in DASHBOARDS:
        picture = (folder / f"{path.stem}.svg").read_text()
        assert "<path" in picture
        assert "SpecFabric" in picture


# Faults, from here on. Each test leaves the cluster as it found it.


def test_too_many_clients(served: Scene) -> None:
    with load(f"http://{served.gateway.listen}", 80, 200) as crowd:
        served.wait_for("SpecFabricQueueBuildup", "SpecFabricRequestsRefused")
    assert crowd.answers.get(429, 0) > 0
    served.wait_quiet()


def test_a_draft_falls_back_to_tcp(served: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    draft = served.drafts[1]
    draft.drain()
    with monkeypatch.context() as changed:
        changed.setenv("UCX_TLS", "tcp")
        draft.start()
    served.wait_whole()
    served.wait_for("SpecFabricTransportFallback")
    alert = served.prometheus.active()["SpecFabricTransportFallback"]
    assert alert["labels"]["instance"] == draft.admin
    assert alert["labels"]["wire"].startswith("tcp/")
    draft.drain()
    draft.start()
    served.wait_whole()
    served.wait_quiet()


def test_random_drafts(served: Scene, tmp_path: Path) -> None:
    random = make.make_noisy(DRAFT, tmp_path / "random", 1)
    before = [unit.arguments for unit in served.drafts]
    for unit in served.drafts:
        unit.drain()
        unit.arguments = [f"--model={random}", *unit.arguments[1:]]
        unit.start()
    served.wait_whole()
    served.wait_for("SpecFabricAcceptanceCollapse")
    for unit, arguments in zip(served.drafts, before, strict=True):
        unit.drain()
        unit.arguments = arguments
        unit.start()
    served.wait_whole()
    served.wait_quiet()


def test_a_draft_that_falls_silent(served: Scene) -> None:
    draft = served.drafts[0]
    draft.sleep()
    try:
        served.wait_for(
            "SpecFabricSilentPeers", "SpecFabricDraftPoolShort", "SpecFabricProcessDown"
        )
    finally:
        draft.wake()
    served.wait_whole()
    served.wait_quiet()


def test_peer_with_another_secret(served: Scene, tmp_path: Path) -> None:
    other = tmp_path / "secret"
    other.write_text("the secret of another cluster\n")
    arguments = [
        f"--model={TARGET}",
        f"--targets={served.target.listen}",
        f"--join_secret_file={other}",
    ]
    unauthenticated = Unit("gateway", "unauthenticated", arguments, tmp_path, listen=free_address())
    unauthenticated.start()
    try:
        served.wait_for("SpecFabricJoinRefused")
    finally:
        unauthenticated.drain()
    served.wait_quiet()


def test_all_drafts_end(served: Scene) -> None:
    failures = served.load.failures()
    for unit in served.drafts:
        unit.drain()
    served.wait_for("SpecFabricDraftPoolEmpty", "SpecFabricMetricsAbsent", "SpecFabricProcessDown")
    absent = served.prometheus.active()["SpecFabricMetricsAbsent"]
    assert absent["labels"]["role"] == "draft"
    assert absent["labels"]["severity"] == "warning"
    assert served.load.failures() == failures, "a client saw an error"
    for unit in served.drafts:
        unit.start()
    served.wait_whole()
    served.wait_quiet()


def test_the_target_dies(served: Scene) -> None:
    served.target.kill()
    served.wait_for(
        "SpecFabricMetricsAbsent",
        "SpecFabricNoTargets",
        "SpecFabricProcessDown",
        "SpecFabricErrorBudgetBurn",
    )
    absent = served.prometheus.active()["SpecFabricMetricsAbsent"]
    assert absent["labels"]["role"] == "target"
    assert absent["labels"]["severity"] == "critical"
    served.target.start()
    served.wait_whole()
    served.wait_quiet()
