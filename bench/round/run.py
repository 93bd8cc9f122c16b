#!/usr/bin/env python3
"""Where the time of a round goes: the engine's own part beside the model's.

Starts a local cluster on the demo models, asks for completions one at a time with drafts on, and
prints the mean of every round span from the target's /metrics. "Outside the model" is what is left
of a round's wall time (answers timed at the client, over their rounds) after forward pass,
verification and drafting: planning, committing, messages and every hand-over between threads and
processes, the gateway's among them.

    scripts/build && bench/round/run.py
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SPANS = ["plan", "forward", "verify", "commit", "draft_wait", "draft_compute", "transfer"]
MODEL = ["forward", "verify", "draft_compute"]


def span_totals(admin: str) -> dict[str, tuple[float, float]]:
    """(sum in seconds, count) of every span so far."""
    text = urllib.request.urlopen(f"http://{admin}/metrics").read().decode()
    totals = {}
    for span in SPANS:
        pair = []
        for part in ("sum", "count"):
            pattern = rf'^specfabric_round_span_seconds_{part}{{[^}}]*span="{span}"[^}}]*}} (\S+)$'
            match = re.search(pattern, text, re.MULTILINE)
            assert match, f"no {part} of span {span} at {admin}"
            pair.append(float(match.group(1)))
        totals[span] = (pair[0], pair[1])
    return totals


def complete(gateway: str, max_tokens: int, seed: int) -> dict[str, object]:
    body = {
        "model": "target",
        "prompt": "import os\nimport sys\n\n\ndef main(",
        "max_tokens": max_tokens,
        "temperature": 0.7,
        "seed": seed,
        "ignore_eos": True,
    }
    request = urllib.request.Request(
        f"http://{gateway}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    return json.load(urllib.request.urlopen(request))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--requests", type=int, default=2)
    parser.add_argument("--max_tokens", type=int, default=1200)
    parser.add_argument("--tensor_parallel", type=int, default=1)
    parser.add_argument("--tree", default="best:8")
    args = parser.parse_args()
    command = [
        str(ROOT / "build" / "specfabric"),
        "up",
        f"--model={ROOT / 'models' / 'target'}",
        f"--draft_model={ROOT / 'models' / 'draft'}",
        f"--tensor_parallel={args.tensor_parallel}",
        f"--tree={args.tree}",
        "--ngram_lookup=false",
        "--listen=127.0.0.1:0",
        "--log_level=warning",
        "--print_pids",
    ]
    cluster = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert cluster.stdout is not None
        processes = json.loads(cluster.stdout.readline())
        gateway = processes["gateway"][0]["listen"]
        admin = processes["target"][0]["admin"]
        complete(gateway, 64, 0)  # warms up
        before = span_totals(admin)
        begin = time.monotonic()
        for i in range(args.requests):
            complete(gateway, args.max_tokens, i + 1)
        wall = time.monotonic() - begin
        after = span_totals(admin)
    finally:
        cluster.terminate()
        cluster.wait()
    print(f"{'span':14} {'count':>8} {'mean us':>9}")
    totals = {span: after[span][0] - before[span][0] for span in SPANS}
    for span in SPANS:
        count = after[span][1] - before[span][1]
        print(f"{span:14} {count:8.0f} {1e6 * totals[span] / max(count, 1):9.1f}")
    rounds = after["commit"][1] - before["commit"][1]
    outside = wall - sum(totals[span] for span in MODEL)
    print(
        f"wall {1e6 * wall / rounds:.1f} us a round, outside the model {1e6 * outside / rounds:.1f}"
    )


if __name__ == "__main__":
    main()
