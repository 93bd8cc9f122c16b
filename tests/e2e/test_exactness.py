"""What is generated does not depend on drafts, ranks, or what dies on the way."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cluster import DRAFTERS, Cluster, start_cluster, wait_until
from exposition import value_of
from prompts import PROMPTS

SETTINGS: list[dict[str, Any]] = [{"temperature": 0.0}, {"temperature": 0.8, "seed": 1234}]
TOKENS = 40


def answer_to(cluster: Cluster, prompt: str, **settings: Any) -> tuple[list[int], dict]:
    """The generated tokens and what speculation did for them."""
    answer = cluster.complete(
        prompt=prompt, max_tokens=TOKENS, ignore_eos=True, return_token_ids=True, **settings
    )
    return answer["choices"][0]["token_ids"], answer["usage"]["speculation"]


def all_answers(cluster: Cluster) -> tuple[list[list[int]], int]:
    """Tokens of every prompt under every setting, and how many drafted tokens were accepted."""
    with ThreadPoolExecutor(8) as pool:
        answers = [
            answer
            for settings in SETTINGS
            for answer in pool.map(partial(answer_to, cluster, **settings), PROMPTS)
        ]
    return [tokens for tokens, _ in answers], sum(counts["accepted"] for _, counts in answers)


@pytest.fixture(scope="module")
def plain_answers(tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    """Tokens without drafts on one rank: what every other arrangement must repeat."""
    log = tmp_path_factory.mktemp("plain") / "up.log"
    with start_cluster(log, drafts=0) as cluster:
        tokens, accepted = all_answers(cluster)
    assert accepted == 0
    assert all(len(t) == TOKENS for t in tokens)
    greedy, sampled = tokens[: len(PROMPTS)], tokens[len(PROMPTS) :]
    assert greedy != sampled
    assert len({tuple(t) for t in greedy}) > len(PROMPTS) / 2, "the prompts hardly matter"
    return tokens


def differing(some: list[list[int]], others: list[list[int]]) -> list[int]:
    """Which answers are not the same in both."""
    return [i for i, (a, b) in enumerate(zip(some, others, strict=True)) if a != b]


@pytest.mark.parametrize(
    ("ranks", "drafts", "kind"),
    [(1, 2, "draft"), (2, 0, "draft"), *((2, 2, kind) for kind in DRAFTERS)],
)
def test_tokens_are_the_same_in_every_arrangement(
    plain_answers: list[list[int]], ranks: int, drafts: int, kind: str, tmp_path: Path
) -> None:
    with start_cluster(
        tmp_path / "up.log", draft_model=DRAFTERS[kind], tensor_parallel=ranks, drafts=drafts
    ) as cluster:
        tokens, accepted = all_answers(cluster)
    assert differing(tokens, plain_answers) == []
    # Nothing would be tested if no draft had ever been accepted.
    assert (accepted > 0) == (drafts > 0)


@pytest.mark.parametrize("kind", DRAFTERS)
def test_tokens_survive_what_drafts_lose_double_delay_and_falsify(
    plain_answers: list[list[int]], kind: str, tmp_path: Path
) -> None:
    faults = "drop=.05,duplicate=.05,reorder=.2,corrupt=.02,delay=3ms:.2,seed=5"
    with start_cluster(
        tmp_path / "up.log", draft_model=DRAFTERS[kind], test_hooks=f"faults={faults}"
    ) as cluster:
        tokens, accepted = all_answers(cluster)
        for draft in cluster.drafts:
            assert value_of(draft.admin, "specfabric_fabric_injected_faults_total") > 0
        for other in (cluster.gateway, *cluster.targets):
            assert value_of(other.admin, "specfabric_fabric_injected_faults_total") == 0
    assert differing(tokens, plain_answers) == []
    assert accepted > 0


def test_tokens_survive_a_long_way_to_the_drafts(
    plain_answers: list[list[int]], tmp_path: Path
) -> None:
    with start_cluster(tmp_path / "up.log", extra=["--simulated_rtt=20ms"]) as cluster:
        tokens, accepted = all_answers(cluster)
        (target,) = cluster.targets
        name = "specfabric_round_span_seconds"
        trips = value_of(target.admin, f"{name}_count", span="transfer")
        seconds = value_of(target.admin, f"{name}_sum", span="transfer")
    assert differing(tokens, plain_answers) == []
    assert accepted > 0
    # What is held back for so long cannot come much sooner, however fast the machine.
    assert seconds > 0.015 * trips > 0


@pytest.mark.parametrize(
    ("killed", "kind"), [(1, "draft"), (2, "draft"), (1, "eagle3"), (1, "dspark")]
)
def test_text_survives_the_death_of_draft_workers(killed: int, kind: str, tmp_path: Path) -> None:
    body: dict[str, Any] = {
        "prompt": PROMPTS[0],
        "max_tokens": 300,
        "temperature": 0.8,
        "seed": 99,
        "ignore_eos": True,
    }
    with start_cluster(tmp_path / "up.log", draft_model=DRAFTERS[kind], drafts=2) as cluster:
        whole = cluster.complete(**body)["choices"][0]["text"]
        pieces = []
        for count, event in enumerate(cluster.stream(**body)):
            pieces += [choice["text"] for choice in event["choices"]]
            if count == 10:
                for draft in cluster.drafts[:killed]:
                    cluster.kill(draft)
        assert "".join(pieces) == whole
        assert len(pieces) > 20, "the kill came after the end"
        # And the cluster goes on serving.
        assert cluster.complete(**body)["choices"][0]["text"] == whole


@pytest.mark.parametrize("kind", DRAFTERS)
def test_text_survives_the_death_of_a_target(kind: str, tmp_path: Path) -> None:
    """The gateway hands the sequence, with the tokens so far, to the other target."""
    body: dict[str, Any] = {
        "prompt": PROMPTS[2],
        "max_tokens": 400,
        "temperature": 0.8,
        "seed": 5,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    with start_cluster(
        tmp_path / "up.log", draft_model=DRAFTERS[kind], targets=2, drafts=1
    ) as cluster:
        whole = cluster.complete(**body)["choices"][0]
        text, tokens = "", []
        for count, event in enumerate(cluster.stream(**body)):
            for choice in event["choices"]:
                text += choice["text"]
                tokens += choice["token_ids"]
            if count == 10:
                (busy,) = (
                    target
                    for target in cluster.targets
                    if value_of(target.admin, "specfabric_target_running_sequences") > 0
                )
                cluster.kill(busy)
        assert tokens == whole["token_ids"]
        assert text == whole["text"]
        # A busy machine may keep the other target silent for so long that it is left as well; no
        # other reason resubmits.
        log = cluster.process.log_text()
        lost = len(re.findall(r"gateway\[\d+\] link peer=\S+ down: (?!closed by this)", log))
        resubmissions = value_of(cluster.gateway.admin, "specfabric_gateway_resubmissions_total")
        assert 1 <= resubmissions <= lost, log
        assert cluster.complete(**body)["choices"][0]["text"] == whole["text"]


def test_a_cancelled_stream_leaves_the_target(demo_cluster: Cluster) -> None:
    target = demo_cluster.targets[0]
    before = value_of(target.admin, "specfabric_cancelled_total")
    stream = demo_cluster.stream(prompt=PROMPTS[1], max_tokens=1900, ignore_eos=True)
    for _ in range(3):
        next(stream)
    assert value_of(target.admin, "specfabric_target_running_sequences") == 1
    stream.close()
    wait_until(
        lambda: value_of(target.admin, "specfabric_target_running_sequences") == 0,
        "the target runs nothing",
    )
    assert value_of(target.admin, "specfabric_cancelled_total") == before + 1
