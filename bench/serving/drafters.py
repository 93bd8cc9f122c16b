#!/usr/bin/env python3
"""The demo target's drafters side by side: how much of their trees is accepted, and how soon.

Clusters of one target stay up side by side, each with one draft worker of another kind, and one
without drafts. All answer the same held-out text, one after the other, one request at a time, in an
order that rotates from repetition to repetition. Printed for each are medians: tokens a second
against those of the cluster without drafts from the same repetition, draft tokens accepted a round,
the worker's time from request to reply, and its passes a reply.

Then how a drafter that reads hidden states recovers from a cold start: each prompt is asked twice,
the second time from the target's prefix cache, whose states nobody has; printed are the tokens
accepted a round by how many rounds came before.

    python=$(scripts/setup --print-venv)/bin/python
    scripts/build && scripts/make_bench_pair.py
    $python bench/serving/drafters.py --model models/bench
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT), str(ROOT / "tests" / "e2e"), str(ROOT / "scripts")]

from cluster import DRAFTERS, TARGET, Cluster, start_cluster  # noqa: E402
from exposition import value_of  # noqa: E402
from train_demo_models import read_corpus  # noqa: E402

PLAIN = "plain"
# Bounds of rounds that the recovery is averaged over.
ROUNDS = (0, 1, 2, 4, 8, 16, 32)


@dataclass(frozen=True)
class Sample:
    kind: str
    repetition: int
    tokens_per_second: float
    accepted_per_round: float
    reply_ms: float
    passes_per_reply: float


def prompts_of(count: int, characters: int) -> list[str]:
    """Beginnings of functions, inside files that no drafter was trained on."""
    _, held_out = read_corpus()
    starts = [
        text[max(0, at - characters) : at]
        for text in held_out
        for at in (text.find("\n    def ", characters), text.rfind("\n    def "))
        if at > characters
    ]
    return starts[:: max(1, len(starts) // count)][:count]


def counters(cluster: Cluster) -> dict[str, float]:
    names = ("draft_seconds_sum", "draft_seconds_count", "draft_passes_total")
    return {
        name: sum(value_of(draft.admin, f"specfabric_{name}") for draft in cluster.drafts)
        for name in names
    }


def measure(
    kind: str, repetition: int, cluster: Cluster, prompts: list[str], arguments: argparse.Namespace
) -> Sample:
    before, begin = counters(cluster), time.monotonic()
    tokens = rounds = accepted = 0
    for prompt in prompts:
        answer = cluster.complete(
            prompt=prompt,
            max_tokens=arguments.max_tokens,
            temperature=arguments.temperature,
            seed=repetition,
            ignore_eos=True,
        )
        usage = answer["usage"]
        tokens += usage["completion_tokens"]
        rounds += usage["speculation"]["rounds"]
        accepted += usage["speculation"]["accepted"]
    seconds = time.monotonic() - begin
    grown = {name: value - before[name] for name, value in counters(cluster).items()}
    replies = max(1.0, grown["draft_seconds_count"])
    return Sample(
        kind,
        repetition,
        tokens / seconds,
        accepted / max(1, rounds),
        1e3 * grown["draft_seconds_sum"] / replies,
        grown["draft_passes_total"] / replies,
    )


def tokens_by_round(cluster: Cluster, prompt: str, arguments: argparse.Namespace) -> list[int]:
    """The accepted draft tokens of each round; each event of a lone stream is one."""
    return [
        len(event["choices"][0]["token_ids"]) - 1
        for event in cluster.stream(
            prompt=prompt,
            max_tokens=arguments.max_tokens,
            temperature=arguments.temperature,
            seed=1,
            ignore_eos=True,
            return_token_ids=True,
        )
        if event["choices"] and event["choices"][0]["token_ids"]
    ]


def print_recovery(
    kind: str, cluster: Cluster, prompts: list[str], arguments: argparse.Namespace
) -> None:
    warm, cold = (
        [tokens_by_round(cluster, prompt, arguments) for prompt in prompts] for _ in range(2)
    )
    print(f"\n{kind}: draft tokens accepted a round, by the rounds before")
    print(f"{'rounds':>10} {'warm':>6} {'cold':>6}")
    for first, last in zip(ROUNDS, (*ROUNDS[1:], 10**6), strict=True):
        row = [
            [count for counts in start for count in counts[first + 1 : last + 1]]
            for start in (warm, cold)
        ]
        if all(row):
            name = f"{first}+" if last == 10**6 else f"{first} to {last - 1}"
            print(f"{name:>10} {mean(row[0]):6.2f} {mean(row[1]):6.2f}")


def print_table(samples: list[Sample]) -> None:
    plain = {s.repetition: s.tokens_per_second for s in samples if s.kind == PLAIN}
    print(f"{'drafter':>8} {'tokens/s':>9} {'/ plain':>8} {'accepted':>9} {'ms':>6} {'passes':>7}")
    for kind in dict.fromkeys(s.kind for s in samples):
        own = [s for s in samples if s.kind == kind]
        ratio = median(s.tokens_per_second / plain[s.repetition] for s in own)
        print(
            f"{kind:>8} {median(s.tokens_per_second for s in own):9.1f} {ratio:8.2f} "
            f"{median(s.accepted_per_round for s in own):9.2f} "
            f"{median(s.reply_ms for s in own):6.2f} "
            f"{median(s.passes_per_reply for s in own):7.2f}"
        )


@contextlib.contextmanager
def clusters(arguments: argparse.Namespace, folder: Path) -> Iterator[dict[str, Cluster]]:
    with contextlib.ExitStack() as stack:
        up = {}
        for kind in (PLAIN, *arguments.drafters):
            up[kind] = stack.enter_context(
                start_cluster(
                    folder / f"{kind}.log",
                    arguments.model,
                    DRAFTERS.get(kind),
                    drafts=0 if kind == PLAIN else 1,
                    dtype="bfloat16",
                    speculation=arguments.speculation,
                )
            )
        yield up


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, default=TARGET)
    parser.add_argument("--drafters", nargs="+", choices=DRAFTERS, default=list(DRAFTERS))
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--prompt_characters", type=int, default=1500)
    parser.add_argument("--max_tokens", type=int, default=96)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--speculation", choices=("goodput", "always"), default="always")
    arguments = parser.parse_args()
    prompts = prompts_of(arguments.prompts, arguments.prompt_characters)
    with tempfile.TemporaryDirectory() as folder, clusters(arguments, Path(folder)) as up:
        kinds, samples = list(up), []
        for kind in kinds:
            if kind == "eagle3":  # before the prompts are in any cache
                print_recovery(kind, up[kind], prompts, arguments)
        for repetition in range(arguments.repetitions):
            turn = repetition % len(kinds)
            for kind in kinds[turn:] + kinds[:turn]:
                samples.append(measure(kind, repetition, up[kind], prompts, arguments))
        print()
        print_table(samples)


if __name__ == "__main__":
    main()
