#!/usr/bin/env python3
"""Drafting ahead of the outcome against drafting just in time, and against no drafts.

Clusters of the same weights stay up side by side: drafts that draft ahead by each of --policies,
drafts that only run while the target waits, and none. At every concurrency all answer the same
requests, one cluster after the other, in an order that rotates from repetition to repetition.
Printed are medians: tokens a second, the share of trees whose next root had been run, the draft's
time from request to reply (which a target that waits is exposed to), its passes a reply, and the
target's own wait for drafts a round.

    python=$(scripts/setup --print-venv)/bin/python
    scripts/build && scripts/make_bench_pair.py
    $python bench/serving/ahead.py --model models/bench
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT), str(ROOT / "tests" / "e2e")]

from bench.serving.client import Server  # noqa: E402
from bench.serving.clusters_bench import run_to_end  # noqa: E402
from bench.serving.run import add_workload, count, options_of, prompts_of  # noqa: E402
from bench.serving.sweep import Load, measure, plan  # noqa: E402
from cluster import DRAFT, Cluster, start_cluster  # noqa: E402
from exposition import families_of  # noqa: E402

JUST_IN_TIME, PLAIN = "just in time", "no drafts"


@dataclass(frozen=True)
class Counters:
    """Since the cluster's start, all its drafts and targets together."""

    trees: float = 0  # whose text went on
    hits: float = 0  # of those
    replies: float = 0
    reply_seconds: float = 0
    passes: float = 0
    rounds: float = 0
    wait_seconds: float = 0  # of targets, for drafts

    def since(self, before: Counters) -> Counters:
        return Counters(*(a - b for a, b in zip(self.values(), before.values(), strict=True)))

    def values(self) -> list[float]:
        return list(asdict(self).values())


@dataclass(frozen=True)
class Sample:
    concurrency: int
    mode: str
    tokens_per_second: float
    accepted_per_round: float
    counted: Counters


def counters(cluster: Cluster) -> Counters:
    found = dict.fromkeys(asdict(Counters()), 0.0)
    names = {
        "specfabric_draft_seconds_count": "replies",
        "specfabric_draft_seconds_sum": "reply_seconds",
        "specfabric_draft_passes_total": "passes",
        "specfabric_rounds_total": "rounds",
    }
    for member in [*cluster.drafts, *cluster.targets]:
        for family in families_of(member.admin):
            for sample in family.samples:
                if sample.name in names:
                    found[names[sample.name]] += sample.value
                elif sample.name == "specfabric_draft_ahead_outcomes_total":
                    found["trees"] += sample.value
                    found["hits"] += sample.value * (sample.labels["outcome"] == "hit")
                elif (
                    sample.name == "specfabric_round_span_seconds_sum"
                    and sample.labels["span"] == "draft_wait"
                ):
                    found["wait_seconds"] += sample.value
    return Counters(**found)


@contextlib.contextmanager
def clusters(arguments: argparse.Namespace) -> Iterator[dict[str, Cluster]]:
    hooks = {policy: f"ahead={policy}" for policy in arguments.policies}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        yield {
            mode: stack.enter_context(
                start_cluster(
                    folder / f"{mode}.log",
                    arguments.model,
                    arguments.draft_model,
                    tensor_parallel=1,
                    drafts=0 if mode == PLAIN else 1,
                    dtype=arguments.dtype,
                    speculation="goodput",
                    extra=[
                        f"--threads={arguments.threads}",
                        "--log_level=warning",
                        f"--ahead={str(mode != JUST_IN_TIME).lower()}",
                    ],
                    test_hooks=hooks.get(mode, ""),
                )
            )
            for mode in [*arguments.policies, JUST_IN_TIME, PLAIN]
        }


async def sweep(found: dict[str, Cluster], arguments: argparse.Namespace) -> list[Sample]:
    servers = {mode: Server(cluster.url, cluster.model) for mode, cluster in found.items()}
    prompts = await prompts_of(arguments, servers[PLAIN])
    options = options_of(arguments)
    modes = list(found)
    samples = []
    print(HEADER, flush=True)
    for concurrency in arguments.concurrency:
        load = Load(concurrency, None)
        for mode in modes:  # for caches and what is learned online; not counted
            await measure(
                servers[mode], plan(load, arguments.seed, prompts, arguments), load, options
            )
        for repetition in range(arguments.repeats):
            requests = plan(load, arguments.seed + 1 + repetition, prompts, arguments)
            for mode in modes[repetition % len(modes) :] + modes[: repetition % len(modes)]:
                before = counters(found[mode])
                summary = await measure(servers[mode], requests, load, options)
                samples.append(
                    Sample(
                        concurrency,
                        mode,
                        summary.output_throughput,
                        summary.accepted_per_round or 0,
                        counters(found[mode]).since(before),
                    )
                )
        for mode in modes:
            print(row([s for s in samples if s.concurrency == concurrency and s.mode == mode]))
    return samples


HEADER = (
    "| at once | | tokens/s | accepted a round | hits | draft ms a reply | passes a reply "
    "| wait ms a round |\n" + "|---" * 8 + "|"
)


def row(samples: list[Sample]) -> str:
    def middle(top: str, bottom: str, scale: float = 1.0) -> str:
        ratios = [
            scale * getattr(s.counted, top) / getattr(s.counted, bottom)
            for s in samples
            if getattr(s.counted, bottom) > 0
        ]
        return f"{median(ratios):.2f}" if ratios else ""

    cells = [
        str(samples[0].concurrency),
        samples[0].mode,
        f"{median(s.tokens_per_second for s in samples):.1f}",
        f"{median(s.accepted_per_round for s in samples):.2f}",
        middle("hits", "trees"),
        middle("reply_seconds", "replies", 1e3),
        middle("passes", "replies"),
        middle("wait_seconds", "rounds", 1e3),
    ]
    return "| " + " | ".join(cells) + " |"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=ROOT / "models" / "bench")
    parser.add_argument("--draft_model", type=Path, default=DRAFT)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=count, default=1, help="of the target")
    parser.add_argument("--policies", nargs="+", default=["likeliest", "geometric", "uniform"])
    parser.add_argument("--concurrency", type=count, nargs="+", default=[1, 4])
    parser.add_argument("--waves", type=count, default=2, help="requests over --concurrency")
    parser.add_argument("--min_requests", type=count, default=4, help="of a run")
    parser.add_argument("--repeats", type=count, default=5)
    add_workload(parser, prompt_tokens=32, output_tokens=96)
    parser.add_argument("--json", type=Path, help="also write every sample there")
    return parser.parse_args()


def bench(arguments: argparse.Namespace) -> None:
    with clusters(arguments) as found:
        samples = asyncio.run(sweep(found, arguments))
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(s) for s in samples], indent=1) + "\n")


def main() -> int:
    arguments = parse_arguments()
    return run_to_end("bench/serving/ahead", lambda: bench(arguments))


if __name__ == "__main__":
    sys.exit(main())
