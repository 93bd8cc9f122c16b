"""What the chart gives its containers, given to processes: arguments, probes, scripts, drain.

A test cluster's pods are fakes. Here the rendered command lines run, with nothing changed but what
stands for the cluster: addresses, and the places of the model and the join secret.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

import plain_http
from cluster import BINARY, DRAFT, TARGET, Process, free_address, free_port, wait_until
from rendered_chart import (
    CHART,
    PROFILES,
    Document,
    Stand,
    addresses_here,
    find,
    main_container,
    pod_spec,
    render,
    roles,
)

BENCH_SECONDS = 120


def run(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([BINARY, *arguments], capture_output=True, text=True, timeout=60)


@pytest.fixture(scope="module")
def secret(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("join") / "join_secret"
    file.write_text("0123456789abcdef")
    return file


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("drafter", ["model", "eagle3"])
def test_the_program_takes_the_arguments(
    name: str, drafter: str, secret: Path, tmp_path: Path
) -> None:
    """All flags are read before the model is looked for, which is then what is missing."""
    tracing = {"otlpEndpoint": "http://127.0.0.1:4318", "sample": 0.5}
    documents = render(name, {"draft": {"defaults": {"drafter": drafter}}, "tracing": tracing})
    assert {main_container(d)["name"] for d in roles(documents)} == {"gateway", "target", "draft"}
    stand = Stand(
        {
            "/etc/specfabric/join/join_secret": str(secret),
            "=/models/": f"={tmp_path}/",
            "=/target/": f"={tmp_path}/",
        }
    )
    for document in roles(documents):
        done = run(stand.in_place(main_container(document)["args"]))
        assert done.returncode == 2, done.stderr
        assert str(tmp_path) in done.stderr, done.stderr


def test_the_program_refuses_what_it_does_not_know(secret: Path, tmp_path: Path) -> None:
    """Otherwise the test above could not fail."""
    stand = Stand({"/etc/specfabric/join/join_secret": str(secret), "/models/": f"{tmp_path}/"})
    documents = render("laptop", {"target": {"flags": {"no_such_flag": 1}}})
    done = run(stand.in_place(main_container(find(documents, "StatefulSet", "-target"))["args"]))
    assert done.returncode == 2
    assert "no_such_flag" in done.stderr
    assert str(tmp_path) not in done.stderr


@dataclass
class Serving:
    """The laptop profile's roles, each a process."""

    documents: list[Document]
    processes: dict[str, Process]
    admin: dict[str, str]
    http: str

    def probe(self, role: str, which: str) -> int:
        [document] = [d for d in roles(self.documents) if main_container(d)["name"] == role]
        get = main_container(document)[f"{which}Probe"]["httpGet"]
        address = {"admin": self.admin[role], "http": self.http}[get["port"]]
        return plain_http.status_of(f"http://{address}{get['path']}")

    def is_ready(self, role: str) -> bool:
        return self.probe(role, "readiness") == 200


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory, secret: Path) -> Iterator[Serving]:
    documents = render("laptop")
    logs = tmp_path_factory.mktemp("serving")
    listen = {"target": free_address(), "draft": free_address(), "gateway": free_address()}
    admin = {role: free_address() for role in listen}
    processes: dict[str, Process] = {}
    try:
        for document in roles(documents):
            container = main_container(document)
            role = container["name"]
            stand = Stand(
                {
                    **addresses_here(container, listen, admin),
                    "/models/target": str(TARGET),
                    "/models/draft": str(DRAFT),
                    "/etc/specfabric/join/join_secret": str(secret),
                }
            )
            arguments = stand.in_place(container["args"])
            processes[role] = Process.start(arguments, logs / f"{role}.log")
        started = Serving(documents, processes, admin, listen["gateway"])
        for role in processes:
            wait_until(partial(started.is_ready, role), f"{role} is ready")
        yield started
    finally:
        # Each is ended, whatever the others do.
        statuses: dict[str, int | str] = {}
        for role, process in processes.items():
            try:
                statuses[role] = process.stop()
            except AssertionError as error:
                statuses[role] = str(error)
    assert statuses == dict.fromkeys(processes, 0)


@pytest.mark.parametrize("role", ["gateway", "target", "draft"])
@pytest.mark.parametrize("which", ["startup", "liveness", "readiness"])
def test_probes_are_answered(serving: Serving, role: str, which: str) -> None:
    assert serving.probe(role, which) == 200


def is_ready(address: str) -> bool:
    return plain_http.status_of(f"http://{address}/readyz") == 200


def test_a_group_of_several_pods_becomes_ready(secret: Path, tmp_path: Path) -> None:
    documents = render("laptop", {"target": {"tensorParallel": 2, "processes": 2}})
    join = free_address()
    leader_admin, rank_admin = free_address(), free_address()
    shared = {"/models/target": str(TARGET), "/etc/specfabric/join/join_secret": str(secret)}
    leader_stand = Stand(
        {
            "0.0.0.0:7100": free_address(),
            "0.0.0.0:7300": join,
            "0.0.0.0:9100": leader_admin,
            "dns:///fabric-specfabric-drafts:7200": "",
            **shared,
        }
    )
    rank_stand = Stand(
        {
            "0.0.0.0:9100": rank_admin,
            "fabric-specfabric-leader-0.fabric-specfabric-leaders:7300": join,
            **shared,
        }
    )
    leader_args = main_container(find(documents, "StatefulSet", "-leader"))["args"]
    rank_args = main_container(find(documents, "StatefulSet", "-rank-0"))["args"]
    # The rank first: pods come up in any order.
    rank = Process.start(rank_stand.in_place(rank_args), tmp_path / "rank.log")
    try:
        leader = Process.start(leader_stand.in_place(leader_args), tmp_path / "leader.log")
        try:
            for address in (rank_admin, leader_admin):
                wait_until(partial(is_ready, address), f"{address} is ready", 60)
        finally:
            assert leader.stop() == 0, leader.log_text()
        assert rank.popen.wait(20) == 0, rank.log_text()
    finally:
        rank.stop()


def complete(url: str, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    script = [sys.executable, str(CHART / "files" / "complete.py")]
    arguments = [f"--url={url}" if a.startswith("--url=") else a for a in arguments]
    return subprocess.run([*script, *arguments], capture_output=True, text=True, timeout=60)


def test_helm_test_asks_for_a_completion(serving: Serving) -> None:
    arguments = main_container(find(serving.documents, "Pod", "-test-completion"))["args"]
    done = complete(f"http://{serving.http}", arguments)
    assert done.returncode == 0, done.stdout
    assert isinstance(json.loads(done.stdout), str)


def test_helm_test_fails_without_an_answer(serving: Serving) -> None:
    arguments = main_container(find(serving.documents, "Pod", "-test-completion"))["args"]
    nobody = complete(f"http://{free_address()}", arguments)
    assert nobody.returncode == 1
    assert "refused" in nobody.stdout
    wrong = complete(f"http://{serving.http}", [arguments[0], "--model=another"])
    assert wrong.returncode == 1
    assert "404" in wrong.stdout


def bench(
    documents: list[Document], secret: Path, tmp_path: Path, tries: int
) -> tuple[int, str, str]:
    """The bench's two containers as processes: the client's exit status, output and errors."""
    stand = Stand(
        {
            "0.0.0.0": "127.0.0.1",
            "fabric-specfabric-test-bench": "127.0.0.1",
            "-p=7200": f"-p={free_port()}",
            "/etc/specfabric/join/join_secret": str(secret),
            "seq 30": f"seq {tries}",
        }
    )
    path = f"{BINARY.parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "UCX_TLS": "tcp"}

    def command(kind: str) -> list[str]:
        container = main_container(find(documents, kind, "-test-bench"))
        assert container["command"] == ["sh", "-c"]
        return ["sh", "-c", *stand.in_place(container["args"])]

    with (tmp_path / "server.log").open("w") as log:
        server = subprocess.Popen(
            command("Deployment"), env=environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        client = subprocess.run(
            command("Pod"), env=environment, capture_output=True, text=True, timeout=BENCH_SECONDS
        )
    finally:
        # The script and what it has started: nobody else is in its group.
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(10)
    return client.returncode, client.stdout, client.stderr


def test_the_bench_measures_between_its_two_pods(secret: Path, tmp_path: Path) -> None:
    status, out, errors = bench(render("laptop"), secret, tmp_path, 30)
    assert status == 0, errors + (tmp_path / "server.log").read_text()
    assert json.loads(out)["transport"].startswith("tcp/"), out


def test_the_bench_fails_on_tcp_where_rdma_is_required(secret: Path, tmp_path: Path) -> None:
    documents = render(
        "laptop", {"rdma": {"enabled": True, "required": True, "resourceName": "rdma/hca"}}
    )
    status, out, errors = bench(documents, secret, tmp_path, 2)
    assert status == 1, out
    assert "RDMA" in errors, errors


def test_a_draining_pod_is_taken_out_and_ends(secret: Path, tmp_path: Path) -> None:
    """Readiness turns while what runs goes on, and the pod's time suffices."""
    documents = render("laptop")
    deployment = find(documents, "Deployment", "-draft-small")
    listen, admin = free_address(), free_address()
    stand = Stand(
        {
            "0.0.0.0:7200": listen,
            "0.0.0.0:9100": admin,
            "/models/draft": str(DRAFT),
            "/etc/specfabric/join/join_secret": str(secret),
        }
    )
    process = Process.start(stand.in_place(main_container(deployment)["args"]), tmp_path / "log")
    try:
        wait_until(
            lambda: plain_http.status_of(f"http://{admin}/readyz") == 200, "the draft is ready"
        )
        process.popen.terminate()
        process.popen.wait(pod_spec(deployment)["terminationGracePeriodSeconds"])
    finally:
        assert process.stop() == 0
    assert "draining on SIGTERM" in process.log_text()
