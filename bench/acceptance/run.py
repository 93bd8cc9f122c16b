#!/usr/bin/env python3
"""How many draft tokens are accepted a round, over HTTP, on the demo models; prints Markdown.

First table: by verification method, temperature and tree, each with its standard error, until that
is below one per cent (--max_waves ends it earlier). Beside chains stands what block verification
(Sun et al., arXiv 2403.10444) accepts of the same draft, which is the most that a lossless
verifier without memory of earlier rounds can: transformers plays its rounds from the same prompts,
and each counts with the expectation over its coins. `traversal` on a chain is block verification
and has to come to the same. The bound after it holds with memory too: the sum over depths of
E_Q[min(1, P / Q)], P and Q the probabilities of the draft tokens down to there.

Second table: by width of the tree and requests at once, as FlashSpec and SpecInfer check: what is
accepted must not depend on the batch.

    scripts/build && "$(scripts/setup --print-venv)/bin/python" bench/acceptance/run.py
"""

from __future__ import annotations

import argparse
import itertools
import math
import operator
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.utils import logging

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))

from cluster import DRAFT, TARGET, Cluster, start_cluster  # noqa: E402
from exposition import value_of  # noqa: E402
from prompts import PROMPTS  # noqa: E402

CHAIN = "1,1,1,1"
TREES = [CHAIN, "2,2,1,1"]
BEST = "best:16"
TEMPERATURES = [0.0, 0.5, 1.0]
WIDTHS = [1, 2, 3, 4, 5]
BATCHES = [1, 4, 16]
ENOUGH = 0.01  # standard error over mean


@dataclass
class Mean:
    """Accepted draft tokens over rounds. Texts of different seeds are independent, the prompts
    given.
    """

    accepted: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    rounds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def add(self, prompt: str, accepted: float, rounds: float) -> None:
        self.accepted[prompt].append(accepted)
        self.rounds[prompt].append(rounds)

    @property
    def total(self) -> float:
        return sum(map(sum, self.rounds.values()))

    @property
    def value(self) -> float:
        return sum(map(sum, self.accepted.values())) / self.total

    @property
    def error(self) -> float:
        """The standard error of a ratio of sums, by prompt; each has two texts at least."""
        squares = 0.0
        for prompt, rounds in self.rounds.items():
            pairs = zip(self.accepted[prompt], rounds, strict=True)
            residuals = [a - self.value * r for a, r in pairs]
            squares += len(rounds) * statistics.variance(residuals)
        return math.sqrt(squares) / self.total

    def __str__(self) -> str:
        once = all(len(rounds) == 1 for rounds in self.rounds.values())
        return f"{self.value:.3f}" if once else f"{self.value:.3f} ± {self.error:.3f}"


def flags_for(tree: str, verification_methods: Sequence[str]) -> list[str]:
    draft_probs_methods = [c for c in verification_methods if c != "coupled"]
    flags = [f"--tree={tree}", "--max_draft_wait=1s"]
    if draft_probs_methods and not tree.startswith("best"):
        flags += [
            f"--request_verification={','.join(draft_probs_methods)}",
            f"--sampled_tree={tree}",
        ]
    return flags


def drafted_share(cluster: Cluster, before: tuple[float, float]) -> float:
    """Of the rounds since `before`, those that had a draft."""
    drafts, rounds = (a - b for a, b in zip(rounds_of(cluster), before, strict=True))
    return drafts / rounds


def rounds_of(cluster: Cluster) -> tuple[float, float]:
    """Rounds with a draft, and all of them."""
    (target,) = cluster.targets
    drafts = value_of(target.admin, "vllm:spec_decode_num_drafts_total")
    return drafts, value_of(target.admin, "specfabric_rounds_total")


def measure(
    cluster: Cluster, body: dict[str, Any], tokens: int, batch: int, max_waves: int
) -> Mean:
    """Waves of all prompts, each with seeds of its own, until the mean is known well enough."""
    mean = Mean()
    before = rounds_of(cluster)

    def ask(case: tuple[int, str]) -> dict[str, int]:
        seed, prompt = case
        answer = cluster.complete(
            prompt=prompt, seed=seed, max_tokens=tokens, ignore_eos=True, **body
        )
        return answer["usage"]["speculation"]

    with ThreadPoolExecutor(batch) as pool:
        for wave in range(max_waves):
            seeds = itertools.count(1000 * wave)
            answers = pool.map(ask, zip(seeds, PROMPTS, strict=False))
            for prompt, counts in zip(PROMPTS, answers, strict=True):
                mean.add(prompt, counts["accepted"], counts["rounds"])
            # Greedy texts do not depend on the seed.
            if body["temperature"] == 0 or (wave > 0 and mean.error < ENOUGH * mean.value):
                break
    # Those at a text's end, where no draft token is of use, and those whose draft was late.
    share = drafted_share(cluster, before)
    for rounds in mean.rounds.values():
        rounds[:] = [share * n for n in rounds]
    return mean


def distribution_of(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    if temperature == 0:
        return torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).double()
    return (logits.double() / temperature).softmax(-1)


def draw(distribution: torch.Tensor) -> int:
    return int(torch.multinomial(distribution, 1))


class Reader:
    """A model that goes along with a text, and back."""

    def __init__(self, checkpoint: Path, temperature: float) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
        self.temperature = temperature
        self.tokens: list[int] = []
        self.cache = DynamicCache()

    def distributions(self, text: list[int], count: int) -> torch.Tensor:
        """[count, vocabulary]: of the tokens after the last `count` prefixes of `text`."""
        common = 0
        while common < len(text) - count and text[: common + 1] == self.tokens[: common + 1]:
            common += 1
        if common < len(self.tokens):
            self.cache.crop(common - len(self.tokens))  # negative: how many to remove
        logits = self.model(torch.tensor([text[common:]]), past_key_values=self.cache).logits
        self.tokens = list(text)
        return distribution_of(logits[0, -count:], self.temperature)


@dataclass
class Rounds:
    """Of one text: how many rounds, and what is accepted in all of them."""

    rounds: int = 0
    best: float = 0.0  # by block verification, in expectation
    bound: float = 0.0  # by any verifier, in expectation


@torch.inference_mode()
def play(target: Reader, draft: Reader, prompt: list[int], tokens: int) -> Rounds:
    """Writes `tokens` tokens by rounds of a chain and block verification."""
    played = Rounds()
    text = [*prompt, draw(target.distributions(prompt, 1)[0])]
    while (left := len(prompt) + tokens - len(text)) > 1:
        depth = min(CHAIN.count("1"), left - 1)
        draft_tokens: list[int] = []
        q = []
        for _ in range(depth):
            q.append(draft.distributions(text + draft_tokens, 1)[0])
            draft_tokens.append(draw(q[-1]))
        p = target.distributions(text + draft_tokens, depth + 1)
        ratios = [float(p[i, x] / q[i][x]) for i, x in enumerate(draft_tokens)]
        kept = list(itertools.accumulate(ratios, lambda pi, r: min(1.0, pi * r), initial=1.0))
        played.rounds += 1
        played.best += sum(kept[1:])
        played.bound += sum(min(1.0, ratio) for ratio in itertools.accumulate(ratios, operator.mul))
        # The longest prefix whose coin falls well; after it, what the target has in excess.
        coins = torch.rand(depth, dtype=torch.float64).tolist()
        accepted, distribution = 0, torch.zeros(0)
        for i in range(depth + 1):
            excess = (kept[i] * p[i] - q[i]).clamp(min=0) if i < depth else p[i]
            mass = float(excess.sum())
            if i == 0 or coins[i - 1] < (
                kept[i] if i == depth else mass / max(mass + 1 - kept[i], 1e-300)
            ):
                accepted, distribution = i, excess if mass > 0 else p[i]
        text += [*draft_tokens[:accepted], draw(distribution)]
    return played


def optimum(temperature: float, tokens: int, waves: int) -> tuple[Mean, Mean]:
    """What block verification accepts of a chain a round, and the bound on what any could."""
    target, draft = (Reader(checkpoint, temperature) for checkpoint in (TARGET, DRAFT))
    tokenizer = Tokenizer.from_file(str(TARGET / "tokenizer.json"))
    best, bound = Mean(), Mean()
    for prompt in PROMPTS * (waves if temperature > 0 else 1):
        played = play(target, draft, tokenizer.encode(prompt).ids, tokens)
        best.add(prompt, played.best, played.rounds)
        bound.add(prompt, played.bound, played.rounds)
    return best, bound


def best_of(tree: str, temperature: float, args: argparse.Namespace) -> tuple[Any, Any]:
    """The columns that are about chains."""
    return optimum(temperature, args.tokens, args.played) if tree == CHAIN else ("", "")


def verification_table(args: argparse.Namespace, folder: Path) -> None:
    columns = ["tree", "temperature", *args.verification_methods, "block verification", "bound"]
    print("| " + " | ".join(columns) + " |")
    print("|---" * len(columns) + "|")
    for tree in args.trees:
        flags = flags_for(tree, args.verification_methods)
        with start_cluster(folder / "up.log", drafts=1, extra=flags) as cluster:
            for temperature in TEMPERATURES:
                row = [tree, f"{temperature:g}"]
                for verification in args.verification_methods:
                    # At temperature 0 all of them are the same.
                    served = verification == "coupled" or (
                        temperature > 0 and not tree.startswith("best")
                    )
                    body = {"temperature": temperature} | named(verification)
                    row.append(
                        str(measure(cluster, body, args.tokens, args.batch, args.max_waves))
                        if served
                        else ""
                    )
                row += [str(mean) for mean in best_of(tree, temperature, args)]
                print("| " + " | ".join(row) + " |", flush=True)


def named(verification: str) -> dict[str, str]:
    return {} if verification == "coupled" else {"verification": verification}


def width_table(args: argparse.Namespace, folder: Path) -> None:
    print("\n| tree | " + " | ".join(f"{batch} at once" for batch in BATCHES) + " |")
    print("|---|" + "---|" * len(BATCHES))
    for width in WIDTHS:
        tree = f"{width},1,1,1"
        with start_cluster(
            folder / "up.log", drafts=1, extra=flags_for(tree, ["coupled"])
        ) as cluster:
            body = {"temperature": 1.0}
            row = [
                str(measure(cluster, body, args.tokens, batch, args.max_waves)) for batch in BATCHES
            ]
        print(f"| {tree} | " + " | ".join(row) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument(
        "--verification_methods",
        nargs="+",
        default=["coupled", "rejection", "traversal"],
        metavar="METHOD",
    )
    parser.add_argument("--trees", nargs="+", default=[*TREES, BEST], metavar="TREE")
    parser.add_argument("--tokens", type=int, default=200, help="of each text")
    parser.add_argument("--batch", type=int, default=8, help="requests at once, first table")
    parser.add_argument("--max_waves", type=int, default=40, help="texts of a prompt, at most")
    parser.add_argument("--played", type=int, default=2, help="the same, by block verification")
    parser.add_argument("--tables", nargs="+", default=["verification", "width"])
    args = parser.parse_args()
    logging.disable_progress_bar()
    torch.manual_seed(1)
    torch.set_num_threads(1)  # the cluster needs the others
    with tempfile.TemporaryDirectory() as folder:
        if "verification" in args.tables:
            verification_table(args, Path(folder))
        if "width" in args.tables:
            width_table(args, Path(folder))


if __name__ == "__main__":
    main()
