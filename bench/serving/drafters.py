#!/usr/bin/env python3
"""The demo target's drafters side by side: how much of their trees is accepted, and how soon.

Clusters of one target stay up side by side, each with one draft worker of another kind, and one
without drafts. All answer the same held-out text, one after the other, one request at a time, in an
order that rotates from repetition to repetition. Printed for each are medians: tokens a second
against those of the cluster without drafts from the same repetition, draft tokens accepted a round,
the worker's time from request to reply, and its passes a reply; and the rounds without the draft
they had asked for, in %: on a machine that does other work some replies come too late.

Then the same of trees of all --trees, drafted just in time (nothing is ready before it is asked
for), and of those the acceptance at equal draft time: for each drafter the tree of which most is
accepted among those whose reply takes no longer than each of --budgets_ms, in the median.

Then how drafters recover that have lost what they knew of a text (recovery.py).

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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT), str(ROOT / "tests" / "e2e"), str(ROOT / "scripts")]

from bench.serving.recovery import layers_read, print_cached, print_killed  # noqa: E402
from cluster import DRAFTERS, TARGET, Cluster, start_cluster  # noqa: E402
from exposition import value_of  # noqa: E402
from train_demo_models import read_corpus  # noqa: E402

PLAIN = "plain"
PARTS = ("side_by_side", "equal_time", "recovery")


@dataclass(frozen=True)
class Sample:
    kind: str
    repetition: int
    tokens_per_second: float
    accepted_per_round: float
    reply_ms: float
    passes_per_reply: float
    missed: float  # of the rounds


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
    found = {
        name: sum(value_of(draft.admin, f"specfabric_{name}") for draft in cluster.drafts)
        for name in names
    }
    found["misses"] = value_of(cluster.targets[0].admin, "specfabric_draft_misses_total")
    return found


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
        grown["misses"] / max(1, rounds) if cluster.drafts else 0.0,
    )


def print_table(samples: list[Sample]) -> None:
    plain = {s.repetition: s.tokens_per_second for s in samples if s.kind == PLAIN}
    columns = {"drafter": 8, "tokens/s": 9, "/ plain": 8, "accepted": 9, "ms": 6, "passes": 7}
    print(" ".join(f"{name:>{width}}" for name, width in {**columns, "missed": 7}.items()))
    for kind in dict.fromkeys(s.kind for s in samples):
        own = [s for s in samples if s.kind == kind]
        ratio = median(s.tokens_per_second / plain[s.repetition] for s in own)
        print(
            f"{kind:>8} {median(s.tokens_per_second for s in own):9.1f} {ratio:8.2f} "
            f"{median(s.accepted_per_round for s in own):9.2f} "
            f"{median(s.reply_ms for s in own):6.2f} "
            f"{median(s.passes_per_reply for s in own):7.2f} "
            f"{median(s.missed for s in own):7.1%}"
        )


@contextlib.contextmanager
def clusters(
    kinds: list[str], arguments: argparse.Namespace, folder: Path, extra: Sequence[str] = ()
) -> Iterator[dict[str, Cluster]]:
    with contextlib.ExitStack() as stack:
        yield {
            kind: stack.enter_context(
                start_cluster(
                    folder / f"{kind}.log",
                    arguments.model,
                    DRAFTERS.get(kind),
                    drafts=0 if kind == PLAIN else 1,
                    dtype="bfloat16",
                    speculation=arguments.speculation,
                    extra=extra,
                )
            )
            for kind in kinds
        }


def side_by_side(prompts: list[str], arguments: argparse.Namespace, folder: Path) -> None:
    kinds = [PLAIN, *arguments.drafters]
    with clusters(kinds, arguments, folder) as up:
        samples = []
        for repetition in range(arguments.repetitions):
            turn = repetition % len(kinds)
            for kind in kinds[turn:] + kinds[:turn]:
                samples.append(measure(kind, repetition, up[kind], prompts, arguments))
    print_table(samples)


@dataclass(frozen=True)
class Tree:
    """A shape of trees, as one drafter drafts it."""

    shape: str
    reply_ms: float
    accepted_per_round: float
    missed: float


def measure_trees(
    prompts: list[str], arguments: argparse.Namespace, folder: Path
) -> dict[str, list[Tree]]:
    found: dict[str, list[Tree]] = {kind: [] for kind in arguments.drafters}
    for shape in arguments.trees:
        extra = [f"--tree={shape}", "--ahead=false"]
        with clusters(arguments.drafters, arguments, folder, extra) as up:
            for kind, cluster in up.items():
                samples = [
                    measure(kind, repetition, cluster, prompts, arguments)
                    for repetition in range(arguments.repetitions)
                ]
                found[kind].append(
                    Tree(
                        shape,
                        median(s.reply_ms for s in samples),
                        median(s.accepted_per_round for s in samples),
                        median(s.missed for s in samples),
                    )
                )
    return found


def print_trees(found: dict[str, list[Tree]], budgets_ms: list[float]) -> None:
    print(f"\n{'drafter':>8} {'tree':>14} {'ms':>6} {'accepted':>9} {'/ ms':>6} {'missed':>7}")
    for kind, trees in found.items():
        for tree in trees:
            print(
                f"{kind:>8} {tree.shape:>14} {tree.reply_ms:6.2f} "
                f"{tree.accepted_per_round:9.2f} {tree.accepted_per_round / tree.reply_ms:6.2f} "
                f"{tree.missed:7.1%}"
            )
    print("\nmost accepted a round within a draft time")
    print(f"{'ms':>8} " + " ".join(f"{kind:>22}" for kind in found))
    for budget in budgets_ms:
        cells = []
        for trees in found.values():
            within = [tree for tree in trees if tree.reply_ms <= budget]
            best = max(within, key=lambda tree: tree.accepted_per_round, default=None)
            cells.append(f"{best.accepted_per_round:.2f} ({best.shape})" if best else "")
        print(f"{budget:8.2f} " + " ".join(f"{cell:>22}" for cell in cells), flush=True)


def recovery(prompts: list[str], arguments: argparse.Namespace, folder: Path) -> None:
    for kind in arguments.drafters:
        if layers_read(DRAFTERS[kind]) > 0:
            with clusters([kind], arguments, folder) as up:
                print_cached(kind, up[kind], prompts, arguments)
        print_killed(kind, DRAFTERS[kind], folder, prompts, arguments)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    here = [kind for kind, folder in DRAFTERS.items() if (folder / "config.json").is_file()]
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--model", type=Path, default=TARGET)
    parser.add_argument("--drafters", nargs="+", choices=here, default=here)
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--prompt_characters", type=int, default=1500)
    parser.add_argument("--max_tokens", type=int, default=96)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--speculation", choices=("goodput", "always"), default="always")
    parser.add_argument(
        "--trees",
        nargs="+",
        default=["1", "1,1", "1,1,1", "1,1,1,1,1", "1,1,1,1,1,1,1", "best:8:4:4", "best:16:4:8"],
    )
    parser.add_argument("--budgets_ms", type=float, nargs="+", default=[0.5, 0.75, 1, 1.5, 2, 3])
    arguments = parser.parse_args()
    prompts = prompts_of(arguments.prompts, arguments.prompt_characters)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if "side_by_side" in arguments.parts:
            side_by_side(prompts, arguments, folder)
        if "equal_time" in arguments.parts:
            print_trees(measure_trees(prompts, arguments, folder), arguments.budgets_ms)
        if "recovery" in arguments.parts:
            recovery(prompts, arguments, folder)


if __name__ == "__main__":
    main()
