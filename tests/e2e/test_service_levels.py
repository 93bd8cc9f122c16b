"""What becomes of requests that are too many, take too long, or that nobody waits for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from cluster import Cluster, start_cluster, wait_until
from exposition import value_of

RUNNING, WAITING = 2, 2
LONG: dict[str, Any] = {
    "prompt": "import ",
    "max_tokens": 2000,
    "ignore_eos": True,
    "temperature": 1,
}


@pytest.fixture(scope="module")
def small_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One target that takes few sequences."""
    log = tmp_path_factory.mktemp("small") / "up.log"
    extra = [f"--max_sequences={RUNNING}", f"--max_queue={WAITING}"]
    with start_cluster(log, drafts=0, extra=extra) as cluster:
        yield cluster


def gauge(cluster: Cluster, name: str) -> float:
    (target,) = cluster.targets
    return value_of(target.admin, f"specfabric_target_{name}")


def wait_until_free(cluster: Cluster) -> None:
    def free() -> bool:
        names = ("running_sequences", "waiting_sequences", "kv_blocks_used")
        return all(gauge(cluster, name) == 0 for name in names)

    wait_until(free, "nothing is left of what was cancelled")


@contextlib.contextmanager
def busy(cluster: Cluster) -> Iterator[None]:
    """As many streams as the target runs at once, whose clients leave at the end."""
    streams = [cluster.stream(**LONG) for _ in range(RUNNING)]
    try:
        for stream in streams:
            next(stream)
        yield
    finally:
        for stream in streams:
            stream.close()


def post(cluster: Cluster, **body: Any) -> httpx.Response:
    with cluster.client() as client:
        return client.post("/v1/completions", json={"model": cluster.model, **body})


def test_a_client_that_leaves_frees_what_it_had(small_cluster: Cluster) -> None:
    (target,) = small_cluster.targets
    cancelled = value_of(target.admin, "specfabric_cancelled_total")
    output = value_of(target.admin, "specfabric_tokens_total", kind="output")
    with busy(small_cluster):
        assert gauge(small_cluster, "kv_blocks_used") > 0
    wait_until_free(small_cluster)
    assert value_of(target.admin, "specfabric_cancelled_total") == cancelled + RUNNING
    said = value_of(target.admin, "specfabric_tokens_total", kind="output") - output
    assert said < RUNNING * LONG["max_tokens"]


def test_a_full_queue_says_when_to_come_back(small_cluster: Cluster) -> None:
    with busy(small_cluster):
        refused = post(small_cluster, **LONG, n=WAITING + 1)
    assert refused.status_code == 429, refused.text
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.json()["error"]["code"] == "overloaded"
    wait_until_free(small_cluster)


def test_a_request_that_takes_too_long_frees_what_it_had(small_cluster: Cluster) -> None:
    late = post(small_cluster, **LONG, timeout=0.2)
    assert late.status_code == 504, late.text
    assert late.json()["error"]["code"] == "timeout"
    wait_until_free(small_cluster)
    *_, last = small_cluster.stream(**LONG, timeout=0.3)
    assert last["error"]["code"] == "timeout"
    wait_until_free(small_cluster)
    assert post(small_cluster, prompt="import ", max_tokens=2).status_code == 200
