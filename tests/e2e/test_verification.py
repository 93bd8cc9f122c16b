"""Verification methods as clients and operators see them. That they keep the distribution is
test_distribution's to show.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from cluster import Cluster, start_cluster, wait_until
from exposition import value_of
from prompts import PROMPTS

VERIFICATION_METHODS = ("coupled", "rejection", "traversal", "typical")
EXACTNESS = {
    "coupled": "token",
    "rejection": "distribution",
    "traversal": "distribution",
    "typical": "none",
}
USES_DRAFT_PROBS = ("rejection", "traversal")


@pytest.fixture(scope="module", params=[1, 2], ids=["one rank", "two ranks"])
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """The demo models; requests may ask for any verification method."""
    log = tmp_path_factory.mktemp("verification_methods") / "up.log"
    extra = [f"--request_verification={','.join(VERIFICATION_METHODS)}", "--max_draft_wait=1s"]
    with start_cluster(log, tensor_parallel=request.param, extra=extra) as cluster:
        yield cluster


def ask(cluster: Cluster, verification: str, **settings: Any) -> dict[str, Any]:
    body: dict[str, Any] = {
        "prompt": PROMPTS[0],
        "max_tokens": 60,
        "temperature": 0.8,
        "seed": 7,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    return cluster.complete(**body | {"verification": verification} | settings)


@pytest.mark.parametrize("verification", VERIFICATION_METHODS)
def test_answers_and_metrics_say_which_one_it_was(cluster: Cluster, verification: str) -> None:
    (target,) = cluster.targets

    def count(name: str, **labels: str) -> float:
        return value_of(target.admin, f"specfabric_{name}_total", **labels)

    verified = count("verifications", verification=verification)
    tensors = count("draft_probs_received")
    answer = ask(cluster, verification)
    assert answer["exactness"] == EXACTNESS[verification]
    said = answer["usage"]["speculation"]
    assert said["verification"] == verification
    assert said["accepted"] > 0
    positions = said["accepted_per_position"]
    assert sum(positions) == said["accepted"]
    assert positions == sorted(positions, reverse=True)
    assert positions[0] <= said["rounds"]
    wait_until(
        lambda: count("verifications", verification=verification) > verified, "it was counted"
    )
    if verification in USES_DRAFT_PROBS:
        wait_until(lambda: count("draft_probs_received") > tensors, "draft probabilities have come")
    else:
        assert count("draft_probs_received") == tensors


def test_distributions_are_not_copied_on_their_way(cluster: Cluster) -> None:
    """The rows of a tree are too large for UCX's own buffers: they go from slot to slot."""
    (target,) = cluster.targets

    def counts() -> tuple[float, float]:
        return (
            value_of(target.admin, "specfabric_draft_probs_received_bytes_total"),
            value_of(target.admin, "specfabric_fabric_bytes_copied_total"),
        )

    ask(cluster, "traversal")  # a connection's first tensor may be copied
    received_bytes, copied = counts()
    ask(cluster, "traversal", max_tokens=200)
    more_received, more_copied = counts()
    assert more_received - received_bytes > 2_000_000
    # Small messages, and the trees of the last rounds, which are cut to what may still be said.
    assert more_copied - copied < (more_received - received_bytes) / 10


@pytest.mark.parametrize("verification", VERIFICATION_METHODS)
def test_greedy_text_is_the_same(cluster: Cluster, verification: str) -> None:
    answer = ask(cluster, verification, temperature=0)
    plain = ask(cluster, "coupled", temperature=0)
    assert answer["choices"][0]["token_ids"] == plain["choices"][0]["token_ids"]
    assert answer["exactness"] == "token"
    assert answer["usage"]["speculation"]["verification"] == "coupled"


@pytest.mark.parametrize("verification", VERIFICATION_METHODS)
def test_log_probabilities_are_the_targets(cluster: Cluster, verification: str) -> None:
    """Of every token emitted: what scoring the whole text as a prompt says of it."""
    answer = ask(cluster, verification, logprobs=2, max_tokens=30, top_p=0.95)
    choice = answer["choices"][0]
    said = choice["logprobs"]["token_logprobs"]
    assert len(said) == 30
    scored = cluster.complete(
        prompt=answer["choices"][0]["prompt_token_ids"] + choice["token_ids"],
        max_tokens=0,
        echo=True,
        logprobs=0,
    )
    expected = scored["choices"][0]["logprobs"]["token_logprobs"][-30:]
    assert said == pytest.approx(expected, abs=1e-4)
    assert all(math.isfinite(value) for value in said)


@pytest.mark.parametrize("verification", USES_DRAFT_PROBS)
def test_a_stop_inside_an_accepted_path(cluster: Cluster, verification: str) -> None:
    """The same seed gives another text each time, so any of its tokens may be the stop."""
    for seed in range(10):
        settings: dict[str, Any] = {"seed": seed, "ignore_eos": False, "max_tokens": 80}
        stop_id = 11 + seed
        ids = ask(cluster, verification, stop_token_ids=[stop_id], **settings)["choices"][0]
        assert stop_id not in ids["token_ids"][:-1]
        assert (ids["finish_reason"] == "stop") or len(ids["token_ids"]) == 80
        text = ask(cluster, verification, stop=["e"], **settings)["choices"][0]
        assert "e" not in text["text"]


@pytest.mark.parametrize("verification", USES_DRAFT_PROBS)
def test_rules_hold_along_every_branch(cluster: Cluster, verification: str) -> None:
    allowed = range(100, 1000, 2)
    raised = {"logit_bias": {str(token): 100 for token in allowed}}
    ids = ask(cluster, verification, **raised)["choices"][0]["token_ids"]
    assert set(ids) <= set(allowed)
    once = ask(
        cluster, verification, frequency_penalty=2, presence_penalty=2, repetition_penalty=1e6
    )
    ids = once["choices"][0]["token_ids"]
    prompt = once["choices"][0]["prompt_token_ids"]
    assert len(set(ids)) == len(ids)
    assert not set(ids) & set(prompt)


def test_a_verification_method_that_is_not_served_is_refused(demo_cluster: Cluster) -> None:
    with demo_cluster.client() as client:

        def refusal(verification: object) -> str:
            body = {"prompt": "a", "verification": verification}
            response: httpx.Response = client.post("/v1/completions", json=body)
            assert response.status_code == 400, response.text
            return response.json()["error"]["message"]

        assert "traversal is not served; allowed are coupled" in refusal("traversal")
        assert "verification is 'x': allowed are coupled, rejection" in refusal("x")
        assert "verification" in refusal(3)
        assert client.post(
            "/v1/completions", json={"prompt": "a", "verification": "coupled"}
        ).is_success


@pytest.mark.parametrize("verification", USES_DRAFT_PROBS)
def test_a_stream_goes_on_when_drafts_and_its_target_die(verification: str, tmp_path: Path) -> None:
    """Another text than without the deaths, but whole, and each token once."""
    body: dict[str, Any] = {
        "prompt": PROMPTS[2],
        "max_tokens": 300,
        "temperature": 0.8,
        "seed": 5,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    extra = [f"--verification={verification}"]
    with start_cluster(tmp_path / "up.log", targets=2, drafts=2, extra=extra) as cluster:
        text, tokens, exactness = "", [], ""
        for count, event in enumerate(cluster.stream(**body)):
            for choice in event["choices"]:
                text += choice["text"]
                tokens += choice["token_ids"]
            exactness = event.get("exactness", exactness)
            if count == 8:
                cluster.kill(cluster.drafts[0])
            if count == 16:
                (busy,) = (
                    target
                    for target in cluster.targets
                    if value_of(target.admin, "specfabric_target_running_sequences") > 0
                )
                cluster.kill(busy)
        assert len(tokens) == 300
        assert exactness == "distribution"
        assert text == cluster.text_of(tokens)


def test_what_goes_wrong_on_the_way_costs_no_token(tmp_path: Path) -> None:
    """Replies and distributions are lost, doubled, overtaken and falsified."""
    faults = "drop=.05,duplicate=.05,reorder=.2,corrupt=.02,delay=3ms:.2,seed=5"
    extra = ["--verification=traversal"]
    hooks = f"faults={faults}"
    with start_cluster(tmp_path / "up.log", extra=extra, test_hooks=hooks) as cluster:
        (target,) = cluster.targets
        for seed in range(4):
            answer = cluster.complete(
                prompt=PROMPTS[seed],
                max_tokens=100,
                temperature=0.8,
                seed=seed,
                ignore_eos=True,
                return_token_ids=True,
            )
            assert len(answer["choices"][0]["token_ids"]) == 100
        assert value_of(target.admin, "specfabric_draft_probs_received_total") > 0
        for draft in cluster.drafts:
            assert value_of(draft.admin, "specfabric_fabric_injected_faults_total") > 0


def test_auto_chooses_for_requests_that_sample_and_name_none(tmp_path: Path) -> None:
    """A repeated request may get another method: only the distribution is promised."""
    log, extra = tmp_path / "up.log", ["--verification=auto", "--max_draft_wait=1s"]
    with start_cluster(log, extra=extra) as cluster:
        body: dict[str, Any] = {"prompt": PROMPTS[0], "max_tokens": 24, "ignore_eos": True}
        answers = [cluster.complete(**body, temperature=1, seed=seed) for seed in range(12)]
        used = {answer["usage"]["speculation"]["verification"] for answer in answers}
        assert used == {"coupled", "traversal"}
        assert {answer["exactness"] for answer in answers} == {"distribution"}
        # At temperature 0 all verify the arg-max; and what is asked for by name is given.
        greedy = cluster.complete(**body, temperature=0)
        named = cluster.complete(**body, temperature=1, seed=1, verification="coupled")
        for answer in (greedy, named):
            assert answer["usage"]["speculation"]["verification"] == "coupled"
            assert answer["exactness"] == "token"
