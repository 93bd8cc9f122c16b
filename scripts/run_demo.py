#!/usr/bin/env python3
"""Serves a model from a local cluster and compares it with plain decoding.

Makes the benchmark target (scripts/make_bench_pair.py) where it is missing, starts a gateway, one
target group and two draft workers as separate processes, and beside them a second cluster without
drafts. Streams a completion to the terminal, then both clusters answer the same prompt in turns.
Needs Python's standard library only; scripts/demo builds the program first.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import make_bench_pair

ROOT = Path(__file__).resolve().parents[1]
BINARY = Path(os.environ.get("SPECFABRIC_BINARY", ROOT / "build" / "specfabric"))
PROMPT = '''def copy_file(source, target, *, follow_symlinks=True):
    """Copy a file.'''
STOP_SECONDS = 20
VERIFICATION_METHODS = ("coupled", "rejection", "traversal", "typical")


@dataclass
class Answer:
    """One streamed completion."""

    token_ids: list[int]
    accepted: int
    exactness: str
    seconds: float

    @property
    def passes(self) -> int:
        """Each pass of the target gives one token of its own beside the accepted ones."""
        return len(self.token_ids) - self.accepted


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def stop(process: subprocess.Popen[str]) -> None:
    """Ends `up`, which ends the processes it started."""
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextlib.contextmanager
def cluster(
    arguments: argparse.Namespace, listen: str, drafts: int
) -> Iterator[tuple[str, subprocess.Popen[str], str]]:
    """A running cluster's URL, its `up` and its target's metrics; on leaving, all are ended."""
    command = [
        str(BINARY),
        "up",
        f"--model={arguments.model}",
        f"--listen={listen}",
        f"--tensor_parallel={arguments.tensor_parallel}",
        "--num_targets=1",
        f"--num_drafts={drafts}",
        f"--dtype={arguments.dtype}",
        f"--verification={arguments.verification}",
        "--log_level=warning",
        "--print_pids",
    ]
    if drafts:
        command.append(f"--draft_model={ROOT / 'models' / arguments.drafter}")
    else:
        command.append("--ngram_lookup=false")
    # Its own session: Ctrl-C reaches this program alone, which then ends the cluster in order.
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            sys.exit(process.wait() or 1)  # it has said why on standard error
        members = json.loads(line)
        for role, processes in members.items():
            for member in processes:
                print(f"  {role:8} pid {member['pid']:<8} {member['listen']}", file=sys.stderr)
        yield f"http://{listen}", process, f"http://{members['target'][0]['admin']}/metrics"
    finally:
        stop(process)


def post(url: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The events of one streamed completion."""
    request = urllib.request.Request(
        f"{url}/v1/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as response:
        for line in response:
            data = line.decode().removeprefix("data:").strip()
            if data and data != "[DONE]":
                yield json.loads(data)


def complete(url: str, arguments: argparse.Namespace, max_tokens: int, show: bool) -> Answer:
    """Streams the prompt's completion, to the terminal if `show`."""
    body = {
        "prompt": arguments.prompt,
        "max_tokens": max_tokens,
        "temperature": arguments.temperature,
        "seed": arguments.seed,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }
    token_ids: list[int] = []
    usage: dict[str, Any] = {}
    exactness = ""
    begin = time.perf_counter()
    for event in post(url, body):
        for choice in event["choices"]:
            token_ids += choice["token_ids"]
            if show:
                print(choice["text"], end="", flush=True)
        usage = event.get("usage") or usage
        exactness = event.get("exactness", exactness)
    seconds = time.perf_counter() - begin
    assert len(token_ids) == usage["completion_tokens"]
    return Answer(token_ids, usage["speculation"]["accepted"], exactness, seconds)


def metric(text: str, name: str) -> float:
    """The sum over a family's series, in Prometheus' text format."""
    lines = (line for line in text.splitlines() if line.startswith((f"{name} ", f"{name}{{")))
    return sum(float(line.split()[-1]) for line in lines)


def show_draft_probs(metrics_url: str) -> None:
    """Says what of the drafts' distributions came, and what had to be copied for it."""
    with urllib.request.urlopen(metrics_url, timeout=10) as response:
        text = response.read().decode()
    tensors = metric(text, "specfabric_draft_probs_received_total")
    tensor_bytes = metric(text, "specfabric_draft_probs_received_bytes_total")
    copied = metric(text, "specfabric_fabric_bytes_copied_total")
    received = metric(text, "specfabric_verifications_total")
    if tensors:
        print(
            f"\ndistributions: {tensors:.0f} tensors, {tensor_bytes / 1e6:.1f} MB, went from "
            f"drafts' memory to slots of the target, for {received:.0f} trees verified;\n"
            f"               {copied / 1e6:.2f} MB were copied on the way, small messages included"
        )


def compare(arguments: argparse.Namespace) -> int:
    """Both clusters answer in turns, so that whatever else the machine does slows both alike."""
    with contextlib.ExitStack() as stack:
        print(f"\nstarting a cluster with {arguments.drafts} draft workers ...", file=sys.stderr)
        fast_url, _, metrics_url = stack.enter_context(
            cluster(arguments, free_address(), arguments.drafts)
        )
        print("\nstarting one without, which decodes plainly ...", file=sys.stderr)
        plain_url, _, _ = stack.enter_context(cluster(arguments, free_address(), 0))
        print(f"\n\033[2m{arguments.prompt}\033[0m", end="", flush=True)
        complete(fast_url, arguments, arguments.max_tokens, show=True)  # the first warms up
        print(f"\n\nanswering {arguments.repeats} times, with drafts and plainly in turns ...")
        complete(plain_url, arguments, arguments.max_tokens, show=False)
        fast, plain = [], []
        for _ in range(arguments.repeats):
            fast.append(complete(fast_url, arguments, arguments.max_tokens, show=False))
            plain.append(complete(plain_url, arguments, arguments.max_tokens, show=False))
        show_draft_probs(metrics_url)
    return report(arguments, fast, plain)


def report(arguments: argparse.Namespace, fast: list[Answer], plain: list[Answer]) -> int:
    """Prints what was measured; 1 if texts differ that should not."""
    rates = {}
    for name, answers in {"with drafts": fast, "plain": plain}.items():
        median = statistics.median(answer.seconds for answer in answers)
        rates[name] = arguments.max_tokens / median
        print(
            f"{name + ':':13}{arguments.max_tokens} tokens in {median:.2f} s, "
            f"{rates[name]:.1f} tokens/s"
        )
    same = all(answer.token_ids == plain[0].token_ids for answer in fast + plain)
    print(f"{'ratio:':13}{rates['with drafts'] / rates['plain']:.2f}; {comparison(fast[0], same)}")
    megabytes = sum(file.stat().st_size for file in arguments.model.glob("*.safetensors")) / 1e6
    passes = statistics.median_low(answer.passes for answer in fast)
    print(
        f"{'why:':13}reading {megabytes:.0f} MB of weights bounds a pass of the target: "
        f"{plain[0].passes} passes became {passes}, "
        f"of {arguments.max_tokens / passes:.1f} tokens each"
    )
    return 1 if fast[0].exactness == "token" and not same else 0


def comparison(fast: Answer, same: bool) -> str:
    """What the two texts should have in common, and whether they do."""
    if fast.exactness == "token":
        return f"the texts are {'the same, token for token' if same else 'DIFFERENT'}"
    if fast.exactness == "distribution":
        return "the texts are two samples of one distribution, that of plain decoding"
    return "the text with drafts does not have the target's distribution: this method is lossy"


def serve(arguments: argparse.Namespace) -> int:
    with cluster(arguments, arguments.listen, arguments.drafts) as (url, process, _):
        body = {"prompt": "def main():", "max_tokens": 64, "stream": True}
        print(
            f"\nserving at {url}; end it with Ctrl-C. Try:\n\n"
            f"curl -N {url}/v1/completions -H 'Content-Type: application/json' "
            f"-d {shlex.quote(json.dumps(body))}\n",
            flush=True,
        )
        return process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog="demo", description=__doc__)
    parser.add_argument("--serve", action="store_true", help="stay up and print a line to try")
    parser.add_argument("--listen", default="127.0.0.1:8000", help="address of --serve")
    parser.add_argument("--model", type=Path, help="default: the benchmark target, made if missing")
    parser.add_argument(
        "--drafter",
        choices=("draft", "pard", "eagle3", "dspark"),
        default="draft",
        help="which of the demo target's drafters proposes (docs/drafters.md)",
    )
    parser.add_argument("--tensor_parallel", type=int, default=2)
    parser.add_argument("--drafts", type=int, default=2)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--prompt", default=PROMPT)
    parser.add_argument("--max_tokens", type=int, default=128)
    parser.add_argument("--verification", choices=VERIFICATION_METHODS, default="coupled")
    parser.add_argument(
        "--temperature",
        type=float,
        help="default: 0 for coupled, .8 for the others, which are the same as coupled at 0",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--repeats", type=int, default=5, help="answers of each cluster, of which the median counts"
    )
    arguments = parser.parse_args()
    if arguments.temperature is None:
        arguments.temperature = 0.0 if arguments.verification == "coupled" else 0.8
    # A SIGTERM ends the cluster as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if arguments.model is None:
            arguments.model = make_bench_pair.OUT
            make_bench_pair.make_if_missing(
                make_bench_pair.SOURCE,
                make_bench_pair.OUT,
                make_bench_pair.INTERMEDIATE_SIZE,
                seed=0,
            )
        sys.exit((serve if arguments.serve else compare)(arguments))
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
