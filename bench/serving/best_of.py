#!/usr/bin/env python3
"""The defaults beside every fixed setting, served: tokens a second, ratios, JSON and a picture.

For each place of the draft a cluster in every setting stays up: the defaults as a user has them;
plain decoding; n-gram lookup alone; and drafts that are asked for, waited for and verified in every
round, with each of --trees, drafting ahead or not, without lookup. Two more leave a part of the
defaults out (no-lookup, no-ahead), two verify by another method (traversal, auto), and one is the
defaults again: what two servers of the same setting differ by. All answer the same requests in turn
(turns.py says how, and what the intervals are); only the one whose turn it is has work. A fixed
setting whose best round stays below --drop of the cell's best median is not measured further.

Places, on the cores that this process may use:

- shared: target, draft, gateway and this client share all cores; the target has a thread for each.
- apart: the target is on the first half of them, the draft, the gateway and this client on the
  other: of two cores one each.
- remote: as apart, and every message takes half of --rtt_ms, to the gateway too. That is a draft
  on another machine as far as its delay goes; the machine is no more than these cores.

Without drafts, too, the target has the cores that it has in that place. Requests, prompts included,
differ from cell to cell and from round to round (texts.py has the kinds), so that no prefix cache
knows them. Each cell is printed, and written to --out, when it is done. A cell that --out already
holds is kept, so that a run which was cut off goes on; begin anew in another folder after changes.
Two servers of one setting differ for as long as they live, by some percent: with --sets, others
take their place, and the intervals hold that too.

    python=$(scripts/setup --print-venv)/bin/python
    scripts/build && scripts/make_bench_pair.py
    $python bench/serving/best_of.py --out /tmp/best_of
    $python bench/serving/best_of.py --places shared --workloads code --clients 1 4 --rounds 3
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT), str(ROOT / "tests" / "e2e"), str(ROOT / "scripts")]

from bench.serving import cells, chart  # noqa: E402
from bench.serving.cells import PLACES, REMOTE, SHARED, Cell, Found  # noqa: E402
from bench.serving.client import Server  # noqa: E402
from bench.serving.clusters_bench import run_to_end  # noqa: E402
from bench.serving.placement import pin, pinned_here  # noqa: E402
from bench.serving.run import count, number  # noqa: E402
from bench.serving.turns import Interval, best, complete  # noqa: E402
from cluster import Cluster, assert_built, start_cluster  # noqa: E402

DEFAULT, AGAIN, PLAIN = "default", "again", "plain"
TRAVERSAL, AUTO = "traversal", "auto"
TREES = ("1", "1,1,1", "1,1,1,1,1", "best:8:4:4", "best:24:4:12")
MOST_CLIENTS = 64  # as --max_sequences and --max_sessions are by default


@dataclass(frozen=True)
class Setting:
    """One way to run a cluster; without a word the defaults."""

    name: str
    drafts: bool = True
    speculation: str = "goodput"
    ngram_lookup: bool = True
    flags: tuple[str, ...] = ()


def settings_of(trees: Sequence[str]) -> list[Setting]:
    found = [
        Setting(DEFAULT),
        Setting(AGAIN),
        Setting(PLAIN, drafts=False, ngram_lookup=False),
        Setting("lookup", drafts=False),
        Setting("no-lookup", ngram_lookup=False),
        Setting("no-ahead", flags=("--ahead=false",)),
        Setting(TRAVERSAL, flags=("--verification=traversal",)),
        Setting(AUTO, flags=("--verification=auto",)),
    ]
    for tree, ahead in product(trees, (False, True)):
        name = f"{tree}+ahead" if ahead else tree
        flags = (f"--tree={tree}", f"--ahead={str(ahead).lower()}")
        found.append(Setting(name, True, "always", False, flags))
    return found


def place_on_cores(cluster: Cluster, cores: Sequence[int]) -> None:
    """The target on the first half, everything else on the other."""
    half = len(cores) // 2
    for target in cluster.targets:
        pin(target.pid, *cores[:half])
    for member in [cluster.gateway, *cluster.drafts]:
        pin(member.pid, *cores[half:])


@contextlib.contextmanager
def clusters(
    place: str, settings: Sequence[Setting], arguments: argparse.Namespace
) -> Iterator[dict[str, Server]]:
    """One for each setting, by its name."""
    cores = sorted(os.sched_getaffinity(0))
    threads = len(cores) if place == SHARED else len(cores) // 2
    flags = [f"--threads={threads}", "--log_level=warning"]
    if (most := max(arguments.clients)) > MOST_CLIENTS:
        flags += [f"--max_sequences={most}", f"--max_sessions={most}"]
    if place == REMOTE:
        flags.append(f"--simulated_rtt={arguments.rtt_ms:g}ms")
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = {}
        for setting in settings:
            cluster = stack.enter_context(
                start_cluster(
                    folder / f"{setting.name}.log",
                    arguments.model,
                    arguments.draft_model,
                    drafts=1 if setting.drafts else 0,
                    dtype="bfloat16",
                    speculation=setting.speculation,
                    ngram_lookup=setting.ngram_lookup,
                    extra=[*flags, *setting.flags],
                )
            )
            if place != SHARED:
                place_on_cores(cluster, cores)
            servers[setting.name] = Server(cluster.url, cluster.model)
        if place != SHARED:
            stack.enter_context(pinned_here(*cores[len(cores) // 2 :]))
        yield servers


HEADER = (
    "| place | temperature | workload | clients | default, tokens/s | plain | best fixed | by "
    "| default / best | by round | default / plain | again / default |\n" + "|---" * 12 + "|"
)


def best_fixed(found: Found) -> str:
    return best(found.rates, [name for name in found.rates if name not in (DEFAULT, AGAIN)])


def row(found: Found) -> str:
    cell, fixed = found.cell, best_fixed(found)
    rates = [median(found.rates[name]) for name in (DEFAULT, PLAIN, fixed)]
    values = [
        cell.place,
        f"{cell.temperature:g}",
        cell.workload,
        str(cell.clients),
        *(f"{rate:.1f}" for rate in rates),
        fixed,
        str(found.over(DEFAULT, fixed)),
        str(found.over_by_round(DEFAULT, fixed)),
        str(found.over(DEFAULT, PLAIN)),
        str(found.over_by_round(AGAIN, DEFAULT)) if AGAIN in found.rates else "",
    ]
    return "| " + " | ".join(values) + " |"


def overview(found: Sequence[Found]) -> str:
    over_best = {f.cell: f.over(DEFAULT, best_fixed(f)).value for f in found}
    over_plain = {f.cell: f.over(DEFAULT, PLAIN).value for f in found}
    lines = {"default / best fixed": over_best, "default / plain": over_plain}
    chose = [f for f in found if f.cell.temperature > 0 and {TRAVERSAL, AUTO} <= f.rates.keys()]
    if chose:  # between the default, which is coupled, and traversal
        lines["auto / the better method"] = {
            f.cell: f.over_by_round(AUTO, best(f.rates, [DEFAULT, TRAVERSAL])).value for f in chose
        }
    return "\n".join(cells.least_and_mean(name, ratios) for name, ratios in lines.items())


def picture(found: Sequence[Found]) -> str:
    """A row of panels a temperature, with a column a place."""
    panels: dict[str, dict[str, dict[int, Interval]]] = {}
    in_order = sorted(found, key=lambda f: (f.cell.temperature, PLACES.index(f.cell.place)))
    for what in ("best fixed", PLAIN):
        for f in in_order:
            title = f"default / {what}: {f.cell.place}, temperature {f.cell.temperature:g}"
            over = f.over(DEFAULT, PLAIN if what == PLAIN else best_fixed(f))
            panels.setdefault(title, {}).setdefault(f.cell.workload, {})[f.cell.clients] = over
    return chart.ratios(panels)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cells.add_cells(parser, clients=(1, 4, 16, 64), rounds=5)
    parser.add_argument("--places", nargs="+", choices=PLACES, default=list(PLACES))
    parser.add_argument("--trees", nargs="+", default=list(TREES), help="of the fixed settings")
    parser.add_argument(
        "--settings", nargs="+", help="besides default and plain; default: all that --trees make"
    )
    parser.add_argument(
        "--drop", type=number(0), default=0.8, help="of the best median; 0: measures all to the end"
    )
    parser.add_argument(
        "--sets", type=count, default=1, help="of servers, one after the other, --rounds with each"
    )
    parser.add_argument("--rtt_ms", type=number(0, above=True), default=1.0, help="at remote")
    arguments = parser.parse_args()
    known = settings_of(arguments.trees)
    names = {setting.name for setting in known}
    wanted = {DEFAULT, PLAIN, *(arguments.settings or names)}
    if unknown := wanted - names:
        parser.error(f"--settings={' '.join(sorted(unknown))}; allowed: {' '.join(sorted(names))}")
    if len(wanted) < 3:
        parser.error("--settings: allowed is at least one besides default and plain")
    arguments.chosen = [setting for setting in known if setting.name in wanted]
    if len(os.sched_getaffinity(0)) < 2:
        parser.error("this bench needs two cores")
    return arguments


def measure_part(
    cell: Cell,
    servers: Mapping[str, Server],
    before: Sequence[Found],
    arguments: argparse.Namespace,
) -> Found:
    """What one set of servers makes of a cell, after what others made of it."""
    names = complete(cells.joined(before).rates) if before else list(servers)
    going = {name: servers[name] for name in names}
    always = [name for name in (DEFAULT, AGAIN, PLAIN) if name in servers]
    measured = cells.measure_cell(
        cell,
        going,
        always,
        servers[PLAIN],
        arguments,
        first_round=len(before) * arguments.rounds,
    )
    return asyncio.run(measured)


def bench(arguments: argparse.Namespace) -> None:
    assert_built()
    file = arguments.out / "best_of.json" if arguments.out else None
    record = cells.Record(file, HEADER, row, picture)
    for place in arguments.places:
        wanted = product(arguments.temperatures, arguments.workloads, arguments.clients)
        missing = record.missing(Cell(place, *rest) for rest in wanted)
        parts: dict[Cell, list[Found]] = {cell: [] for cell in missing}
        for number_of_set in range(arguments.sets if missing else 0):
            with clusters(place, arguments.chosen, arguments) as servers:
                for cell, found in parts.items():
                    found.append(measure_part(cell, servers, found, arguments))
                    if number_of_set + 1 == arguments.sets:
                        record.add(cells.joined(found))
    print(overview(record.found))


def main() -> int:
    arguments = parse_arguments()
    return run_to_end("bench/serving/best_of", lambda: bench(arguments))


if __name__ == "__main__":
    sys.exit(main())
