#!/usr/bin/env python3
"""Load generator: asks an OpenAI-compatible server for completions at a set rate, and measures.

Prints the table of `vllm bench serve`, by its definitions (bench/serving/metrics.py says which).
Requests arrive at --request_rate, or as --workload_trace says, or at once; --max_concurrency keeps
more than so many from being under way. Prompts are pieces of a text (--prompts FILE), best one
that the model was not trained on, or random tokens.

    build/specfabric up --model models/target --draft_model models/draft --num_drafts 2
    python=$(scripts/setup --print-venv)/bin/python
    $python bench/serving/run.py --request_rate 4 --requests 100 --goodput ttft:200 tpot:20
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench.serving import workload  # noqa: E402
from bench.serving.client import (  # noqa: E402
    Outcome,
    Server,
    ServerError,
    find_model,
    tokenize,
)
from bench.serving.load import drive  # noqa: E402
from bench.serving.metrics import OBJECTIVES, summarise, table  # noqa: E402


def number(low: float, above: bool = False) -> Any:
    """A parser of numbers from `low`, or only above it."""

    def parse(word: str) -> float:
        try:
            value = float(word)
        except ValueError:
            value = math.nan
        if not (value > low if above else value >= low):
            allowed = f"a number {'above' if above else 'from'} {low:g}"
            raise argparse.ArgumentTypeError(f"'{word}'; allowed: {allowed}")
        return value

    return parse


def count(word: str) -> int:
    if not word.isdecimal() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"'{word}'; allowed: a whole number from 1")
    return int(word)


def objective(word: str) -> tuple[str, float]:
    name, _, ms = word.partition(":")
    if name not in OBJECTIVES:
        raise argparse.ArgumentTypeError(f"'{word}'; allowed: NAME:MS, NAME of {OBJECTIVES}")
    return name, number(0, above=True)(ms)


def json_object(word: str) -> dict[str, Any]:
    try:
        value = json.loads(word)
    except json.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"'{word}'; allowed: a JSON object")
    return value


def add_workload(parser: argparse.ArgumentParser, prompt_tokens: int, output_tokens: int) -> None:
    """The flags that say what requests look like, with these lengths where none are given."""
    parser.add_argument("--prompts", type=Path, help="a text to cut prompts from; else random ids")
    parser.add_argument("--vocabulary", type=count, default=1000, help="random ids are below this")
    parser.add_argument("--prompt_tokens", type=count, default=prompt_tokens, help="mean")
    parser.add_argument("--output_tokens", type=count, default=output_tokens, help="mean")
    parser.add_argument(
        "--range_ratio", type=number(0), default=0.0, help="lengths: mean * (1 +- this), uniform"
    )
    parser.add_argument("--temperature", type=number(0), default=0.0)
    parser.add_argument("--seed", type=int, default=0, help="of arrivals, lengths, prompts")
    parser.add_argument("--body", type=json_object, default={}, help="more fields of each request")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", default="", help="default: the first that the server names")
    parser.add_argument("--requests", type=count, default=100)
    parser.add_argument(
        "--request_rate",
        type=number(0, above=True),
        default=math.inf,
        help="a second; inf: at once",
    )
    parser.add_argument(
        "--burstiness", type=number(0, above=True), default=1.0, help="1: Poisson; less: bursts"
    )
    parser.add_argument("--max_concurrency", type=count)
    parser.add_argument(
        "--workload_trace", type=Path, help="CSV: seconds,prompt tokens,output tokens"
    )
    add_workload(parser, prompt_tokens=128, output_tokens=128)
    parser.add_argument("--warmups", type=int, default=1, help="requests sent before measuring")
    parser.add_argument(
        "--goodput", type=objective, nargs="+", metavar="NAME:MS", help="of ttft, tpot, e2el"
    )
    parser.add_argument("--json", type=Path, help="also write summary and requests to this file")
    return parser.parse_args()


async def prompts_of(arguments: argparse.Namespace, server: Server) -> workload.Prompts:
    if arguments.prompts is None:
        return workload.RandomPrompts(arguments.vocabulary)
    return workload.TextPrompts(await tokenize(server, arguments.prompts.read_text()))


def arrivals_of(
    arguments: argparse.Namespace, random: np.random.Generator
) -> list[workload.Arrival]:
    if arguments.workload_trace:
        return workload.read_trace(arguments.workload_trace)
    times = workload.arrival_times(
        arguments.requests, arguments.request_rate, arguments.burstiness, random
    )
    mean_lengths = (arguments.prompt_tokens, arguments.output_tokens)
    prompt, output = (
        workload.lengths(arguments.requests, mean, arguments.range_ratio, random)
        for mean in mean_lengths
    )
    return [workload.Arrival(*fields) for fields in zip(times, prompt, output, strict=True)]


def options_of(arguments: argparse.Namespace) -> dict[str, Any]:
    return {"temperature": arguments.temperature, "ignore_eos": True, **arguments.body}


async def warm_up(
    server: Server, requests: list[workload.Planned], options: dict[str, Any], number: int
) -> None:
    outcomes, _ = await drive(server, requests[:number], options, max_concurrency=1)
    for outcome in outcomes:
        if not outcome.succeeded:
            raise ServerError(0, f"the first request failed: {outcome.error}")


def write_json(path: Path, summary: dict[str, Any], outcomes: list[Outcome]) -> None:
    path.write_text(
        json.dumps({"summary": summary, "requests": [asdict(o) for o in outcomes]}, indent=1) + "\n"
    )


async def bench(arguments: argparse.Namespace) -> int:
    server = await find_model(Server(arguments.url, arguments.model))
    random = np.random.default_rng(arguments.seed)
    arrivals = arrivals_of(arguments, random)
    requests = workload.plan(arrivals, await prompts_of(arguments, server), random)
    options = options_of(arguments)
    await warm_up(server, requests, options, arguments.warmups)
    outcomes, duration = await drive(
        server, requests, options, arguments.max_concurrency, show_progress=True
    )
    summary = summarise(outcomes, duration, dict(arguments.goodput or []))
    print(table(summary))
    failures = [o.error for o in outcomes if not o.succeeded]
    for failure in failures[:10]:
        print(f"failed: {failure}", file=sys.stderr)
    if arguments.json:
        write_json(arguments.json, asdict(summary), outcomes)
    return 1 if failures else 0


def main() -> int:
    arguments = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        return asyncio.run(bench(arguments))
    except (workload.WorkloadError, ServerError, OSError, ValueError) as error:
        print(f"bench/serving: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
