"""Whatever the proposal source, the text is the target's: the n-gram lookup, one draft model,
several, all at
once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import plain_http
from cluster import DRAFT, TARGET, Cluster, Member, free_address, start_cluster, started, wait_until
from exposition import value_of
from prompts import PROMPTS

SETTINGS: list[dict[str, Any]] = [{"temperature": 0.0}, {"temperature": 0.7, "seed": 4321}]
# Texts that repeat themselves, and some that do not.
REPETITIVE = [(prompt + "\n") * 3 + prompt[: len(prompt) // 2] for prompt in PROMPTS[::6]]
CHOSEN = [*REPETITIVE, *PROMPTS[::10]]
TOKENS = 60
ACCEPTED = "specfabric_drafter_accepted_tokens_total"


def tokens_of(cluster: Cluster, prompt: str, **settings: Any) -> list[int]:
    answer = cluster.complete(
        prompt=prompt, max_tokens=TOKENS, ignore_eos=True, return_token_ids=True, **settings
    )
    return answer["choices"][0]["token_ids"]


def all_tokens(cluster: Cluster, **more: Any) -> list[list[int]]:
    with ThreadPoolExecutor(8) as pool:
        return [
            tokens
            for settings in SETTINGS
            for tokens in pool.map(partial(tokens_of, cluster, **settings, **more), CHOSEN)
        ]


@pytest.fixture(scope="module")
def plain_tokens(tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    log = tmp_path_factory.mktemp("plain") / "up.log"
    with start_cluster(log, drafts=0, ngram_lookup=False) as cluster:
        tokens = all_tokens(cluster)
        assert value_of(cluster.targets[0].admin, "specfabric_accepted_tokens_total") == 0
    return tokens


@pytest.mark.parametrize("speculation", ["always", "goodput"])
@pytest.mark.parametrize("drafts", [0, 1])
def test_a_target_that_looks_up_says_the_same(
    plain_tokens: list[list[int]], drafts: int, speculation: str, tmp_path: Path
) -> None:
    with start_cluster(
        tmp_path / "up.log", drafts=drafts, ngram_lookup=True, speculation=speculation
    ) as cluster:
        assert all_tokens(cluster) == plain_tokens
        target = cluster.targets[0].admin
        accepted = value_of(target, ACCEPTED, drafter="ngram_lookup")
        drafted = value_of(
            target, "specfabric_drafter_drafted_tokens_total", drafter="ngram_lookup"
        )
        if speculation == "always":
            assert accepted > 100, "a target alone gains"
            assert (value_of(target, ACCEPTED) > accepted) == (drafts > 0)
        assert drafted >= accepted


def test_draft_probabilities_with_ngram_lookup(tmp_path: Path) -> None:
    """At temperature 0 such a request is coupled, and otherwise only its distribution is the
    same.
    """
    flags = ["--request_verification=rejection,traversal"]
    with start_cluster(tmp_path / "up.log", drafts=1, ngram_lookup=True, extra=flags) as cluster:
        target = cluster.targets[0].admin
        for verification in ("rejection", "traversal"):
            before = value_of(target, ACCEPTED, drafter="ngram_lookup")
            for prompt in REPETITIVE:
                tokens_of(cluster, prompt, temperature=0.3, seed=9, verification=verification)
            assert value_of(target, ACCEPTED, drafter="ngram_lookup") > before


@contextlib.contextmanager
def two_models(choice: str, folder: Path) -> Iterator[Cluster]:
    """A target with two drafters: the demo draft, and the target's own model."""
    at, target_at, admin = free_address(), free_address(), free_address()
    drafts = [free_address(), free_address()]
    with contextlib.ExitStack() as stack:
        for model, address in zip((DRAFT, TARGET), drafts, strict=True):
            arguments = ["draft", f"--model={model}", "--dtype=float32", f"--listen={address}"]
            stack.enter_context(started(folder / f"{model.name}.log", arguments))
        arguments = [
            "target",
            f"--model={TARGET}",
            "--dtype=float32",
            f"--listen={target_at}",
            f"--admin_listen={admin}",
            f"--drafts={','.join(drafts)}",
            "--speculation=always",
            "--max_draft_wait=2s",
        ]
        hooks = f"drafter_choice={choice}"
        target = stack.enter_context(started(folder / "target-itself.log", arguments, hooks))
        arguments = ["gateway", f"--model={TARGET}", f"--listen={at}", f"--targets={target_at}"]
        gateway = stack.enter_context(started(folder / "gateway.log", arguments))
        cluster = Cluster(
            gateway,
            Member(gateway.pid, at, at),
            [Member(target.pid, target_at, admin)],
            [],
            "target",
        )
        wait_until(
            lambda: plain_http.status_of(f"{cluster.url}/readyz") == 200, "the gateway is ready"
        )
        wait_until(
            lambda: value_of(admin, "specfabric_target_draft_workers") == 2, "both drafts are there"
        )
        yield cluster


@pytest.mark.parametrize("choice", ["hedge", "ucb1", "thompson", "fixed"])
def test_several_models_draft_for_one_target(
    plain_tokens: list[list[int]], choice: str, tmp_path: Path
) -> None:
    with two_models(choice, tmp_path) as cluster:
        assert all_tokens(cluster) == plain_tokens
        target = cluster.targets[0].admin
        by_model = {
            model.name: value_of(target, ACCEPTED, drafter=model.name) for model in (DRAFT, TARGET)
        }
        shares = [
            value_of(target, "specfabric_drafter_share", drafter=model.name)
            for model in (DRAFT, TARGET)
        ]
        scored = value_of(target, "specfabric_scored_rounds_total")
    assert sum(shares) == pytest.approx(1)
    assert (scored > 0) == (choice == "hedge")
    if choice != "fixed":
        assert all(accepted > 0 for accepted in by_model.values()), by_model
