#!/usr/bin/env python3
"""Drafters with a core of their own beside drafters that share their target's.

The target computes with one thread on the first of two cores, the gateway and this client are on
the second. A *remote* drafter has the second core too; a *co-located* one is on the target's, as a
drafter is that runs on its target's own GPU: its passes and the target's steps take turns, and it
does not draft ahead. Both are processes of their own, which frames pass in the same way, so that
what differs is whose device the draft takes.

For each drafter a cluster of either kind and one without drafts stay up side by side and answer the
same held-out text in turn, in an order that rotates from repetition to repetition. Printed are
medians: tokens a second, and against those without drafts from the same repetition; draft tokens
accepted a round; the target's wait for a tree that comes in time (`draft_wait` of
`specfabric_round_span_seconds`), which is the exposed draft time of a round; the worker's own time
for it; and hidden states a second, and their bytes a token as counted and as the drafter's
config.json and the target's say: layers x hidden size x 2.

    python=$(scripts/setup --print-venv)/bin/python
    scripts/build && scripts/make_bench_pair.py
    $python bench/serving/placement.py --model models/bench
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT), str(ROOT / "tests" / "e2e")]

from bench.serving.drafters import PLAIN, prompts_of  # noqa: E402
from bench.serving.recovery import layers_read  # noqa: E402
from cluster import DRAFTERS, TARGET, Cluster, start_cluster  # noqa: E402
from exposition import families_of  # noqa: E402

REMOTE, COLOCATED = "remote", "co-located"
PLACES = (PLAIN, REMOTE, COLOCATED)
TARGETS_CORE, OTHER_CORE = 0, 1  # of those that this process may use


@dataclass(frozen=True)
class Counters:
    """Of a cluster, since its start."""

    rounds: float
    accepted: float
    waits: float
    wait_seconds: float
    replies: float
    reply_seconds: float
    states: float
    state_bytes: float


@dataclass(frozen=True)
class Sample:
    place: str
    at_once: int
    repetition: int
    seconds: float
    tokens: int
    counted: Counters

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds


def pin(pid: int, *cores: int) -> None:
    """Binds all threads that a process has; those that they start are where they are."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread.name), cores)


@contextlib.contextmanager
def pinned_here(*cores: int) -> Iterator[None]:
    """Binds this process for a while."""
    before = os.sched_getaffinity(0)
    pin(os.getpid(), *cores)
    try:
        yield
    finally:
        pin(os.getpid(), *before)


def totals(address: str) -> dict[str, float]:
    """All samples of a process by name, of the round spans those of `draft_wait`."""
    found: dict[str, float] = {}
    for family in families_of(address):
        for sample in family.samples:
            if sample.labels.get("span", "draft_wait") == "draft_wait":
                found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


def counters(cluster: Cluster) -> Counters:
    target = totals(cluster.targets[0].admin)
    draft = totals(cluster.drafts[0].admin) if cluster.drafts else {}
    return Counters(
        rounds=target["specfabric_rounds_total"],
        accepted=target["specfabric_accepted_tokens_total"],
        waits=target["specfabric_round_span_seconds_count"],
        wait_seconds=target["specfabric_round_span_seconds_sum"],
        replies=draft.get("specfabric_draft_seconds_count", 0.0),
        reply_seconds=draft.get("specfabric_draft_seconds_sum", 0.0),
        states=target["specfabric_hidden_states_sent_total"],
        state_bytes=target["specfabric_hidden_states_sent_bytes_total"],
    )


def bytes_a_token(drafter: Path, target: Path) -> int:
    hidden = json.loads((target / "config.json").read_text())["hidden_size"]
    return 2 * layers_read(drafter) * int(hidden)


def measure(
    place: str, at_once: int, repetition: int, cluster: Cluster, arguments: argparse.Namespace
) -> Sample:
    def tokens_of(prompt: str) -> int:
        answer = cluster.complete(
            prompt=prompt, max_tokens=arguments.max_tokens, temperature=0, ignore_eos=True
        )
        return int(answer["usage"]["completion_tokens"])

    before, begin = counters(cluster), time.monotonic()
    with ThreadPoolExecutor(at_once) as clients:
        tokens = sum(clients.map(tokens_of, arguments.texts))
    seconds = time.monotonic() - begin
    after = counters(cluster)
    grown = {key: value - getattr(before, key) for key, value in vars(after).items()}
    return Sample(place, at_once, repetition, seconds, tokens, Counters(**grown))


@contextlib.contextmanager
def clusters(
    kind: str, folder: Path, arguments: argparse.Namespace
) -> Iterator[dict[str, Cluster]]:
    cores = sorted(os.sched_getaffinity(0))
    with contextlib.ExitStack() as stack:
        up = {}
        for place in PLACES:
            up[place] = cluster = stack.enter_context(
                start_cluster(
                    folder / f"{kind} {place}.log",
                    arguments.model,
                    DRAFTERS[kind],
                    drafts=0 if place == PLAIN else 1,
                    dtype="bfloat16",
                    speculation=arguments.speculation,
                    extra=[
                        "--threads=1",
                        f"--tree={arguments.tree}",
                        f"--ahead={str(place == REMOTE).lower()}",
                    ],
                )
            )
            pin(cluster.targets[0].pid, cores[TARGETS_CORE])
            pin(cluster.gateway.pid, cores[OTHER_CORE])
            for draft in cluster.drafts:
                pin(draft.pid, cores[TARGETS_CORE if place == COLOCATED else OTHER_CORE])
        stack.enter_context(pinned_here(cores[OTHER_CORE]))
        yield up


HEADER = (
    "| drafter | place | at once | tokens/s | / plain | accepted | wait ms | draft ms "
    "| states/s | bytes | as computed |\n" + "|---" * 11 + "|"
)


def row(kind: str, samples: list[Sample], plain: list[Sample], computed: int) -> str:
    def middle(top: str, bottom: str, scale: float = 1.0) -> str:
        ratios = [
            scale * getattr(s.counted, top) / getattr(s.counted, bottom)
            for s in samples
            if getattr(s.counted, bottom) > 0
        ]
        return f"{median(ratios):.2f}" if ratios else ""

    rates = {s.repetition: s.tokens_per_second for s in plain}
    over_plain = median(s.tokens_per_second / rates[s.repetition] for s in samples)
    states = median(s.counted.states / s.seconds for s in samples)
    cells = [
        kind,
        samples[0].place,
        str(samples[0].at_once),
        f"{median(s.tokens_per_second for s in samples):.1f}",
        f"{over_plain:.2f}",
        middle("accepted", "rounds"),
        middle("wait_seconds", "waits", 1e3),
        middle("reply_seconds", "replies", 1e3),
        f"{states:.0f}" if states else "",
        middle("state_bytes", "states"),
        str(computed) if computed else "",
    ]
    return "| " + " | ".join(cells) + " |"


def compare(kind: str, folder: Path, arguments: argparse.Namespace) -> None:
    computed = bytes_a_token(DRAFTERS[kind], arguments.model)
    with clusters(kind, folder, arguments) as up:
        for at_once in arguments.at_once:
            samples: dict[str, list[Sample]] = {place: [] for place in PLACES}
            for repetition in range(-1, arguments.repetitions):  # the first warms up
                turn = repetition % len(PLACES)
                for place in PLACES[turn:] + PLACES[:turn]:
                    sample = measure(place, at_once, repetition, up[place], arguments)
                    if repetition >= 0:
                        samples[place].append(sample)
            for place in PLACES:
                print(row(kind, samples[place], samples[PLAIN], computed), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    here = [kind for kind, folder in DRAFTERS.items() if (folder / "config.json").is_file()]
    parser.add_argument("--model", type=Path, default=TARGET)
    parser.add_argument("--drafters", nargs="+", choices=here, default=here)
    parser.add_argument("--at_once", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--prompt_characters", type=int, default=400)
    parser.add_argument("--max_tokens", type=int, default=96)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--tree", default="1,1,1,1,1")
    parser.add_argument("--speculation", choices=("goodput", "always"), default="always")
    arguments = parser.parse_args()
    if len(os.sched_getaffinity(0)) < 2:
        parser.error("this bench needs two cores")
    arguments.texts = prompts_of(arguments.prompts, arguments.prompt_characters)
    print(HEADER, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for kind in arguments.drafters:
            compare(kind, Path(folder), arguments)


if __name__ == "__main__":
    main()
