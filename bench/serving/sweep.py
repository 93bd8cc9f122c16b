#!/usr/bin/env python3
"""Throughput and time per token over load, with speculation and without: table, JSON and picture.

Two local clusters of the same weights stay up, one with draft workers and one without. At every
concurrency (or request rate) both answer the same requests, in turn, as often as --repeats says,
and who begins alternates: what else the machine does hits both. Ratios are of medians; beside them
stands the median of each repetition's own ratio.

    python=$(scripts/setup --print-venv)/bin/python
    scripts/build && scripts/make_bench_pair.py
    $python bench/serving/sweep.py --model models/bench --prompts FILE --out /tmp/sweep

Flags of specfabric itself: --with_drafts=--tree=best:8 for the cluster with drafts, --common=...
for both, each as often as needed.
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
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT), str(ROOT / "tests" / "e2e")]

from bench.serving import workload  # noqa: E402
from bench.serving.chart import picture  # noqa: E402
from bench.serving.client import Server, ServerError  # noqa: E402
from bench.serving.clusters_bench import run_to_end  # noqa: E402
from bench.serving.load import drive  # noqa: E402
from bench.serving.metrics import Summary, summarise  # noqa: E402
from bench.serving.run import add_workload, count, number, options_of, prompts_of  # noqa: E402
from cluster import DRAFT, TARGET, start_cluster  # noqa: E402

ON, OFF = "speculation", "plain"
MODES = (ON, OFF)


@dataclass(frozen=True)
class Load:
    """One point of the sweep: so many at once, or so many a second."""

    concurrency: int | None
    rate: float | None

    @property
    def value(self) -> float:
        return float(self.concurrency or self.rate or 0)

    def requests(self, arguments: argparse.Namespace) -> int:
        if self.rate:
            return max(arguments.min_requests, round(self.rate * arguments.seconds))
        return max(arguments.min_requests, arguments.waves * (self.concurrency or 1))


@dataclass(frozen=True)
class Sample:
    """One run of one mode."""

    load: float
    repetition: int
    mode: str
    summary: Summary


@dataclass(frozen=True)
class Point:
    """What all repetitions at one load say; lists are indexed as MODES."""

    load: float
    tokens_per_second: tuple[float, float]
    tpot_ms: tuple[float, float]
    ttft_ms: tuple[float, float]
    ratio_of_medians: float
    median_of_ratios: float
    accepted_per_round: float


@contextlib.contextmanager
def clusters(arguments: argparse.Namespace) -> Iterator[dict[str, Server]]:
    """Both, ready for requests."""
    sequences = max([*arguments.concurrency, 64])
    common = [
        f"--threads={arguments.threads}",
        f"--max_sequences={sequences}",
        f"--max_sessions={sequences}",
        "--log_level=warning",
        *arguments.common,
    ]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = {}
        for mode in MODES:
            cluster = stack.enter_context(
                start_cluster(
                    folder / f"{mode}.log",
                    arguments.model,
                    arguments.draft_model,
                    tensor_parallel=arguments.tensor_parallel,
                    drafts=arguments.drafts if mode == ON else 0,
                    dtype=arguments.dtype,
                    speculation="goodput",
                    extra=[*common, *(arguments.with_drafts if mode == ON else [])],
                )
            )
            servers[mode] = Server(cluster.url, cluster.model)
        yield servers


def plan(
    load: Load, seed: int, prompts: workload.Prompts, arguments: argparse.Namespace
) -> list[workload.Planned]:
    random = np.random.default_rng(seed)
    number_of_requests = load.requests(arguments)
    times = workload.arrival_times(number_of_requests, load.rate or np.inf, 1.0, random)
    inputs, outputs = (
        workload.lengths(number_of_requests, mean, arguments.range_ratio, random)
        for mean in (arguments.prompt_tokens, arguments.output_tokens)
    )
    arrivals = [workload.Arrival(*fields) for fields in zip(times, inputs, outputs, strict=True)]
    return workload.plan(arrivals, prompts, random)


async def measure(
    server: Server, requests: list[workload.Planned], load: Load, options: dict[str, Any]
) -> Summary:
    outcomes, duration = await drive(server, requests, options, load.concurrency)
    for outcome in outcomes:
        if not outcome.succeeded:
            raise ServerError(0, f"a request failed: {outcome.error}")
    return summarise(outcomes, duration)


async def sweep(
    servers: dict[str, Server], loads: list[Load], arguments: argparse.Namespace
) -> list[Sample]:
    prompts = await prompts_of(arguments, servers[ON])
    options = options_of(arguments)
    samples = []
    for load in loads:
        warm_up = plan(load, arguments.seed, prompts, arguments)
        for mode in MODES:  # for caches and what is learned online; not counted
            await measure(servers[mode], warm_up, load, options)
        for repetition in range(arguments.repeats):
            requests = plan(load, arguments.seed + 1 + repetition, prompts, arguments)
            for mode in MODES if repetition % 2 == 0 else MODES[::-1]:
                summary = await measure(servers[mode], requests, load, options)
                samples.append(Sample(load.value, repetition, mode, summary))
        print(row(point_of(load.value, samples)), flush=True)
    return samples


def point_of(load: float, samples: list[Sample]) -> Point:
    at_load = sorted((s for s in samples if s.load == load), key=lambda s: s.repetition)
    found = {mode: [s.summary for s in at_load if s.mode == mode] for mode in MODES}
    on, off = ([s.output_throughput for s in found[mode]] for mode in MODES)
    return Point(
        load,
        (median(on), median(off)),
        (median(s.tpot_ms.mean for s in found[ON]), median(s.tpot_ms.mean for s in found[OFF])),
        (median(s.ttft_ms.mean for s in found[ON]), median(s.ttft_ms.mean for s in found[OFF])),
        median(on) / median(off),
        median(a / b for a, b in zip(on, off, strict=True)),
        median(s.accepted_per_round or 0 for s in found[ON]),
    )


HEADER = (
    "| load | tokens/s, drafts | plain | of medians | median of ratios | TPOT ms, drafts | plain "
    "| TTFT ms, drafts | plain | accepted a round |\n" + "|---" * 10 + "|"
)


def row(point: Point) -> str:
    cells = [
        f"{point.load:g}",
        *(f"{value:.1f}" for value in point.tokens_per_second),
        f"{point.ratio_of_medians:.2f}",
        f"{point.median_of_ratios:.2f}",
        *(f"{value:.2f}" for value in point.tpot_ms),
        *(f"{value:.1f}" for value in point.ttft_ms),
        f"{point.accepted_per_round:.2f}",
    ]
    return "| " + " | ".join(cells) + " |"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=TARGET)
    parser.add_argument("--draft_model", type=Path, default=DRAFT)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--tensor_parallel", type=count, default=1)
    parser.add_argument("--threads", type=count, default=1, help="inside a rank")
    parser.add_argument("--drafts", type=count, default=1)
    parser.add_argument("--common", action="append", default=[], metavar="FLAG")
    parser.add_argument("--with_drafts", action="append", default=[], metavar="FLAG")
    parser.add_argument("--concurrency", type=count, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument(
        "--request_rate", type=number(0, above=True), nargs="+", help="instead of --concurrency"
    )
    parser.add_argument("--seconds", type=number(0, above=True), default=30, help="of each rate")
    parser.add_argument("--waves", type=count, default=2, help="requests over --concurrency")
    parser.add_argument("--min_requests", type=count, default=4, help="of a run")
    parser.add_argument("--repeats", type=count, default=5)
    add_workload(parser, prompt_tokens=32, output_tokens=64)
    parser.add_argument("--out", type=Path, help="also write sweep.json and sweep.svg there")
    return parser.parse_args()


def bench(arguments: argparse.Namespace) -> None:
    rates = arguments.request_rate
    loads = (
        [Load(None, rate) for rate in rates]
        if rates
        else [Load(concurrency, None) for concurrency in arguments.concurrency]
    )
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
    with clusters(arguments) as servers:
        print(HEADER, flush=True)
        samples = asyncio.run(sweep(servers, loads, arguments))
    if not arguments.out:
        return
    points = [point_of(load.value, samples) for load in loads]
    result = {"points": [asdict(p) for p in points], "samples": [asdict(s) for s in samples]}
    (arguments.out / "sweep.json").write_text(json.dumps(result, indent=1) + "\n")
    name = "requests a second" if rates else "requests at once"
    (arguments.out / "sweep.svg").write_text(
        picture(
            name,
            [p.load for p in points],
            {mode: [p.tokens_per_second[i] for p in points] for i, mode in enumerate(MODES)},
            {mode: [p.tpot_ms[i] for p in points] for i, mode in enumerate(MODES)},
        )
    )


def main() -> int:
    arguments = parse_arguments()
    return run_to_end("bench/serving", lambda: bench(arguments))


if __name__ == "__main__":
    sys.exit(main())
