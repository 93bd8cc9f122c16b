"""The exact distribution of a small model's texts, samples of it over HTTP, and how well the two
agree.

A distribution is an array [vocabulary] * tokens: the probability of every text of so many tokens.
"""

from __future__ import annotations

import itertools
import math
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import regex  # type: ignore[import-untyped]
import torch
from transformers import (
    AutoModelForCausalLM,
    MinPLogitsWarper,
    PreTrainedModel,
    RepetitionPenaltyLogitsProcessor,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

import make
from cluster import Cluster

# A target sends a message for each choice and round, and closes a gateway that is 1024 of them
# behind. With so many choices under way a target, and texts of a few tokens, that cannot come to
# be.
CHOICES = 32  # of a request
SEQUENCES = 64  # choices under way, a target


def load(checkpoint: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()


def _penalised(
    logits: torch.Tensor, texts: torch.Tensor, prompt: int, settings: dict[str, Any]
) -> torch.Tensor:
    """Bias and penalties, in vLLM's order. logits: [texts, vocabulary], texts: [texts, tokens]."""
    for token, bias in settings.get("logit_bias", {}).items():
        logits[:, int(token)] += bias
    logits = RepetitionPenaltyLogitsProcessor(settings.get("repetition_penalty", 1.0))(
        texts, logits
    )
    counts = torch.zeros_like(logits)
    output = texts[:, prompt:]
    counts.scatter_add_(1, output, torch.ones_like(output, dtype=logits.dtype))
    logits = logits - settings.get("frequency_penalty", 0.0) * counts
    return logits - settings.get("presence_penalty", 0.0) * (counts > 0)


def _masked(
    logits: torch.Tensor, texts: torch.Tensor, prompt: int, settings: dict[str, Any]
) -> torch.Tensor:
    """Without the tokens that no longer text of the regular expression has.

    Tokens are make.py's letters; the expression may not match a text that is as short as these.
    """
    if "guided_regex" not in settings:
        return logits
    letters = make.letters(logits.shape[-1])
    for row, text in enumerate(texts[:, prompt:].tolist()):
        before = "".join(letters[token] or "?" for token in text)
        for token, letter in enumerate(letters):
            longer = letter and regex.fullmatch(
                settings["guided_regex"], before + letter, partial=True
            )
            if not longer:
                logits[row, token] = torch.finfo(logits.dtype).min
    return logits


def next_token_distribution(
    model: PreTrainedModel, texts: torch.Tensor, prompt: int, settings: dict[str, Any]
) -> torch.Tensor:
    """[texts, vocabulary]: what follows each text, by transformers' logits and filters."""
    with torch.no_grad():
        logits = model(texts).logits[:, -1].double()
    logits = _penalised(logits, texts, prompt, settings)
    logits = _masked(logits, texts, prompt, settings) / settings.get("temperature", 1.0)
    if "top_k" in settings:
        logits = TopKLogitsWarper(settings["top_k"])(texts, logits)
    if "top_p" in settings:
        logits = TopPLogitsWarper(settings["top_p"])(texts, logits)
    if "min_p" in settings:
        logits = MinPLogitsWarper(settings["min_p"])(texts, logits)
    return logits.softmax(-1)


def exact_distribution(
    model: PreTrainedModel, prompt: Sequence[int], tokens: int, settings: dict[str, Any]
) -> np.ndarray:
    """The distribution of the `tokens` tokens that follow `prompt`."""
    vocabulary = model.config.vocab_size
    distribution = torch.ones(1, dtype=torch.float64)
    for length in range(tokens):
        paths = list(itertools.product(range(vocabulary), repeat=length))
        texts = torch.tensor([[*prompt, *path] for path in paths])
        distribution = (
            distribution[:, None] * next_token_distribution(model, texts, len(prompt), settings)
        ).flatten()
    return distribution.reshape([vocabulary] * tokens).numpy()


def disagreement(
    target: PreTrainedModel, draft: PreTrainedModel, prompt: Sequence[int], tokens: int = 2
) -> float:
    """Total variation of their next-token distributions, the mean over `prompt` and all that may
    follow.
    """
    distances = []
    for length in range(tokens + 1):
        paths = itertools.product(range(target.config.vocab_size), repeat=length)
        texts = torch.tensor([[*prompt, *path] for path in paths])
        p, q = (next_token_distribution(model, texts, len(prompt), {}) for model in (target, draft))
        distances += ((p - q).abs().sum(-1) / 2).tolist()
    return sum(distances) / len(distances)


def make_draft(checkpoint: Path, folder: Path, prompt: Sequence[int], wanted: float) -> float:
    """Writes to `folder` a draft that disagrees with `checkpoint` by about `wanted`.

    Returns by how much it does. The target's weights with noise, the noise's share by bisection.
    """
    target = load(checkpoint)
    low, high = 0.0, 1.0
    with tempfile.TemporaryDirectory() as work:
        for step in range(12):
            share = (low + high) / 2
            draft = load(make.make_noisy(checkpoint, Path(work) / str(step), share))
            low, high = (
                (share, high) if disagreement(target, draft, prompt) < wanted else (low, share)
            )
    return disagreement(target, load(make.make_noisy(checkpoint, folder, high)), prompt)


@dataclass
class Samples:
    """What many requests were answered with."""

    tokens: np.ndarray  # [samples, tokens]
    speculation: Counter[str]  # the sums of usage.speculation
    answers: list[dict[str, Any]]  # without their choices


def sample(
    cluster: Cluster, prompt: Sequence[int] | str, count: int, seed: int, **body: Any
) -> Samples:
    """At least `count` texts, by requests whose seeds follow from `seed`."""

    def ask(request: int) -> dict[str, Any]:
        return cluster.complete(
            prompt=prompt,
            n=CHOICES,
            seed=(seed << 32) + request,
            ignore_eos=True,
            return_token_ids=True,
            **body,
        )

    with ThreadPoolExecutor(SEQUENCES // CHOICES * len(cluster.targets)) as pool:
        answers = list(pool.map(ask, range(math.ceil(count / CHOICES))))
    tokens = [choice["token_ids"] for answer in answers for choice in answer.pop("choices")]
    total: Counter[str] = Counter()
    for answer in answers:
        counts = answer["usage"]["speculation"]
        total.update({name: n for name, n in counts.items() if isinstance(n, int)})
    return Samples(np.array(tokens), total, answers)


def g_test(tokens: np.ndarray, distribution: np.ndarray, fewest: float = 5.0) -> float:
    """The probability of texts that are this far from `distribution`, or farther, if it is theirs.

    tokens: [samples, tokens], one sample of `distribution` each. Texts that are expected fewer than
    `fewest` times count as one. 0 where a text came that the distribution excludes.
    """
    counts: np.ndarray = np.zeros_like(distribution)
    np.add.at(counts, tuple(tokens.T), 1)
    if counts[distribution == 0].any():
        return 0.0
    expected: np.ndarray = distribution.ravel() * len(tokens)
    order = np.argsort(expected)
    expected, counts = expected[order], counts.ravel()[order]
    # The rare ones together, with as many others as it takes to be expected `fewest` times.
    pooled = max(
        int(np.searchsorted(expected, fewest)),
        int(np.searchsorted(np.cumsum(expected), fewest)) + 1,
    )
    expected = np.append(expected[pooled:], expected[:pooled].sum())
    counts = np.append(counts[pooled:], counts[:pooled].sum())
    seen = counts > 0
    statistic = 2 * float(np.sum(counts[seen] * np.log(counts[seen] / expected[seen])))
    return _chi_square_survival(statistic, len(expected) - 1)


def _chi_square_survival(statistic: float, freedom: int) -> float:
    half = torch.tensor([freedom / 2, max(statistic, 0.0) / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def kolmogorov_smirnov(some: np.ndarray, others: np.ndarray) -> float:
    """The probability of two samples this different, or more, if both are of one distribution.

    Values are compared by how often they occur in both together, as tokens have no order of their
    own. Kolmogorov's limit: for values that repeat it errs towards 1.
    """
    values, ranks = np.unique(np.concatenate([some, others]), return_inverse=True)
    by_count = np.argsort(np.argsort(-np.bincount(ranks)))
    a, b = by_count[ranks[: len(some)]], by_count[ranks[len(some) :]]
    cumulative = [np.cumsum(np.bincount(x, minlength=len(values))) / len(x) for x in (a, b)]
    distance = float(np.abs(cumulative[0] - cumulative[1]).max())
    scaled = distance * math.sqrt(len(a) * len(b) / (len(a) + len(b)))
    terms = (2 * (-1) ** (k - 1) * math.exp(-2 * (k * scaled) ** 2) for k in range(1, 101))
    return min(1.0, max(0.0, sum(terms))) if scaled > 0.2 else 1.0


def passes(measure: Callable[[int], float], seed: int, least: float = 0.001) -> bool:
    """Whether what `measure` finds of samples with this seed is likelier than `least`.

    One right distribution in 1 / `least` falls below. Verification methods that read q are not
    repeatable (a draft may
    be late), so that a new sample decides then: a wrong distribution fails again.
    """
    return any(measure(s) > least for s in (seed, seed + 1000))
