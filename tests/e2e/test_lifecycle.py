"""Start, readiness, metrics and the end of every role."""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import plain_http
from cluster import DRAFT, TARGET, Cluster, Process, free_address, start_cluster, wait_until
from exposition import families_of, value_of

SPANS = {"draft_wait", "draft_compute", "transfer", "plan", "forward", "verify", "commit"}


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_a_cluster_ends_cleanly(sign: signal.Signals, tmp_path: Path) -> None:
    with start_cluster(tmp_path / "up.log") as cluster:
        cluster.complete(prompt="import ", max_tokens=4)
        members = [member.pid for member in cluster.members]
        assert len(set(members)) == 4
        assert cluster.process.stop(sign) == 0, cluster.process.log_text()
    assert not re.search(r" (error|critical) \w+\[", cluster.process.log_text())


def test_a_cluster_ends_cleanly_while_it_streams(tmp_path: Path) -> None:
    with start_cluster(tmp_path / "up.log") as cluster:
        stream = cluster.stream(prompt="import ", max_tokens=1000, ignore_eos=True)
        next(stream)
        status = cluster.process.stop()
        with contextlib.suppress(httpx.HTTPError, AssertionError):
            for _ in stream:  # what was under way may still end, in one way or another
                pass
        assert status == 0, cluster.process.log_text()


def ready(admin: str) -> bool:
    return plain_http.status_of(f"http://{admin}/readyz") == 200


@contextlib.contextmanager
def role(name: str, tmp_path: Path, *arguments: str) -> Iterator[tuple[Process, str]]:
    """One process of one role, and its admin address; it must end with status 0."""
    admin = free_address()
    process = Process.start([name, f"--admin_listen={admin}", *arguments], tmp_path / f"{name}.log")
    try:
        wait_until(lambda: process.popen.poll() is not None or ready(admin), f"{name} is ready", 60)
        assert process.popen.poll() is None, process.log_text()
        yield process, admin
    except BaseException:
        with contextlib.suppress(AssertionError):
            process.stop()
        raise
    assert process.stop() == 0, process.log_text()


def test_roles_started_one_by_one(tmp_path: Path) -> None:
    """What `up` does, by hand: each role is given the addresses of those before it."""
    draft_at, target_at, gateway_at = free_address(), free_address(), free_address()
    with (
        role("draft", tmp_path, f"--model={DRAFT}", f"--listen={draft_at}", "--dtype=float32") as (
            _,
            draft_admin,
        ),
        role(
            "target",
            tmp_path,
            f"--model={TARGET}",
            f"--listen={target_at}",
            f"--drafts={draft_at}",
            "--dtype=float32",
            "--speculation=always",
        ) as (_, target_admin),
        role(
            "gateway",
            tmp_path,
            f"--model={TARGET}",
            f"--listen={gateway_at}",
            f"--targets={target_at}",
        ),
    ):
        url = f"http://{gateway_at}"
        wait_until(lambda: ready(gateway_at), "the gateway is ready")
        wait_until(
            lambda: value_of(target_admin, "specfabric_target_draft_workers") == 1,
            "the target has its draft worker",
        )
        body = {"prompt": "import ", "max_tokens": 30, "temperature": 0, "ignore_eos": True}
        model = plain_http.get(f"{url}/v1/models").json()["data"][0]["id"]
        answer = plain_http.post(f"{url}/v1/completions", json={"model": model, **body}, timeout=60)
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["speculation"]["accepted"] > 0
        assert value_of(draft_admin, "specfabric_draft_requests_total", status="ok") > 0
        assert plain_http.get(f"http://{draft_admin}/debug/sessions").status_code == 200


def test_a_process_that_has_not_loaded_answers_503_to_its_admin_pages(tmp_path: Path) -> None:
    """A leader that waits for its group."""
    admin, listen = free_address(), free_address()
    process = Process.start(
        [
            "target",
            f"--model={TARGET}",
            f"--listen={listen}",
            f"--admin_listen={admin}",
            f"--group_listen={free_address()}",
            "--tensor_parallel=2",
            "--group_processes=2",
        ],
        tmp_path / "target.log",
    )
    try:
        wait_until(lambda: plain_http.status_of(f"http://{admin}/livez") != 0, "it listens")
        pages = ("livez", "readyz", "metrics", "debug/status")
        assert {plain_http.status_of(f"http://{admin}/{page}") for page in pages} == {503}
    finally:
        status = process.stop()
    assert status == 0, process.log_text()


def test_a_gateway_without_targets_is_not_ready_and_answers_503(tmp_path: Path) -> None:
    gateway_at = free_address()
    process = Process.start(
        ["gateway", f"--model={TARGET}", f"--listen={gateway_at}", f"--targets={free_address()}"],
        tmp_path / "gateway.log",
    )

    def alive() -> bool:
        return plain_http.status_of(f"http://{gateway_at}/livez") == 200

    try:
        wait_until(alive, "the gateway is alive")
        assert not ready(gateway_at)
        response = plain_http.post(
            f"http://{gateway_at}/v1/completions", json={"prompt": "x", "max_tokens": 1}, timeout=30
        )
        assert response.status_code == 503
        assert int(response.headers["retry-after"]) > 0
        assert response.json()["error"]["message"]
    finally:
        status = process.stop()
    assert status == 0


def test_metrics_of_every_process(demo_cluster: Cluster) -> None:
    demo_cluster.complete(prompt="import ", max_tokens=20, temperature=0, ignore_eos=True)
    for member in demo_cluster.members:
        for path in ("/livez", "/readyz"):
            assert plain_http.get(f"http://{member.admin}{path}").status_code == 200
        names = [family.name for family in families_of(member.admin)]
        assert len(names) == len(set(names))
        assert value_of(member.admin, "specfabric_build_info") == 1
    (target,) = demo_cluster.targets
    spans = {
        sample.labels["span"]: sample.value
        for family in families_of(target.admin)
        for sample in family.samples
        if sample.name == "specfabric_round_span_seconds_count"
    }
    assert set(spans) == SPANS
    assert all(count > 0 for count in spans.values()), spans
    drafted = value_of(target.admin, "specfabric_drafted_tokens_total")
    assert drafted == value_of(target.admin, "vllm:spec_decode_num_draft_tokens_total")
    assert 0 < value_of(target.admin, "specfabric_accepted_tokens_total") <= drafted
