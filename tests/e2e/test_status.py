"""`specfabric status` against a running cluster, and the metrics it is made from."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from cluster import (
    Cluster,
    Member,
    free_address,
    run,
    start_cluster,
    wait_for_drafts,
    wait_until,
)


def addresses(members: list[Member]) -> str:
    return ",".join(member.admin for member in members)


def status(cluster: Cluster, *extra: str) -> dict[str, Any]:
    done = run(
        [
            "status",
            f"--gateways={cluster.gateway.admin}",
            f"--targets={addresses(cluster.targets)}",
            f"--drafts={addresses(cluster.drafts)}",
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
        assert [group["coupling"] for group in view["groups"]] == ["coupled", "coupled"]
        assert {group["listen"] for group in view["groups"]} == {t.listen for t in cluster.targets}
        assert {draft["listen"] for draft in view["drafts"]} == {d.listen for d in cluster.drafts}
        # Every target has a route to every draft, by the address that both know it by.
        assert {(route["target"], route["draft"]) for route in view["routes"]} == {
            (target.listen, draft.listen) for target in cluster.targets for draft in cluster.drafts
        }
        assert all(route["in_service"] for route in view["routes"])
        assert any(route["latency_ms"] > 0 for route in view["routes"])
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
    line = re.search(r"specfabric status (--gateways=\S+ --targets=\S+ --drafts=\S+)", log)
    assert line is not None, "up logs the command that shows its cluster"


def test_as_a_table(tmp_path: Path) -> None:
    with start_cluster(tmp_path / "log", drafts=1) as cluster:
        done = run(
            [
                "status",
                f"--targets={addresses(cluster.targets)},{free_address()}",
                f"--drafts={addresses(cluster.drafts)}",
            ]
        )
    assert done.returncode == 0, done.stderr
    headings = [line.split()[0] for line in done.stdout.splitlines() if line[:1].isupper()]
    assert headings == ["GROUPS", "DRAFTS", "ROUTES", "UNREACHABLE"]
    assert "Connection refused" in done.stdout


def test_nobody_answers() -> None:
    done = run(["status", f"--targets={free_address()}", "--json"])
    assert done.returncode == 1
    assert len(json.loads(done.stdout)["unreachable"]) == 1
    assert done.stderr.strip() == "specfabric status: no process has answered"


def test_bad_flags() -> None:
    for arguments, said in [
        ([], "give the admin addresses"),
        (["--targets=nowhere"], "--targets: address 'nowhere': must be host:port"),
        (["--model=x"], "--model: no such flag"),
    ]:
        done = run(["status", *arguments])
        assert done.returncode == 2
        assert said in done.stderr


def test_a_slow_draft_is_warned_of_once(tmp_path: Path) -> None:
    extra = ["--draft_latency_warn=10us", "--draft_router=latency"]
    with start_cluster(tmp_path / "log", drafts=2, extra=extra) as cluster:
        for _ in range(4):
            cluster.complete(prompt="import os\n", max_tokens=16, temperature=0)
        routes = [route for route in status(cluster)["routes"] if route["latency_ms"] > 0]
        assert routes
        assert all(route["slow"] for route in routes)
    log = (tmp_path / "log").read_text()
    assert log.count("is slow: its trees take") == len(routes)


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
            served = [route for route in status(cluster)["routes"] if route["latency_ms"] > 0]
            if router == "round_robin":
                assert len(served) == 3
    assert len(texts) == 1
