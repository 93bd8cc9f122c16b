"""`specfabric status` against a running cluster, and the metrics it is made from."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from cluster import (
    START_SECONDS,
    TARGET,
    Cluster,
    Member,
    Process,
    free_address,
    is_alive,
    run,
    start_cluster,
    up_arguments,
    wait_for_drafts,
    wait_until,
)


def addresses(members: list[Member]) -> str:
    return ",".join(member.admin for member in members)


def status(cluster: Cluster, *extra: str) -> dict[str, Any]:
    done = run(
        [
            "status",
            f"--gateway_admin={cluster.gateway.admin}",
            f"--target_admin={addresses(cluster.targets)}",
            f"--draft_admin={addresses(cluster.drafts)}",
            "--json",
            *extra,
        ]
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_cluster_and_what_becomes_of_it(tmp_path: Path) -> None:
    with start_cluster(tmp_path / "log", targets=2, drafts=2) as cluster:
        for _ in range(4):
            cluster.complete(prompt="import os\n", max_tokens=24, temperature=0)
        view = status(cluster)
        assert len(view["gateways"]) == 1
        assert view["gateways"][0]["targets_up"] == 2
        assert [group["verification"] for group in view["groups"]] == ["coupled", "coupled"]
        assert {group["listen"] for group in view["groups"]} == {t.listen for t in cluster.targets}
        assert {draft["listen"] for draft in view["drafts"]} == {d.listen for d in cluster.drafts}
        # Every target has a route to every draft, by the address that both know it by.
        assert {(route["target"], route["draft"]) for route in view["routes"]} == {
            (target.listen, draft.listen) for target in cluster.targets for draft in cluster.drafts
        }
        assert all(route["in_service"] for route in view["routes"])
        assert any((route["latency_ms"] or 0) > 0 for route in view["routes"])
        assert view["unreachable"] == []

        cluster.kill(cluster.drafts[0])
        for target in cluster.targets:
            wait_for_drafts(target, 1)
        view = status(cluster)
        assert [one["admin"] for one in view["unreachable"]] == [cluster.drafts[0].admin]
        left = {cluster.drafts[1].listen}
        wait_until(
            lambda: {route["draft"] for route in status(cluster)["routes"]} == left,
            "the lost draft has no route any more",
        )
    log = (tmp_path / "log").read_text()
    line = re.search(
        r"specfabric status (--gateway_admin=\S+ --target_admin=\S+ --draft_admin=\S+)", log
    )
    assert line is not None, "up logs the command that shows its cluster"


def test_as_a_table(tmp_path: Path) -> None:
    with start_cluster(tmp_path / "log", drafts=1) as cluster:
        done = run(
            [
                "status",
                f"--target_admin={addresses(cluster.targets)},{free_address()}",
                f"--draft_admin={addresses(cluster.drafts)}",
            ]
        )
    assert done.returncode == 0, done.stderr
    headings = [line.split()[0] for line in done.stdout.splitlines() if line[:1].isupper()]
    assert headings == ["PROCESSES", "GROUPS", "DRAFTS", "ROUTES", "UNREACHABLE"]
    assert "Connection refused" in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 80


@pytest.fixture
def run_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The run directory of a user who runs nothing else."""
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    return runtime / "specfabric"


def listens(view: dict[str, Any]) -> set[str]:
    return {one["listen"] for kind in ("gateways", "groups", "drafts") for one in view[kind]}


def test_the_cluster_of_up_is_found_without_addresses(tmp_path: Path, run_directory: Path) -> None:
    with start_cluster(tmp_path / "log", targets=2, drafts=2) as cluster:
        done = run(["status", "--json"])
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        view = json.loads(done.stdout)
        assert listens(view) == {member.listen for member in cluster.members}
        assert view["unreachable"] == []
        text = run(["status"]).stdout
        assert max(len(line) for line in text.splitlines()) <= 80
        [file] = run_directory.iterdir()
        assert file.stat().st_mode & 0o777 == 0o600
        assert run_directory.stat().st_mode & 0o777 == 0o700
    assert list(run_directory.iterdir()) == []
    done = run(["status"])
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert "no `specfabric up` of this user runs on this machine" in line


def test_of_several_clusters_the_newest_is_shown(tmp_path: Path, run_directory: Path) -> None:
    with (
        start_cluster(tmp_path / "old.log", drafts=0) as old,
        start_cluster(tmp_path / "new.log", drafts=0) as new,
    ):
        done = run(["status", "--json"])
        assert listens(json.loads(done.stdout)) == {member.listen for member in new.members}
        lines = done.stderr.splitlines()
        assert lines[0] == "2 clusters run here; this is the newest:"
        assert [line.split()[1] for line in lines[1:]] == [new.url, old.url]
        assert max(len(line) for line in lines) <= 80
        choice = lines[2].split()[0]
        assert choice == f"--up_pid={old.process.pid}"
        done = run(["status", "--json", choice])
        assert done.stderr == ""
        assert listens(json.loads(done.stdout)) == {member.listen for member in old.members}
        done = run(["status", "--up-pid=1"])
        assert done.returncode == 2
        assert f"{new.process.pid}, {old.process.pid}" in done.stderr


def test_the_file_of_an_up_that_crashed_is_passed_over(tmp_path: Path, run_directory: Path) -> None:
    arguments = up_arguments(
        TARGET, None, "127.0.0.1:0", tensor_parallel=1, targets=1, drafts=0, dtype="float32"
    )
    crashed = Process.start(arguments, tmp_path / "log")
    try:
        members = json.loads(crashed.read_line(START_SECONDS))
        assert run(["status", "--json"]).returncode == 0
    finally:
        crashed.popen.kill()
        crashed.popen.wait()
    pids = [member["pid"] for kind in members.values() for member in kind]
    wait_until(lambda: not any(is_alive(pid) for pid in pids), "its children have ended too")
    assert len(list(run_directory.iterdir())) == 1
    assert run(["status"]).returncode == 2


def test_a_run_directory_that_cannot_be_used_is_no_reason_not_to_start(
    tmp_path: Path, run_directory: Path
) -> None:
    run_directory.mkdir()
    run_directory.chmod(0o777)
    with start_cluster(tmp_path / "log", drafts=0):
        assert run(["status"]).returncode == 2
    log = (tmp_path / "log").read_text()
    assert f"will not find this cluster by itself: {run_directory}" in log


def test_nobody_answers() -> None:
    done = run(["status", f"--target_admin={free_address()}", "--json"])
    assert done.returncode == 1
    assert len(json.loads(done.stdout)["unreachable"]) == 1
    assert done.stderr.strip() == "specfabric status: no process has answered"


def test_bad_flags(run_directory: Path) -> None:
    assert not run_directory.exists(), "no cluster runs"
    for arguments, said in [
        ([], "give the admin addresses"),
        (["--target_admin=nowhere"], "--target_admin: address 'nowhere': must be host:port"),
        (["--model=x"], "--model: no such flag"),
        (["--target_admin=a:1", "--up_pid=1"], "--up_pid=1 with addresses"),
    ]:
        done = run(["status", *arguments])
        assert done.returncode == 2
        assert said in done.stderr


def test_a_slow_draft_is_warned_of_once(tmp_path: Path) -> None:
    extra = ["--draft_latency_warn=10us", "--draft_router=latency"]
    with start_cluster(tmp_path / "log", drafts=2, extra=extra) as cluster:

        def slow_workers() -> int:
            cluster.complete(prompt="import os\n", max_tokens=64, temperature=0)
            return sum(bool(route["slow"]) for route in status(cluster)["routes"])

        wait_until(lambda: slow_workers() > 0, "a worker is slow")
    log = (tmp_path / "log").read_text()
    warned = re.findall(r"draft worker (\S+) \(\S+\) is slow: latency", log)
    assert warned
    assert len(warned) == len(set(warned))


def test_every_router_gives_the_same_text(tmp_path: Path) -> None:
    texts = set()
    for router in ["affinity", "round_robin", "least_loaded", "latency"]:
        extra = [f"--draft_router={router}"]
        with start_cluster(tmp_path / router, drafts=3, extra=extra) as cluster:
            answers = [
                cluster.complete(prompt=f"def f{i}(", max_tokens=24, temperature=0.8, seed=i)
                for i in range(5)
            ]
            texts.add(tuple(answer["choices"][0]["text"] for answer in answers))
            # On a loaded machine a worker's few replies may all have been too late.
            asked = [
                route
                for route in status(cluster)["routes"]
                if route["latency_ms"] is not None or route["misses"] > 0
            ]
            if router == "round_robin":
                assert len(asked) == 3
    assert len(texts) == 1
