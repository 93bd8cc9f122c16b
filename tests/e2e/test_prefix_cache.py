"""What a target has computed for one request it does not compute again for the next."""

from __future__ import annotations

from typing import Any

from cluster import Cluster
from exposition import value_of

BLOCK = 16
ASK = {"max_tokens": 4, "temperature": 0}


def cached_tokens(answer: dict[str, Any]) -> int:
    usage = answer["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    assert 0 <= cached < usage["prompt_tokens"]
    assert cached % BLOCK == 0
    return cached


def test_cached_tokens_are_told(demo_cluster: Cluster) -> None:
    (target,) = demo_cluster.targets
    prompt = list(range(100, 100 + 3 * BLOCK + 5))
    hits = value_of(target.admin, "specfabric_prefix_cache_hits_total")
    first = demo_cluster.complete(prompt=prompt, **ASK)
    assert cached_tokens(first) == 0
    again = demo_cluster.complete(prompt=prompt, **ASK)
    assert cached_tokens(again) == 3 * BLOCK
    assert again["choices"] == first["choices"]
    *_, last = demo_cluster.stream(prompt=prompt, stream_options={"include_usage": True}, **ASK)
    assert cached_tokens(last) == 3 * BLOCK
    found = value_of(target.admin, "specfabric_prefix_cache_hits_total") - hits
    assert found == 6 * BLOCK
    assert value_of(target.admin, "vllm:prefix_cache_hits_total") == found + hits
    queries = value_of(target.admin, "vllm:prefix_cache_queries_total")
    assert queries == value_of(target.admin, "specfabric_prefix_cache_queries_total")
    assert queries >= 3 * len(prompt)
    assert value_of(target.admin, "specfabric_target_kv_blocks_cached") >= 3
    blocks = "specfabric_target_kv_blocks"
    total = value_of(target.admin, f"{blocks}_free") + value_of(target.admin, f"{blocks}_used")
    assert value_of(target.admin, "specfabric_target_kv_tokens") == total * BLOCK
    (draft, *_) = demo_cluster.drafts
    assert value_of(draft.admin, "specfabric_draft_kv_tokens") > 0


def test_tenants_do_not_share(demo_cluster: Cluster) -> None:
    body = {"model": demo_cluster.model, "prompt": list(range(200, 200 + 2 * BLOCK + 1)), **ASK}
    mine, others = {"Authorization": "Bearer one"}, {"Authorization": "Bearer two"}
    with demo_cluster.client() as client:

        def ask(headers: dict[str, str], **fields: str) -> int:
            response = client.post("/v1/completions", json=body | fields, headers=headers)
            assert response.status_code == 200, response.text
            return cached_tokens(response.json())

        assert ask(mine) == 0
        assert ask(mine) == 2 * BLOCK
        assert ask(others) == 0
        assert ask({}) == 0
        assert ask(mine, cache_salt="project") == 0
        assert ask(mine, cache_salt="project") == 2 * BLOCK
        assert ask({}, cache_salt="project") == 0


def test_chats_tell_theirs(demo_cluster: Cluster) -> None:
    body = {
        "model": demo_cluster.model,
        "messages": [{"role": "user", "content": "Tell me of every module. " * 10}],
        "max_completion_tokens": 4,
    }
    with demo_cluster.client() as client:
        counts = [
            cached_tokens(client.post("/v1/chat/completions", json=body).json()) for _ in range(2)
        ]
    assert counts[0] < counts[1]
