#!/usr/bin/env python3
"""What a draft that answers nonsense costs, against no draft at all.

For each of hostile_draft.cc's --ways one cluster whose only draft is that, beside one without any;
both with the n-gram lookup in the text as --ngram_lookup says. After a warm-up, which is the time
in which the target finds out, both answer the same requests in turn. Many short runs: where the
machine's speed drifts, the two runs of a pair see the same machine, and the median of their ratios
shows the cost.

    python=$(scripts/setup --print-venv)/bin/python
    scripts/build && scripts/make_bench_pair.py
    $python bench/serving/hostile_drafts.py --model models/bench --threads 1
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT), str(ROOT / "tests" / "e2e")]

from bench.serving.client import Server  # noqa: E402
from bench.serving.clusters_bench import run_to_end  # noqa: E402
from bench.serving.run import add_workload, count, options_of, prompts_of  # noqa: E402
from bench.serving.sweep import Load, measure, plan  # noqa: E402
from cluster import start_cluster  # noqa: E402
from hostile import cluster_with  # noqa: E402

WAYS = [
    "uniform",
    "certain",
    "twice",
    "silent",
    "slow",
    "other_round",
    "other_incarnation",
    "ids_out_of_range",
    "other_tag",
    "too_many_nodes",
    "far_too_many_nodes",
    "bad_parents",
]
COLUMNS = ["draft", "at once", "tokens/s", "no draft", "of medians", "median of ratios"]


@contextlib.contextmanager
def both(way: str, arguments: argparse.Namespace) -> Iterator[list[Server]]:
    """With the hostile draft, and without any."""
    flags = [
        f"--threads={arguments.threads}",
        f"--dtype={arguments.dtype}",
        "--speculation=goodput",
        f"--ngram_lookup={str(arguments.ngram_lookup).lower()}",
        "--log_level=error",
    ]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        vocabulary = json.loads((arguments.model / "config.json").read_text())["vocab_size"]
        hostile = cluster_with(way, arguments.model, vocabulary, folder, *flags)
        plain = start_cluster(folder / "plain.log", arguments.model, drafts=0, extra=flags)
        found = [stack.enter_context(hostile), stack.enter_context(plain)]
        yield [Server(cluster.url, cluster.model) for cluster in found]


async def compare(way: str, servers: list[Server], arguments: argparse.Namespace) -> None:
    prompts = await prompts_of(arguments, servers[1])
    options = options_of(arguments)
    for concurrency in arguments.concurrency:
        load = Load(concurrency, None)
        speeds: list[list[float]] = [[], []]
        for server in servers:
            await measure(server, plan(load, arguments.seed, prompts, arguments), load, options)
        for repetition in range(arguments.repeats):
            requests = plan(load, arguments.seed + 1 + repetition, prompts, arguments)
            for i in (0, 1) if repetition % 2 == 0 else (1, 0):
                summary = await measure(servers[i], requests, load, options)
                speeds[i].append(summary.output_throughput)
        hostile, plain = (median(speed) for speed in speeds)
        ratio = median(h / p for h, p in zip(*speeds, strict=True))
        cells = [way, str(concurrency), f"{hostile:.1f}", f"{plain:.1f}"]
        cells += [f"{hostile / plain:.3f}", f"{ratio:.3f}"]
        print("| " + " | ".join(cells) + " |", flush=True)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=ROOT / "models" / "bench")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=count, default=1)
    parser.add_argument("--ngram_lookup", action=argparse.BooleanOptionalAction, default=False)
    parser.add_argument("--ways", nargs="+", default=WAYS)
    parser.add_argument("--concurrency", type=count, nargs="+", default=[1, 4])
    parser.add_argument("--waves", type=count, default=1, help="requests over --concurrency")
    parser.add_argument("--min_requests", type=count, default=1, help="of a run")
    parser.add_argument("--repeats", type=count, default=15)
    add_workload(parser, prompt_tokens=32, output_tokens=96)
    return parser.parse_args()


def bench(arguments: argparse.Namespace) -> None:
    print("| " + " | ".join(COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|", flush=True)
    for way in arguments.ways:
        with both(way, arguments) as servers:
            asyncio.run(compare(way, servers, arguments))


def main() -> int:
    arguments = parse_arguments()
    return run_to_end("bench/serving/hostile_drafts", lambda: bench(arguments))


if __name__ == "__main__":
    sys.exit(main())
