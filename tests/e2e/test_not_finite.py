"""A model whose logits are not finite numbers for some texts: their requests end, no others."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import make
from cluster import DRAFT, TARGET, Cluster, start_cluster, wait_until
from exposition import value_of
from prompts import PROMPTS

VERIFICATION_METHODS = ("coupled", "rejection", "traversal", "typical")
NAN, INFINITE = 4094, 4095  # tokens with such embeddings
COMMON = 200  # one that drafts find likely now and then
MESSAGE = "the model's logits are not finite at {} token {}"
LAYOUTS: dict[str, dict[str, Any]] = {
    "one rank": {},
    "two ranks": {"tensor_parallel": 2},
    "two stages": {"tensor_parallel": 1, "extra": ["--pipeline_stages=2"]},
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("models")
    values = {NAN: float("nan"), INFINITE: float("inf")}
    return (
        make.make_not_finite(TARGET, folder / "target", values),
        make.make_proposing(DRAFT, folder / "draft", NAN, COMMON),
    )


@pytest.fixture(scope="module", params=LAYOUTS)
def cluster(
    request: pytest.FixtureRequest,
    models: tuple[Path, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Cluster]:
    layout = dict(LAYOUTS[request.param])
    extra = [f"--request_verification={','.join(VERIFICATION_METHODS)}", *layout.pop("extra", [])]
    log = tmp_path_factory.mktemp("cluster") / "up.log"
    with start_cluster(log, *models, extra=extra, **layout) as cluster:
        yield cluster


@dataclass
class Bad:
    """A request that ends with an error."""

    body: dict[str, Any]
    where: str = "output"
    token: int = 1


TEXT = [300, 301, 302, 303]
BAD = {
    "greedy": Bad({"prompt": [*TEXT, NAN], "temperature": 0}),
    "sampled": Bad({"prompt": [NAN, *TEXT]}),
    "infinite": Bad({"prompt": [*TEXT, INFINITE]}),
    "filtered": Bad({"prompt": [*TEXT, NAN], "top_k": 5, "top_p": 0.9}),
    "long": Bad({"prompt": [NAN, *TEXT * 200]}),  # of several chunks
    "penalties": Bad({"prompt": [*TEXT, NAN], "presence_penalty": 1}),
    "log-probabilities": Bad({"prompt": [*TEXT, NAN], "logprobs": 3}),
    "several": Bad({"prompt": [*TEXT, NAN], "n": 2}),
    "stream": Bad({"prompt": [*TEXT, NAN], "stream": True}),
    "scored": Bad(
        {"prompt": [*TEXT, NAN, *TEXT], "echo": True, "logprobs": 2, "max_tokens": 0}, "prompt", 6
    ),
    "echoed": Bad({"prompt": [*TEXT, NAN, *TEXT], "echo": True, "logprobs": 2}, "prompt", 6),
    # The bias has it say the token that has no embedding.
    "later": Bad(
        {"prompt": TEXT, "logit_bias": {str(NAN): 100}, "temperature": 0, "logprobs": 0}, token=2
    ),
    "begun": Bad({"prompt": TEXT, "logit_bias": {str(NAN): 100}, "stream": True}, token=2),
}


def told(cluster: Cluster, body: dict[str, Any]) -> tuple[str, float]:
    """The error that ends the request, and the seconds until then."""
    started = time.monotonic()
    with cluster.client() as client:
        answer = client.post(
            "/v1/completions", json={"model": cluster.model, "max_tokens": 20, "seed": 3, **body}
        )
    took = time.monotonic() - started
    if answer.headers["content-type"].startswith("application/json"):
        assert answer.status_code == 500, answer.text
        return answer.json()["error"]["message"], took
    assert answer.status_code == 200
    assert body["stream"]
    events = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    errors = [json.loads(event) for event in events if "error" in event]
    assert len(errors) == 1, answer.text
    return errors[0]["error"]["message"], took


def good(cluster: Cluster, index: int) -> str:
    """The text of a stream that has nothing to do with any of it."""
    sampled = {"temperature": 0.8, "seed": index} if index % 2 else {"temperature": 0}
    events = cluster.stream(
        prompt=PROMPTS[index % len(PROMPTS)], max_tokens=80, ignore_eos=True, **sampled
    )
    return "".join(event["choices"][0]["text"] for event in events if event["choices"])


@pytest.mark.parametrize("verification", VERIFICATION_METHODS)
def test_requests_end_with_an_error_and_no_others(cluster: Cluster, verification: str) -> None:
    (target,) = cluster.targets

    def ended() -> float:
        return value_of(target.admin, "specfabric_target_not_finite_total")

    def breaks() -> float:
        return sum(
            value_of(member.admin, f"specfabric_fabric_{what}_total")
            for member in cluster.members
            for what in ("connections_closed", "malformed_messages")
        )

    streams = 6
    expected = [good(cluster, index) for index in range(streams)]
    before, broken = ended(), breaks()
    unready: list[int] = []
    stop = threading.Event()

    def watch() -> None:
        with cluster.client() as client:
            while not stop.wait(0.02):
                status = client.get("/readyz").status_code
                if status != 200:
                    unready.append(status)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with ThreadPoolExecutor(streams) as pool:
            texts = [pool.submit(good, cluster, index) for index in range(streams)]
            for name, bad in BAD.items():
                message, took = told(cluster, {**bad.body, "verification": verification})
                assert MESSAGE.format(bad.where, bad.token) in message, name
                assert took < 10, name
            assert [text.result() for text in texts] == expected
    finally:
        stop.set()
        watcher.join()
    assert unready == []
    assert breaks() == broken
    wait_until(lambda: ended() >= before + 2 * len(BAD), "they were counted, each tried twice")
    assert "logits are not finite" in cluster.process.log_text()


def test_a_drafted_token_that_is_not_accepted_ends_nothing(cluster: Cluster) -> None:
    """The draft proposes it all the time: its rows, and those below it, are no numbers."""
    (target,) = cluster.targets
    before = value_of(target.admin, "specfabric_target_not_finite_total")
    for verification in VERIFICATION_METHODS:
        for temperature in (0.0, 0.8):
            answer = cluster.complete(
                prompt=PROMPTS[1],
                max_tokens=80,
                temperature=temperature,
                seed=5,
                verification=verification,
                ignore_eos=True,
            )
            assert answer["usage"]["completion_tokens"] == 80
            assert answer["usage"]["speculation"]["drafted"] > 0
    assert value_of(target.admin, "specfabric_target_not_finite_total") == before


def test_blocks_that_held_it_serve_others(models: tuple[Path, Path], tmp_path: Path) -> None:
    """So few that every request has to take those of the one before."""
    extra = ["--kv_blocks=24", "--max_context=256"]
    with start_cluster(tmp_path / "up.log", *models, extra=extra) as cluster:
        expected = [good(cluster, index) for index in range(3)]
        for _ in range(3):
            told(cluster, {"prompt": [NAN, *TEXT * 40], "max_tokens": 5})
            assert [good(cluster, index) for index in range(3)] == expected
        # Nor does a beginning that is cached end those who share it.
        answer = cluster.complete(prompt=TEXT * 12, max_tokens=4, temperature=0)
        told(cluster, {"prompt": [*TEXT * 12, NAN], "max_tokens": 4})
        assert (
            cluster.complete(prompt=TEXT * 12, max_tokens=4, temperature=0)["choices"]
            == (answer["choices"])
        )


def test_a_draft_model_that_is_broken_costs_nobody_a_token(
    models: tuple[Path, Path], tmp_path: Path
) -> None:
    """Its own logits are no numbers after a token that is fine for the target."""
    broken = make.make_not_finite(
        DRAFT, tmp_path / "draft", {token: float("nan") for token in range(300, 304)}
    )
    expected: list[str] = []
    texts: list[str] = []
    for name, draft in (("well", DRAFT), ("broken", broken)):
        extra = [f"--request_verification={','.join(VERIFICATION_METHODS)}"]
        with start_cluster(tmp_path / f"{name}.log", TARGET, draft, extra=extra) as cluster:
            found = expected if name == "well" else texts
            for verification in VERIFICATION_METHODS:
                for temperature in (0.0, 0.8):
                    answer = cluster.complete(
                        prompt=TEXT,
                        max_tokens=30,
                        temperature=temperature,
                        seed=9,
                        verification=verification,
                        ignore_eos=True,
                    )
                    if verification == "coupled" or temperature == 0:
                        found.append(answer["choices"][0]["text"])
            (target,) = cluster.targets
            assert value_of(target.admin, "specfabric_target_draft_workers") == 2
    assert texts == expected
