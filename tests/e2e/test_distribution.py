"""Texts have exactly the target's distribution, under every verification method, whatever a draft
proposes.

A target with eight tokens, whose distribution of whole texts can be written down; drafts that
agree with it
half of the time or as little as chance has it. By default it samples little, to be done in minutes.
The long form, an hour or so:

    SPECFABRIC_DISTRIBUTION_SAMPLES=200000 SPECFABRIC_DISTRIBUTION_SEEDS=3 scripts/test pytest
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import distribution
import make
import make_dflash
import make_drafters
import make_mtp
from cluster import Cluster, start_cluster
from exposition import value_of
from prompts import PROMPTS

SAMPLES = int(os.environ.get("SPECFABRIC_DISTRIBUTION_SAMPLES", 5_000))
SEEDS = range(1, 1 + int(os.environ.get("SPECFABRIC_DISTRIBUTION_SEEDS", 1)))
pytestmark = pytest.mark.timeout(300 + SAMPLES * len(SEEDS) // 50)

TARGETS = 6 if SAMPLES > 50_000 else 3  # more at once where there is much to sample
PROMPT = [2, 5, 3]
# Its last three tokens stood there before, and so did many others that may follow: there is always
# something to look up, and often once more after that.
REPETITIVE_PROMPT = [
    3,
    *np.random.default_rng(1).integers(3, 8, 60).tolist(),
    *PROMPT,
    4,
    6,
    *PROMPT,
]
# Of a text's tokens: the first follows from the prompt alone, the next are those that drafts
# propose.
DRAFTED = slice(1, 4)
# Drafts get no more nodes than output is left after the token that is sure.
MAX_TOKENS = {"1,1,1": 6, "2,2,1": 12}

SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {"temperature": 1},
    "top_k": {"temperature": 1, "top_k": 5},
    "top_p": {"temperature": 1, "top_p": 0.8},
    "min_p": {"temperature": 1, "min_p": 0.1},
    "penalties": {
        "temperature": 0.7,
        "presence_penalty": 0.6,
        "frequency_penalty": 0.4,
        "repetition_penalty": 1.3,
    },
    "bias": {"temperature": 1, "logit_bias": {"2": 1.5, "6": -2}},
    # No text of the target's letters ends it.
    "grammar": {"temperature": 1, "guided_regex": "([a-c][de]?|f[ab])+z"},
}


@dataclass(frozen=True)
class Arrangement:
    """A cluster: which draft, and how it draws."""

    draft: str = "half"  # or "unrelated", "pard", "eagle3", "dspark" or "mtp"
    tree: str = "2,2,1"
    draw: str = ""  # of verification methods that read q; none: the cluster serves `coupled` alone
    top_n: int = 0  # tokens of q that the draft keeps; 0: all
    ranks: int = 1
    verification: str = "coupled"  # of requests that ask for none
    ngram_lookup: bool = False
    drafts: int = 2

    def __str__(self) -> str:
        parts = [self.draft, self.tree, self.draw]
        parts += [f"top{self.top_n}"] if self.top_n else []
        parts += [f"tp{self.ranks}"] if self.ranks > 1 else []
        parts += ["ngram_lookup"] if self.ngram_lookup else []
        parts += ["alone"] if self.drafts == 0 else []
        return "-".join(part for part in parts if part)

    @property
    def prompt(self) -> list[int]:
        return REPETITIVE_PROMPT if self.ngram_lookup else PROMPT

    @property
    def flags(self) -> list[str]:
        draft_probs_flags = [
            "--request_verification=rejection,traversal",
            f"--sampled_tree={self.tree}",
            f"--sampled_draw={self.draw}",
            f"--draft_top_n={self.top_n}",
        ]
        return [
            f"--tree={self.tree}",
            f"--verification={self.verification}",
            # Replies take about as long for all, so that few are late whatever else the machine
            # does.
            "--simulated_rtt=8ms",
            "--max_draft_wait=1s",
            f"--max_sequences={distribution.SEQUENCES}",
            f"--max_sessions={TARGETS * distribution.SEQUENCES}",
            *(draft_probs_flags if self.draw else []),
        ]


COUPLED = Arrangement()
CHAIN = Arrangement("unrelated", "1,1,1")
WITHOUT = Arrangement(draw="without_replacement")
WITH = Arrangement(draw="with_replacement")
DETERMINISTIC = Arrangement(draw="deterministic")
TRUNCATED_CHAIN = Arrangement("unrelated", "1,1,1", "without_replacement", top_n=3)
TRUNCATED = Arrangement(draw="without_replacement", top_n=3)
NGRAM_LOOKUP = Arrangement(ngram_lookup=True)
NGRAM_LOOKUP_ALONE = Arrangement(draw="without_replacement", ngram_lookup=True, drafts=0)
PARD = Arrangement("pard", draw="without_replacement")
EAGLE = Arrangement("eagle3", draw="without_replacement")
DSPARK = Arrangement("dspark", draw="without_replacement")
MTP = Arrangement("mtp", draw="without_replacement")
AUTO = Arrangement(draw="without_replacement", verification="auto")
TWO_RANKS = Arrangement(draw="without_replacement", ranks=2)

# What is served by one cluster stands together.
CASES = [
    (COUPLED, "coupled", ["plain", "penalties", "grammar"]),
    (CHAIN, "coupled", ["top_p"]),
    (WITHOUT, "rejection", ["plain", "penalties", "grammar"]),
    (WITHOUT, "traversal", ["plain", "bias", "grammar"]),
    (AUTO, "auto", ["plain"]),
    (WITH, "rejection", ["min_p"]),
    (DETERMINISTIC, "rejection", ["plain"]),
    (DETERMINISTIC, "traversal", ["penalties"]),
    (TRUNCATED_CHAIN, "rejection", ["plain"]),
    (TRUNCATED_CHAIN, "traversal", ["plain"]),
    (TRUNCATED, "traversal", ["top_k"]),
    (NGRAM_LOOKUP, "coupled", ["top_p", "grammar"]),
    (NGRAM_LOOKUP_ALONE, "rejection", ["plain"]),
    (NGRAM_LOOKUP_ALONE, "traversal", ["plain"]),
    (PARD, "coupled", ["plain"]),
    (PARD, "traversal", ["plain"]),
    (EAGLE, "coupled", ["plain"]),
    (EAGLE, "rejection", ["plain"]),
    (EAGLE, "traversal", ["top_p"]),
    (DSPARK, "coupled", ["plain"]),
    (DSPARK, "rejection", ["top_p"]),
    (DSPARK, "traversal", ["plain"]),
    (MTP, "coupled", ["plain"]),
    (MTP, "traversal", ["plain"]),
    (TWO_RANKS, "rejection", ["plain"]),
    (TWO_RANKS, "traversal", ["top_p", "grammar"]),
]
FLAT_CASES = [
    (a, verification, setting) for a, verification, settings in CASES for setting in settings
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the target and its drafts."""
    make.logging.disable_progress_bar()
    folder = tmp_path_factory.mktemp("models")
    target = make.make("llama-tiny-vocabulary", folder / "target")
    assert 0.45 < distribution.make_draft(target, folder / "half", PROMPT, 0.5) < 0.55
    make_drafters.make_drafter("tiny-vocabulary", folder / "eagle3")
    make_dflash.make_drafter("dspark-tiny-vocabulary", folder / "dspark")
    shutil.move(make_mtp.make_mtp("tiny-vocabulary", folder / "of_mtp").drafter, folder / "mtp")
    shutil.copytree(folder / "half", folder / "pard")
    config = json.loads((folder / "half" / "config.json").read_text())
    (folder / "pard" / "config.json").write_text(json.dumps(config | {"pard_token": 7}))
    unrelated = make.make_noisy(target, folder / "unrelated", 1.0)
    assert (
        distribution.disagreement(distribution.load(target), distribution.load(unrelated), PROMPT)
        > 0.5
    )
    return folder


class Clusters:
    """One running cluster at a time: the one that was asked for last."""

    def __init__(self, models: Path, folder: Path, stack: contextlib.ExitStack) -> None:
        self.models, self.folder, self.stack = models, folder, stack
        self.arrangement: Arrangement | None = None

    def get(self, arrangement: Arrangement) -> Cluster:
        if arrangement != self.arrangement:
            self.stack.close()
            self.arrangement = None
            self.cluster = self.stack.enter_context(
                start_cluster(
                    self.folder / f"{arrangement}.log",
                    self.models / "target",
                    self.models / arrangement.draft,
                    tensor_parallel=arrangement.ranks,
                    targets=TARGETS,
                    drafts=arrangement.drafts,
                    ngram_lookup=arrangement.ngram_lookup,
                    extra=arrangement.flags,
                )
            )
            self.arrangement = arrangement
        return self.cluster


@pytest.fixture(scope="module")
def clusters(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    with contextlib.ExitStack() as stack:
        yield Clusters(models, tmp_path_factory.mktemp("clusters"), stack)


def proposed_distribution(
    models: Path, settings: dict[str, Any], prompt: list[int] = PROMPT
) -> np.ndarray:
    whole = distribution.exact_distribution(
        distribution.load(models / "target"), prompt, DRAFTED.stop, settings
    )
    return whole.sum(axis=tuple(range(DRAFTED.start)))


def sampled(
    cluster: Cluster, arrangement: Arrangement, verification: str, setting: str, seed: int
) -> distribution.Samples:
    body = dict(SETTINGS[setting]) | (
        {} if verification in ("coupled", "auto") else {"verification": verification}
    )
    body["max_tokens"] = MAX_TOKENS[arrangement.tree]
    return distribution.sample(cluster, arrangement.prompt, SAMPLES, seed, **body)


def ngram_lookup_accepted(cluster: Cluster) -> float:
    """Tokens that were drafted by the n-gram lookup and accepted."""
    accepted = "specfabric_drafter_accepted_tokens_total"
    return sum(
        value_of(target.admin, accepted, drafter="ngram_lookup") for target in cluster.targets
    )


def verified(cluster: Cluster, verification: str) -> float:
    """Trees, by this method."""
    name = "specfabric_verifications_total"
    return sum(value_of(t.admin, name, verification=verification) for t in cluster.targets)


EXACTNESS = {
    "coupled": "token",
    "rejection": "distribution",
    "traversal": "distribution",
    "typical": "none",
    "auto": "distribution",
}


def check_report(samples: distribution.Samples, verification: str) -> None:
    """Drafts took part, and the answers say what was done."""
    assert samples.speculation["accepted"] > len(samples.tokens) / 10
    for answer in samples.answers:
        speculation = answer["usage"]["speculation"]
        assert answer["exactness"] == EXACTNESS[verification]
        if verification != "auto":
            assert speculation["verification"] == verification
        assert sum(speculation["accepted_per_position"]) == speculation["accepted"]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("arrangement", "verification", "setting"),
    [pytest.param(a, c, s, id=f"{a}-{c}-{s}") for a, c, s in FLAT_CASES],
)
def test_texts_have_the_exact_distribution(
    clusters: Clusters, arrangement: Arrangement, verification: str, setting: str, seed: int
) -> None:
    expected = proposed_distribution(clusters.models, SETTINGS[setting], arrangement.prompt)
    cluster = clusters.get(arrangement)

    def measure(seed: int) -> float:
        before = ngram_lookup_accepted(cluster)
        samples = sampled(cluster, arrangement, verification, setting, seed)
        check_report(samples, verification)
        if verification == "auto":
            assert all(verified(cluster, m) > 0 for m in ("coupled", "traversal"))
        if arrangement.ngram_lookup:
            assert ngram_lookup_accepted(cluster) > before + len(samples.tokens) / 50
        likelihood = distribution.g_test(samples.tokens[:, DRAFTED], expected)
        print(f"seed {seed}: p = {likelihood:.4f}, {dict(samples.speculation)}")
        return likelihood

    assert distribution.passes(measure, seed)


def test_typical_acceptance_differs_from_the_distribution(clusters: Clusters) -> None:
    arrangement = Arrangement(verification="typical")
    samples = sampled(clusters.get(arrangement), arrangement, "typical", "plain", seed=1)
    check_report(samples, "typical")
    expected = proposed_distribution(clusters.models, SETTINGS["plain"])
    assert distribution.g_test(samples.tokens[:, DRAFTED], expected) < 1e-6


def test_the_g_test_tells_distributions_apart(models: Path) -> None:
    """Samples of the distribution itself pass; those of a slightly different one do not."""
    right, warmer = (proposed_distribution(models, {"temperature": t}) for t in (1, 1.1))
    generator = np.random.default_rng(1)

    def draw(of: np.ndarray) -> np.ndarray:
        cells = generator.choice(of.size, 20_000, p=of.ravel() / of.sum())
        return np.stack(np.unravel_index(cells, of.shape), axis=1)

    likelihoods = [distribution.g_test(draw(right), right) for _ in range(200)]
    assert 0.4 < np.mean(likelihoods) < 0.6
    assert distribution.g_test(draw(warmer), right) < 1e-6
    # What a distribution excludes may never come.
    few = proposed_distribution(models, {"top_k": 3})
    assert distribution.g_test(draw(right), few) == 0
    assert distribution.g_test(draw(few), few) > 0.001


@pytest.mark.parametrize("verification", ["coupled", "traversal"])
def test_speculation_passes_a_kolmogorov_smirnov_gate(verification: str, tmp_path: Path) -> None:
    """On the demo models, whose distribution is too large to write down: with drafts as without."""
    count, tokens = max(1_000, SAMPLES // 10), 6  # fewer would not tell of the change below
    found = {}
    for drafts, seed in ((0, 1), (1, 2)):
        log, extra = tmp_path / f"up{drafts}.log", [f"--verification={verification}"]
        with start_cluster(log, drafts=drafts, extra=extra) as cluster:
            found[drafts] = distribution.sample(
                cluster, PROMPTS[0], count, seed, temperature=1, max_tokens=tokens
            )
    assert found[0].speculation["accepted"] == 0
    assert found[1].speculation["accepted"] > count / 10
    for position in range(tokens):
        plain, drafted = (found[drafts].tokens[:, position] for drafts in (0, 1))
        assert distribution.kolmogorov_smirnov(plain, drafted) > 0.001 / tokens
        # And it would tell of a distribution that is a little different.
        changed = np.where(np.arange(len(drafted)) % 5 == 0, plain.max() + 1, drafted)
        assert distribution.kolmogorov_smirnov(plain, changed) < 0.001 / tokens
