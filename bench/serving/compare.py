#!/usr/bin/env python3
"""Whether the load generator agrees with a public client, guidellm, on one server.

Both send the same prompts, greedily, to one local cluster, in turn, and their means are put side by
side. Every message of the cluster is delayed (--rtt_ms), because on a fast server the table would
compare the clients' own times: all of them share the machine. guidellm's names: its inter-token
latency is our TPOT; its time per output token counts the first token too and has no counterpart.

    python3 -m venv /tmp/guidellm && /tmp/guidellm/bin/pip install guidellm
    python=$(scripts/setup --print-venv)/bin/python
    $python bench/serving/compare.py --guidellm /tmp/guidellm/bin/guidellm
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT), str(ROOT / "tests" / "e2e")]

from bench.serving.client import Server, ServerError, tokenize  # noqa: E402
from bench.serving.load import drive  # noqa: E402
from bench.serving.metrics import summarise  # noqa: E402
from bench.serving.workload import Planned  # noqa: E402
from cluster import TARGET, start_cluster  # noqa: E402
from prompts import PROMPTS  # noqa: E402

Figures = dict[str, float]
COMPARED = ["output tokens/s", "TTFT ms", "TPOT ms", "E2EL ms"]


def ours(server: Server, prompts: Sequence[str], arguments: argparse.Namespace) -> Figures:
    async def measure() -> Figures:
        requests = [
            Planned(0.0, await tokenize(server, prompt), arguments.output_tokens, 0)
            for prompt in prompts
        ]
        options = {"temperature": 0, "ignore_eos": True}
        outcomes, duration = await drive(server, requests, options, arguments.concurrency)
        for outcome in outcomes:
            if not outcome.succeeded:
                raise ServerError(0, outcome.error)
        got = summarise(outcomes, duration)
        means = [got.ttft_ms.mean, got.tpot_ms.mean, got.e2el_ms.mean]
        return dict(zip(COMPARED, [got.output_throughput, *means], strict=True))

    return asyncio.run(measure())


def scenario(server: Server, folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """What guidellm is asked to do, as its configuration file has it."""
    return {
        "spec": {
            "backend": {
                "kind": "openai_http",
                "target": server.url,
                "model": server.model,
                "request_format": "/v1/completions",
                "extras": {"body": {"temperature": 0, "ignore_eos": True}},
            },
            "profile": {"kind": "concurrent", "streams": [arguments.concurrency]},
            "constraints": [{"kind": "max_requests", "count": arguments.requests}],
            "tokenizer": {"kind": "hf_auto", "model": str(TARGET)},
            "data": [{"kind": "json_file", "path": str(folder / "prompts.jsonl")}],
            "outputs": [{"kind": "json", "path": str(folder / "report.json")}],
        }
    }


def guidellm(
    server: Server, prompts: Sequence[str], folder: Path, arguments: argparse.Namespace
) -> Figures:
    rows = [{"prompt": p, "output_tokens_count": arguments.output_tokens} for p in prompts]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "scenario.json").write_text(json.dumps(scenario(server, folder, arguments)))
    done = subprocess.run(
        [arguments.guidellm, "run", "-c", str(folder / "scenario.json"), "--disable-console"],
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ServerError(0, f"guidellm ended with {done.returncode}: {done.stderr[-2000:]}")
    (benchmark,) = json.loads((folder / "report.json").read_text())["benchmarks"]
    metrics = benchmark["metrics"]
    if metrics["request_totals"]["successful"] != len(prompts):
        raise ServerError(0, f"guidellm: {metrics['request_totals']} of {len(prompts)} requests")
    names = [
        ("output_tokens_per_second", 1),
        ("time_to_first_token_ms", 1),
        ("inter_token_latency_ms", 1),
        ("request_latency", 1000),
    ]
    means = [metrics[name]["successful"]["mean"] * factor for name, factor in names]
    return dict(zip(COMPARED, means, strict=True))


def compare(arguments: argparse.Namespace) -> bool:
    """Prints the table; whether every ratio of medians is within the tolerance."""
    prompts = [PROMPTS[i % len(PROMPTS)] for i in range(arguments.requests)]
    mine: list[Figures] = []
    theirs: list[Figures] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # Drafts are waited for, however late, so that every event carries a round's tokens.
        flags = [f"--simulated_rtt={arguments.rtt_ms:g}ms", "--max_draft_wait=1s"]
        with start_cluster(
            folder / "up.log", drafts=1, speculation="goodput", extra=flags
        ) as cluster:
            server = Server(cluster.url, cluster.model)
            ours(server, prompts, arguments)  # warms up
            for _ in range(arguments.repeats):
                mine.append(ours(server, prompts, arguments))
                theirs.append(guidellm(server, prompts, folder, arguments))
    agreed = True
    print(f"{'mean':<18}{'bench/serving':>14}{'guidellm':>12}{'ratio':>8}")
    for key in COMPARED:
        left, right = (median(run[key] for run in runs) for runs in (mine, theirs))
        agreed = agreed and abs(left / right - 1) <= arguments.tolerance
        print(f"{key:<18}{left:14.2f}{right:12.2f}{left / right:8.3f}")
    return agreed


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--guidellm", default="guidellm", help="the program; default: on the PATH")
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--output_tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rtt_ms", type=float, default=50)
    parser.add_argument("--tolerance", type=float, default=0.1, help="of each ratio; else exit 1")
    arguments = parser.parse_args()
    try:
        return 0 if compare(arguments) else 1
    except (ServerError, OSError) as error:
        print(f"bench/serving: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
