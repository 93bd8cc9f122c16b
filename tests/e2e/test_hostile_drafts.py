"""Draft workers that answer nonsense cost speed and never text; what is refused is counted."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import distribution
import make
from cluster import DRAFT, TARGET, Cluster, start_cluster
from exposition import value_of
from hostile import cluster_with
from prompts import PROMPTS


@dataclass(frozen=True)
class Outcome:
    """Whether trees of a way are verified, and the target's counter that tells of what it did."""

    verified: bool
    counter: str = "specfabric_drafted_tokens_total"
    labels: tuple[tuple[str, str], ...] = ()

    def check(self, cluster: Cluster, verification: str) -> None:
        admin = cluster.targets[0].admin
        trees = value_of(admin, "specfabric_verifications_total", verification=verification)
        assert (trees > 0) == self.verified
        assert value_of(admin, self.counter, **dict(self.labels)) > 0


def refused(reason: str) -> Outcome:
    return Outcome(False, "specfabric_refused_drafts_total", (("reason", reason),))


VERIFIED = Outcome(True)
# What is no message at all ends the connection.
MALFORMED = Outcome(False, "specfabric_fabric_malformed_messages_total")
MISSED = Outcome(False, "specfabric_draft_misses_total")

# The ways of hostile_draft.cc, where draft probabilities are not read.
WAYS = {
    "uniform": VERIFIED,
    "ids_out_of_range": refused("invalid"),
    "negative_ids": MALFORMED,
    "too_many_nodes": refused("invalid"),
    "far_too_many_nodes": MALFORMED,
    "bad_parents": MALFORMED,
    "other_draw": VERIFIED,
    "other_tag": refused("sampling"),
    "other_round": MISSED,
    "other_incarnation": MISSED,
    "twice": VERIFIED,
    "silent": MISSED,
    "slow": MISSED,
    "certain": VERIFIED,
    "lie": VERIFIED,
}
# Where verification methods read q. What is verified of these is exact: their tokens are drawn
# from what
# they send, and one that its weights exclude has no chance.
DRAFT_PROBS_WAYS = {
    **{way: outcome for way, outcome in WAYS.items() if way != "lie"},
    "other_draw": refused("sampling"),
    "no_tensor": MISSED,
    "no_rows": refused("invalid"),
    "short_tensor": refused("invalid"),
    "large_tensor": refused("invalid"),
    "nan_draft_probs": refused("invalid"),
    "negative_draft_probs": refused("invalid"),
    "zero_draft_probs": refused("invalid"),
    "excluded_draft_token": VERIFIED,
    "two_tensors": VERIFIED,
    "late_tensor": MISSED,
}
# Tensors of the demo models are large enough to be received in slots.
SLOT_WAYS = {way: outcome for way, outcome in DRAFT_PROBS_WAYS.items() if way not in WAYS}
SLOT_WAYS |= {"uniform": VERIFIED, "large_tensor": refused("no_slot")}

SETTINGS: list[dict[str, Any]] = [{"temperature": 0}, {"temperature": 0.9, "seed": 77}]
CHOSEN = PROMPTS[::12]
TOKENS = 40
VOCABULARY = 4096  # of the demo models


def drafted(cluster: Cluster) -> float:
    return value_of(cluster.targets[0].admin, "specfabric_drafted_tokens_total")


def texts(cluster: Cluster) -> list[str]:
    def ask(case: tuple[dict[str, Any], str]) -> str:
        settings, prompt = case
        answer = cluster.complete(prompt=prompt, max_tokens=TOKENS, ignore_eos=True, **settings)
        return answer["choices"][0]["text"]

    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(ask, [(s, p) for s in SETTINGS for p in CHOSEN]))


@pytest.fixture(scope="module")
def plain_texts(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    with start_cluster(tmp_path_factory.mktemp("plain") / "up.log", drafts=0) as cluster:
        found = texts(cluster)
        assert drafted(cluster) == 0
    assert len(set(found)) == len(found)
    return found


@pytest.mark.parametrize("draft", ["good", "random"])
def test_text_is_the_same_with_models_as_drafts(
    draft: str, plain_texts: list[str], tmp_path: Path
) -> None:
    model = DRAFT if draft == "good" else make.make_noisy(DRAFT, tmp_path / "random", 1)
    with start_cluster(tmp_path / "up.log", TARGET, model, drafts=1) as cluster:
        assert texts(cluster) == plain_texts
        assert drafted(cluster) > 0


@pytest.mark.parametrize("way", WAYS)
def test_text_is_the_same_with_hostile_drafts(
    way: str, plain_texts: list[str], tmp_path: Path
) -> None:
    with cluster_with(way, TARGET, VOCABULARY, tmp_path) as cluster:
        assert texts(cluster) == plain_texts
        WAYS[way].check(cluster, "coupled")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    make.logging.disable_progress_bar()
    return make.make("llama-tiny-vocabulary", tmp_path_factory.mktemp("tiny") / "target")


# What is refused is so before any verification method sees it.
DISTRIBUTION_CASES = [
    (way, verification)
    for way, outcome in DRAFT_PROBS_WAYS.items()
    for verification in (["rejection", "traversal"] if outcome.verified else ["rejection"])
]


@contextlib.contextmanager
def tiny_cluster(way: str, verification: str, model: Path, folder: Path) -> Iterator[Cluster]:
    flags = [f"--verification={verification}", f"--max_sequences={distribution.SEQUENCES}"]
    with cluster_with(way, model, 8, folder, *flags) as cluster:
        yield cluster


def likelihood(cluster: Cluster, model: Path, seed: int) -> float:
    prompt, tokens = [2, 5, 3], 3
    samples = distribution.sample(cluster, prompt, 2000, seed, temperature=1, max_tokens=8)
    assert samples.answers[0]["exactness"] == "distribution"
    expected = distribution.exact_distribution(distribution.load(model), prompt, tokens, {})
    return distribution.g_test(samples.tokens[:, :tokens], expected)


@pytest.mark.parametrize(("way", "verification"), DISTRIBUTION_CASES)
def test_hostile_drafts_keep_the_distribution(
    way: str, verification: str, tiny: Path, tmp_path: Path
) -> None:
    with tiny_cluster(way, verification, tiny, tmp_path) as cluster:
        assert distribution.passes(partial(likelihood, cluster, tiny), seed=1)
        DRAFT_PROBS_WAYS[way].check(cluster, verification)


@pytest.mark.parametrize("verification", ["rejection", "traversal"])
def test_a_lying_draft_changes_the_distribution(
    verification: str, tiny: Path, tmp_path: Path
) -> None:
    """As docs/exactness.md warns; and so few samples are enough to see it."""
    with tiny_cluster("lie", verification, tiny, tmp_path) as cluster:
        assert likelihood(cluster, tiny, seed=1) < 1e-6


@pytest.mark.parametrize("way", SLOT_WAYS)
def test_targets_survive_hostile_tensors(way: str, plain_texts: list[str], tmp_path: Path) -> None:
    """In slots. Greedy texts stay the same; of the others only the distribution would be."""
    with cluster_with(way, TARGET, VOCABULARY, tmp_path, "--verification=traversal") as cluster:
        found = texts(cluster)
        assert found[: len(CHOSEN)] == plain_texts[: len(CHOSEN)]
        assert all(found)
        SLOT_WAYS[way].check(cluster, "traversal")
