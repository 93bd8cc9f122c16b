"""The short set: every role, and each way to lose one, in about a minute.

`scripts/test --fast` runs it on the release build; the stages asan and tsan run it on the binaries
of the sanitizers, where it is all that runs of the end-to-end tests:

    SPECFABRIC_BINARY=build-tsan/specfabric pytest -m smoke tests/e2e
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cluster import TARGET, Cluster, start_cluster, wait_for_drafts
from hostile import cluster_with
from prompts import PROMPTS
from test_group import start_group
from test_hostile_drafts import DRAFT_PROBS_WAYS, VOCABULARY, WAYS
from test_membership import model_of, streams_of, units_of, wait_until_serving
from units import started_units

pytestmark = pytest.mark.smoke

TOKENS = 32
REQUESTS: list[dict[str, Any]] = [
    {
        "prompt": prompt,
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "return_token_ids": True,
        **sampling,
    }
    for prompt in PROMPTS[::20]
    for sampling in ({"temperature": 0}, {"temperature": 0.8, "seed": 3})
]


def token_ids(cluster: Cluster) -> list[list[int]]:
    """Of every request, all at once."""

    def ask(body: dict[str, Any]) -> list[int]:
        return cluster.complete(**body)["choices"][0]["token_ids"]

    with ThreadPoolExecutor(len(REQUESTS)) as pool:
        return list(pool.map(ask, REQUESTS))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    """What the target says without a draft."""
    with start_cluster(tmp_path_factory.mktemp("plain") / "up.log", drafts=0) as cluster:
        return token_ids(cluster)


def test_streams_with_drafts(plain: list[list[int]], tmp_path: Path) -> None:
    # Under a sanitizer a draft takes longer than a round would wait for it.
    patient = ["--max_draft_wait=10s"]
    with start_cluster(tmp_path / "up.log", drafts=1, extra=patient) as cluster:
        streams = streams_of(cluster.url, cluster.model, REQUESTS)
        for stream in streams:
            stream.finish()
        assert [stream.ids for stream in streams] == plain
        answer = cluster.complete(**REQUESTS[0])
        assert answer["usage"]["speculation"]["accepted"] > 0


def test_two_ranks(plain: list[list[int]], tmp_path: Path) -> None:
    with start_cluster(tmp_path / "up.log", drafts=1, tensor_parallel=2) as cluster:
        assert token_ids(cluster) == plain


def test_a_rank_process(plain: list[list[int]], tmp_path: Path) -> None:
    with start_group(tmp_path) as group:
        assert token_ids(group.cluster) == plain


def test_a_killed_draft(tmp_path: Path) -> None:
    """Streams go on with the other draft, and then without any."""
    bodies = [{**body, "max_tokens": 200} for body in REQUESTS]
    with start_cluster(tmp_path / "up.log", drafts=2) as cluster:
        alone = [cluster.complete(**body)["choices"][0]["token_ids"] for body in bodies]
        streams = streams_of(cluster.url, cluster.model, bodies)
        for draft in cluster.drafts:
            cluster.kill(draft)
        for stream in streams:
            stream.finish()
        assert [stream.ids for stream in streams] == alone
        wait_for_drafts(cluster.targets[0], 0)


def test_a_drained_draft_and_target(tmp_path: Path) -> None:
    """Each ends with status 0; the target once its streams have ended, whole."""
    draft, target, gateway = units_of(tmp_path, drafts="", targets="", extra=[])
    bodies = [{**body, "max_tokens": 200} for body in REQUESTS[:4]]
    with started_units([draft, target, gateway]):
        wait_until_serving(gateway)
        wait_for_drafts(target.member, 1)
        streams = streams_of(f"http://{gateway.listen}", model_of(gateway), bodies)
        draft.drain()
        target.drain()
        for stream in streams:
            stream.finish()
            assert len(stream.ids) == 200


@pytest.mark.parametrize("way", ["uniform", "ids_out_of_range", "bad_parents"])
def test_a_hostile_draft(way: str, plain: list[list[int]], tmp_path: Path) -> None:
    with cluster_with(way, TARGET, VOCABULARY, tmp_path) as cluster:
        assert token_ids(cluster) == plain
        WAYS[way].check(cluster, "coupled")


@pytest.mark.parametrize("way", ["nan_draft_probs", "short_tensor"])
def test_a_hostile_draft_with_tensors(way: str, plain: list[list[int]], tmp_path: Path) -> None:
    """Only greedy texts are the same under this verification method."""
    flags = ["--verification=traversal"]
    with cluster_with(way, TARGET, VOCABULARY, tmp_path, *flags) as cluster:
        assert token_ids(cluster)[::2] == plain[::2]
        DRAFT_PROBS_WAYS[way].check(cluster, "traversal")
