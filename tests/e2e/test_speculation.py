"""Speculation as a request sets it, and what its answer says of it. The text is always the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from cluster import DRAFT, Cluster, start_cluster
from exposition import value_of
from prompts import PROMPTS

# Members of `speculation`; and the draft tokens that a round may have.
SETTINGS: dict[str, tuple[dict[str, Any], int]] = {
    "off": ({"enabled": False}, 0),
    "off, whatever else": ({"enabled": False, "max_tokens": 9, "drafter": DRAFT.name}, 0),
    "no tokens": ({"max_tokens": 0}, 0),
    "nobody": ({"drafter": "nobody"}, 0),
    "one token": ({"max_tokens": 1}, 1),
    "five tokens": ({"enabled": True, "max_tokens": 5}, 5),
    "n-gram lookup": ({"drafter": "ngram_lookup"}, 63),
    "draft model": ({"drafter": DRAFT.name, "max_tokens": 12}, 12),
    "method": ({"method": "coupled"}, 63),
}
SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "coupled": {"temperature": 0.3, "seed": 11},
}
DRAFT_MODEL, NGRAM_LOOKUP = DRAFT.name, "ngram_lookup"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The demo models with the n-gram lookup: both propose in every round."""
    log = tmp_path_factory.mktemp("speculation") / "up.log"
    with start_cluster(log, ngram_lookup=True, extra=["--max_draft_wait=1s"]) as cluster:
        yield cluster


def ask(cluster: Cluster, **settings: Any) -> dict[str, Any]:
    # The text repeats itself, so that the n-gram lookup finds something.
    body: dict[str, Any] = {
        "prompt": 4 * PROMPTS[3],
        "max_tokens": 48,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    return cluster.complete(**body | settings)


def drafted_by(cluster: Cluster) -> dict[str, float]:
    (target,) = cluster.targets
    name = "specfabric_drafter_drafted_tokens_total"
    return {
        drafter: value_of(target.admin, name, drafter=drafter)
        for drafter in (DRAFT_MODEL, NGRAM_LOOKUP)
    }


@pytest.mark.parametrize("sampling", SAMPLING)
def test_the_text_is_the_same_with_every_setting(cluster: Cluster, sampling: str) -> None:
    # In a text that is drawn the n-gram lookup may find nothing.
    certain = (DRAFT_MODEL, NGRAM_LOOKUP) if sampling == "greedy" else (DRAFT_MODEL,)
    before = drafted_by(cluster)
    usual = ask(cluster, **SAMPLING[sampling])
    after = drafted_by(cluster)
    assert all(after[drafter] > before[drafter] for drafter in certain), "by default all propose"
    for name, (speculation, most) in SETTINGS.items():
        before = drafted_by(cluster)
        answer = ask(cluster, **SAMPLING[sampling], speculation=speculation)
        after = drafted_by(cluster)
        assert answer["choices"] == usual["choices"], name
        assert answer["exactness"] == "token", name
        said = answer["usage"]["speculation"]
        assert said["drafted"] <= most * said["rounds"], name
        assert len(said["accepted_per_position"]) <= most, name
        drafter = speculation.get("drafter", "")
        if most == 0 or drafter in ("", *certain):
            assert (said["drafted"] > 0) == (most > 0), name
        assert after[DRAFT_MODEL] == before[DRAFT_MODEL] or drafter in ("", DRAFT_MODEL), name
        assert after[NGRAM_LOOKUP] == before[NGRAM_LOOKUP] or drafter in ("", NGRAM_LOOKUP), name


def test_a_draft_is_not_asked_where_a_request_does_without(cluster: Cluster) -> None:
    (target,) = cluster.targets

    def replies() -> float:
        return value_of(target.admin, "specfabric_draft_replies_total")

    ask(cluster, temperature=0)
    before = replies()
    for speculation in ({"enabled": False}, {"max_tokens": 0}, {"drafter": NGRAM_LOOKUP}):
        ask(cluster, temperature=0, speculation=speculation)
    # Replies that are late would show as well: one of this request comes after them.
    ask(cluster, temperature=0, max_tokens=3, speculation={"drafter": DRAFT_MODEL})
    assert 0 < replies() - before <= 3


def test_requests_beside_each_other_keep_their_own_setting(cluster: Cluster) -> None:
    """Several choices and prompts in one batch of steps, of requests with and without drafts."""
    usual = ask(cluster, temperature=0.7, seed=3, n=4)
    plain = ask(cluster, temperature=0.7, seed=3, n=4, speculation={"enabled": False})
    assert plain["choices"] == usual["choices"]
    assert plain["usage"]["speculation"]["drafted"] == 0


def check_metrics(answer: dict[str, Any]) -> dict[str, Any]:
    """vLLM's definitions, against what usage says in our own names."""
    found: dict[str, Any] = answer["metrics"]["speculative_decoding"]
    said = answer["usage"]["speculation"]
    histogram = found["acceptance_histogram"]
    assert sum(histogram) == found["num_spec_steps"] <= said["rounds"]
    assert sum(j * rounds for j, rounds in enumerate(histogram)) == said["accepted"]
    assert found["num_accepted_draft_tokens"] == said["accepted"]
    assert found["num_draft_tokens"] == said["drafted"]
    for depth, rounds in enumerate(said["accepted_per_position"], start=1):
        assert sum(histogram[depth:]) == rounds
    steps = found["num_spec_steps"]
    length = 1 + said["accepted"] / steps if steps else 1
    assert found["mean_acceptance_length"] == pytest.approx(length)
    rate = said["accepted"] / said["drafted"] if said["drafted"] else 0
    assert found["draft_acceptance_rate"] == pytest.approx(rate)
    return found


def test_metrics_under_the_names_that_tools_read(cluster: Cluster) -> None:
    drafted = check_metrics(ask(cluster, temperature=0))
    assert drafted["mean_acceptance_length"] > 1
    plain = check_metrics(ask(cluster, temperature=0, speculation={"enabled": False}))
    assert plain["acceptance_histogram"] == [0]
    assert plain["mean_acceptance_length"] == 1
    with cluster.client() as client:
        chat = {"messages": [{"role": "user", "content": "def f("}], "max_tokens": 20}
        answer = client.post("/v1/chat/completions", json=chat)
    check_metrics(answer.json())
    assert ask(cluster, n=2)["metrics"] == {"speculative_decoding": None}


def test_a_streams_metrics_are_in_its_usage_event(cluster: Cluster) -> None:
    body: dict[str, Any] = {"prompt": PROMPTS[3], "max_tokens": 30, "temperature": 0}
    *events, last = cluster.stream(**body, stream_options={"include_usage": True})
    assert all("metrics" not in event for event in events)
    whole = cluster.complete(**body)
    assert check_metrics(last)["num_accepted_draft_tokens"] > 0
    assert last["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert all("metrics" not in event for event in cluster.stream(**body))


@pytest.mark.parametrize(
    ("speculation", "param", "message"),
    [
        (True, "speculation", "'speculation' must be an object, got true"),
        (
            {"tokens": 3},
            "speculation",
            "'speculation' has the member \"tokens\"; allowed are enabled, max_tokens, method and "
            "drafter",
        ),
        (
            {"max_tokens": 64},
            "speculation.max_tokens",
            "'speculation.max_tokens' must be a whole number from 0 to 63, got 64",
        ),
        (
            {"enabled": "no"},
            "speculation.enabled",
            "'speculation.enabled' must be true or false, got \"no\"",
        ),
        (
            {"drafter": ""},
            "speculation.drafter",
            "'speculation.drafter' must be ngram_lookup or a draft model's name, one line of 1 to "
            '256 bytes, got ""',
        ),
        (
            {"method": "magic"},
            "speculation.method",
            "verification is 'magic': allowed are coupled, rejection, traversal, typical",
        ),
        (
            {"method": "rejection"},
            "speculation.method",
            "'speculation.method' is \"rejection\" and 'verification' is \"coupled\"; they are the "
            "same setting, and one is enough",
        ),
    ],
)
def test_bad_settings_are_refused_in_one_line(
    cluster: Cluster, speculation: object, param: str, message: str
) -> None:
    body: dict[str, Any] = {"prompt": "a", "speculation": speculation}
    if speculation == {"method": "rejection"}:
        body["verification"] = "coupled"
    with cluster.client() as client:
        response: httpx.Response = client.post("/v1/completions", json=body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert (error["param"], error["message"]) == (param, message)


def test_limits_hold_for_drawn_draft_tokens_too(tmp_path: Path) -> None:
    """Methods that read the draft's probabilities: a tree is cut by its shape alone."""
    extra = ["--request_verification=coupled,rejection,traversal", "--max_draft_wait=1s"]
    with start_cluster(tmp_path / "up.log", extra=extra) as cluster:
        for method in ("rejection", "traversal"):
            for most in (0, 1, 3):
                answer = ask(
                    cluster, temperature=0.8, speculation={"method": method, "max_tokens": most}
                )
                said = answer["usage"]["speculation"]
                assert said["verification"] == method
                assert said["drafted"] <= most * said["rounds"]
                assert (said["drafted"] > 0) == (most > 0)
                assert len(said["accepted_per_position"]) <= most
                assert len(answer["choices"][0]["token_ids"]) == 48
