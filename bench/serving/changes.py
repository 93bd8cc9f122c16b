#!/usr/bin/env python3
"""Whether the defaults stay above plain decoding while drafts and load change.

One target at the defaults lives through phases: a good draft; a bad one of the same name, whose
weights are noise; a good one that is slow, stopped for most of the time; a good one; then many
clients, and one again. Before and after it a target without drafts and without lookup has the same
loads. Clients ask one request after the other; those that a phase does not need are cut off.

Printed for each phase: tokens a second over plain decoding's at that load, over the whole phase and
in the worst window of --window seconds, beside plain decoding in the same window of its phase:
where many clients begin, nobody gets a token until their prompts are read. Windows begin --grace
seconds after a change at the earliest, and end with the phase. The same of the two plain runs, the
slower over the faster, shows what is noise.

    python=$(scripts/setup --print-venv)/bin/python
    scripts/build && scripts/make_bench_pair.py
    $python bench/serving/changes.py
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT)]
sys.path += [str(ROOT / part) for part in ("tests/e2e", "tests/checkpoints", "scripts")]

import make  # noqa: E402
from bench.serving import texts  # noqa: E402
from bench.serving.cells import OPTIONS  # noqa: E402
from bench.serving.client import Server, ServerError, events, tokenize  # noqa: E402
from bench.serving.clusters_bench import run_to_end  # noqa: E402
from bench.serving.run import count, number  # noqa: E402
from cluster import (  # noqa: E402
    DRAFT,
    Cluster,
    Process,
    assert_built,
    free_address,
    start_target,
    started,
    wait_until,
)
from exposition import value_of  # noqa: E402

GOOD, BAD, SLOW = "good", "bad", "slow"
RUNS, STOPS = 0.01, 0.09  # seconds that a slow draft runs and is stopped, in turn


@dataclass(frozen=True)
class Phase:
    name: str
    clients: int
    draft: str


@dataclass
class Timeline:
    """When tokens came, and when phases began; times are of time.perf_counter()."""

    tokens: list[tuple[float, int]] = field(default_factory=list)
    begins: list[float] = field(default_factory=list)
    end: float = 0.0

    def rate(self, begin: float, end: float) -> float:
        return sum(n for when, n in self.tokens if begin <= when < end) / (end - begin)

    def bounds(self, phase: int, grace: float) -> tuple[float, float]:
        ends = [*self.begins[1:], self.end]
        return self.begins[phase] + grace, ends[phase]

    def windows(self, phase: int, arguments: argparse.Namespace) -> np.ndarray:
        """Rates of windows that begin a tenth of a second apart."""
        begin = self.begins[phase] + arguments.grace
        last = arguments.seconds - arguments.grace - arguments.window
        starts = [begin + 0.1 * i for i in range(int(10 * last) + 1)]
        return np.array([self.rate(start, start + arguments.window) for start in starts])


class Slow:
    """Stops a process for most of the time, until it is left."""

    def __init__(self, pid: int) -> None:
        self.pid, self.over = pid, threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self) -> None:
        while not self.over.is_set():
            os.kill(self.pid, signal.SIGSTOP)
            time.sleep(STOPS)
            os.kill(self.pid, signal.SIGCONT)
            self.over.wait(RUNS)

    def __enter__(self) -> None:
        self.thread.start()

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()


class Drafts:
    """The draft of a target, which changes: the new one is there before the old one leaves."""

    def __init__(self, arguments: argparse.Namespace, folder: Path) -> None:
        self.arguments, self.folder = arguments, folder
        self.addresses = {GOOD: free_address(), BAD: free_address()}
        self.admin = ""  # the target's
        self.bad_model = make.make_noisy(
            arguments.draft_model, folder / "bad" / arguments.draft_model.name, 1.0
        )
        self.at_work = contextlib.ExitStack()
        self.kind = ""
        self.slow = contextlib.ExitStack()

    def start(self, kind: str) -> tuple[contextlib.ExitStack, Process]:
        stack = contextlib.ExitStack()
        model = self.bad_model if kind == BAD else self.arguments.draft_model
        process = stack.enter_context(
            started(
                self.folder / f"{kind}.log",
                [
                    "draft",
                    f"--model={model}",
                    f"--target_model={self.arguments.model}",
                    f"--listen={self.addresses[kind]}",
                    "--log_level=warning",
                ],
            )
        )
        return stack, process

    def become(self, wanted: str) -> None:
        self.slow.close()
        kind = BAD if wanted == BAD else GOOD
        if kind != self.kind:
            stack, self.process = self.start(kind)
            workers = 2 if self.kind else 1
            wait_until(
                lambda: value_of(self.admin, "specfabric_target_draft_workers") == workers,
                "the target has the draft",
            )
            self.at_work.close()
            self.at_work, self.kind = stack, kind
        if wanted == SLOW:
            self.slow.enter_context(Slow(self.process.pid))

    def close(self) -> None:
        self.slow.close()
        self.at_work.close()


class Clients:
    """As many as are wanted, each of which asks one request after the other."""

    def __init__(self, server: Server, arguments: argparse.Namespace, timeline: Timeline) -> None:
        self.server, self.arguments, self.timeline = server, arguments, timeline
        self.tasks: list[asyncio.Task[None]] = []
        self.asked = 0

    async def one(self) -> None:
        while True:
            self.asked += 1
            (wanted,) = texts.asked(
                self.arguments.workload,
                1,
                self.arguments.prompt_characters,
                self.arguments.output_tokens,
                [self.arguments.seed, self.asked],
            )
            payload = {
                "model": self.server.model,
                "prompt": await tokenize(self.server, wanted.prompt),
                "max_tokens": wanted.output_tokens,
                "stream": True,
                "return_token_ids": True,
                "temperature": self.arguments.temperature,
                **OPTIONS,
            }
            stream = events(self.server, "/v1/completions", payload)
            async with contextlib.aclosing(stream) as answer:
                async for event in answer:
                    if "error" in event:
                        raise ServerError(0, str(event["error"]))
                    tokens = sum(len(c.get("token_ids") or ()) for c in event["choices"])
                    self.timeline.tokens.append((time.perf_counter(), tokens))

    def become(self, wanted: int) -> None:
        for task in self.tasks[wanted:]:
            task.cancel()
        self.tasks = self.tasks[:wanted]
        self.tasks += [asyncio.create_task(self.one()) for _ in range(wanted - len(self.tasks))]

    async def over(self) -> None:
        tasks = self.tasks
        self.become(0)
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result


async def live_through(
    server: Server,
    phases: Sequence[Phase],
    change: Callable[[str], None],
    arguments: argparse.Namespace,
) -> Timeline:
    timeline = Timeline()
    clients = Clients(server, arguments, timeline)
    for phase in phases:
        clients.become(phase.clients)
        await asyncio.to_thread(change, phase.draft)
        timeline.begins.append(time.perf_counter())
        await asyncio.sleep(arguments.seconds)
    timeline.end = time.perf_counter()
    await clients.over()
    return timeline


def target(
    name: str,
    arguments: argparse.Namespace,
    folder: Path,
    drafts: Sequence[str] = (),
    flags: Sequence[str] = (),
) -> AbstractContextManager[Cluster]:
    threads = f"--threads={len(os.sched_getaffinity(0))}"
    usual = ["--dtype=bfloat16", threads, "--log_level=warning"]
    return start_target(folder, f"{name}.", arguments.model, drafts, [*usual, *flags])


@dataclass(frozen=True)
class Rates:
    """Tokens a second of a phase, whole and by window."""

    whole: float
    windows: np.ndarray


def rates_of(timeline: Timeline, phase: int, arguments: argparse.Namespace) -> Rates:
    bounds = timeline.bounds(phase, arguments.grace)
    return Rates(timeline.rate(*bounds), timeline.windows(phase, arguments))


def measure_plain(name: str, arguments: argparse.Namespace, folder: Path) -> dict[int, Rates]:
    """By number of clients."""
    loads = [Phase("plain", clients, "") for clients in (1, arguments.clients)]
    with target(name, arguments, folder, flags=["--ngram_lookup=false"]) as cluster:
        server = Server(cluster.url, cluster.model)
        timeline = asyncio.run(live_through(server, loads, lambda _: None, arguments))
    return {phase.clients: rates_of(timeline, i, arguments) for i, phase in enumerate(loads)}


@contextlib.contextmanager
def changing(arguments: argparse.Namespace, folder: Path) -> Iterator[tuple[Server, Drafts]]:
    drafts = Drafts(arguments, folder)
    with target("default", arguments, folder, list(drafts.addresses.values())) as cluster:
        drafts.admin = cluster.targets[0].admin
        try:
            yield Server(cluster.url, cluster.model), drafts
        finally:
            drafts.close()


def bench(arguments: argparse.Namespace) -> None:
    assert_built()
    phases = [
        Phase("good draft", 1, GOOD),
        Phase("bad draft", 1, BAD),
        Phase("slow draft", 1, SLOW),
        Phase("good draft again", 1, GOOD),
        Phase(f"{arguments.clients} clients", arguments.clients, GOOD),
        Phase("one client again", 1, GOOD),
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        before = measure_plain("before", arguments, folder)
        with changing(arguments, folder) as (server, drafts):
            timeline = asyncio.run(live_through(server, phases, drafts.become, arguments))
        after = measure_plain("after", arguments, folder)
    print("| phase | tokens/s | plain | of plain | worst window | plain beside itself |")
    print("|---" * 6 + "|")
    rows = []
    for i, phase in enumerate(phases):
        ours = rates_of(timeline, i, arguments)
        plains = [before[phase.clients], after[phase.clients]]
        plain = mean(rates.whole for rates in plains)
        windows = np.array([rates.windows for rates in plains])
        worst = float((ours.windows / windows.mean(axis=0)).min())
        noise = float((windows.min(axis=0) / windows.max(axis=0)).min())
        print(
            f"| {phase.name} | {ours.whole:.1f} | {plain:.1f} | {ours.whole / plain:.2f} "
            f"| {worst:.2f} | {noise:.2f} |"
        )
        rows.append(
            {**asdict(phase), "rate": ours.whole, "plain": plain, "worst": worst, "noise": noise}
        )
    if arguments.out:
        arguments.out.write_text(json.dumps(rows, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=ROOT / "models" / "bench")
    parser.add_argument("--draft_model", type=Path, default=DRAFT)
    parser.add_argument("--clients", type=count, default=32, help="where there are many")
    parser.add_argument("--seconds", type=number(0, above=True), default=20, help="of a phase")
    parser.add_argument("--window", type=number(0, above=True), default=5)
    parser.add_argument("--grace", type=number(0), default=1, help="seconds after a change")
    parser.add_argument("--workload", choices=list(texts.KINDS), default="chat")
    parser.add_argument("--prompt_characters", type=count, default=150)
    parser.add_argument("--output_tokens", type=count, default=128, help="mean")
    parser.add_argument("--temperature", type=number(0), default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="a JSON file")
    arguments = parser.parse_args()
    if arguments.seconds < arguments.grace + arguments.window:
        parser.error(f"--seconds={arguments.seconds:g}; allowed: at least --grace + --window")
    return run_to_end("bench/serving/changes", lambda: bench(arguments))


if __name__ == "__main__":
    sys.exit(main())
