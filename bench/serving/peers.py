#!/usr/bin/env python3
"""SpecFabric at its defaults beside vLLM on CPUs and llama.cpp's server: same pair, prompts, cores.

All servers stay up; each answers the same requests in turn (turns.py says how, and what the
intervals are), while the peers whose turn it is not are stopped (peer_servers.py). Each has a
thread for every core that this process may use; the client, and SpecFabric's gateway and draft,
share these cores. Printed is, for each cell, the default beside the best of the ways that --vllm
and --llama name: the ratio with its interval, and whether it reaches the goal, which is 2 at 1 and
4 clients and 1.5 at 16. Cells, requests and --out are as in best_of.py.

    python=$(scripts/setup --print-venv)/bin/python
    scripts/setup --peers && scripts/build && scripts/make_bench_pair.py
    $python bench/serving/peers.py --out /tmp/peers
    $python bench/serving/peers.py --workloads code --clients 1 --vllm plain draft:3 draft:5 --llama

llama.cpp is built, and the pair converted for it, when they are first needed (minutes). Every vLLM
takes some 4 GB of memory and a minute to start.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT), str(ROOT / "tests" / "e2e"), str(ROOT / "scripts")]

from bench.decode import llama_cpp  # noqa: E402
from bench.serving import cells, chart, peer_servers  # noqa: E402
from bench.serving.best_of import DEFAULT, PLAIN, clusters, settings_of  # noqa: E402
from bench.serving.cells import SHARED, Cell, Found  # noqa: E402
from bench.serving.client import Server, ServerError  # noqa: E402
from bench.serving.clusters_bench import run_to_end  # noqa: E402
from bench.serving.peer_servers import SYSTEMS, Pair, Peer, Running, Way  # noqa: E402
from bench.serving.turns import Interval, best  # noqa: E402
from cluster import assert_built  # noqa: E402

# Of the default over each peer's best, by clients.
GOALS = {1: 2.0, 4: 2.0, 16: 1.5}


@dataclass(frozen=True)
class Servers:
    """All that are up; those in `peers` are paused."""

    by_name: dict[str, Server]
    peers: dict[str, Running]

    @contextlib.contextmanager
    def at_work(self, name: str) -> Iterator[None]:
        peer = self.peers.get(name)
        if peer is None:
            yield
            return
        peer.resume()
        try:
            yield
        finally:
            peer.pause()


def peers_of(arguments: argparse.Namespace) -> list[Peer]:
    cores = sorted(os.sched_getaffinity(0))
    clients = max(arguments.clients)
    found = []
    if arguments.vllm:
        if not arguments.vllm_python.is_file():
            raise ServerError(0, f"{arguments.vllm_python} is not there: run scripts/setup --peers")
        pair = Pair(arguments.model, arguments.draft_model, cores, clients)
        found += [peer_servers.vllm(arguments.vllm_python, pair, way) for way in arguments.vllm]
    if arguments.llama:
        arguments.work.mkdir(parents=True, exist_ok=True)
        (program,) = llama_cpp.build(arguments.work, len(cores), "llama-server")
        target, draft = (
            llama_cpp.convert(arguments.work, checkpoint, "bfloat16")
            for checkpoint in (arguments.model, arguments.draft_model)
        )
        pair = Pair(target, draft, cores, clients)
        found += [peer_servers.llama(program, pair, way) for way in arguments.llama]
    return found


@contextlib.contextmanager
def servers_of(peers: Sequence[Peer], arguments: argparse.Namespace) -> Iterator[Servers]:
    ours = [setting for setting in settings_of(()) if setting.name in (DEFAULT, PLAIN)]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        running = {}
        for peer in peers:
            print(f"starting {peer.name} ...", file=sys.stderr)
            running[peer.name] = stack.enter_context(peer_servers.started(peer, folder))
        by_name = stack.enter_context(clusters(SHARED, ours, arguments))
        yield Servers(by_name | {name: r.server for name, r in running.items()}, running)


def best_of(found: Found, system: str) -> str | None:
    """The name of a system's best server; None where it has none."""
    names = [name for name in found.rates if name.startswith(f"{system} ")]
    return best(found.rates, names) if names else None


HEADER = (
    "| temperature | workload | clients | default, tokens/s | plain "
    + "".join(f"| {system} | by | default / {system} | by round | goal " for system in SYSTEMS)
    + "|\n"
    + "|---" * (5 + 5 * len(SYSTEMS))
    + "|"
)


def goal_of(clients: int, over: Interval) -> str:
    goal = GOALS.get(clients)
    if goal is None:
        return ""
    return f"{goal:g}: {'reached' if over.value >= goal else 'missed'}"


def row(found: Found) -> str:
    cell = found.cell
    values = [f"{cell.temperature:g}", cell.workload, str(cell.clients)]
    values += [f"{median(found.rates[name]):.1f}" for name in (DEFAULT, PLAIN)]
    for system in SYSTEMS:
        name = best_of(found, system)
        if name is None:
            values += [""] * 5
            continue
        over = found.over(DEFAULT, name)
        values += [f"{median(found.rates[name]):.1f}", name.removeprefix(f"{system} "), str(over)]
        values += [str(found.over_by_round(DEFAULT, name)), goal_of(cell.clients, over)]
    return "| " + " | ".join(values) + " |"


def overview(found: Sequence[Found]) -> str:
    lines = []
    for system in SYSTEMS:
        over = {f.cell: f.over(DEFAULT, name).value for f in found if (name := best_of(f, system))}
        if over:
            lines.append(cells.least_and_mean(f"default / {system}", over))
    return "\n".join(lines)


def picture(found: Sequence[Found]) -> str:
    panels: dict[str, dict[str, dict[int, Interval]]] = {}
    for system in SYSTEMS:
        for f in found:
            if name := best_of(f, system):
                title = f"default / {system}'s best, temperature {f.cell.temperature:g}"
                curves = panels.setdefault(title, {}).setdefault(f.cell.workload, {})
                curves[f.cell.clients] = f.over(DEFAULT, name)
    return chart.ratios(panels)


def checked(parse: Callable[[str], Way]) -> Callable[[str], Way]:
    """As argparse wants it."""

    def parsed(word: str) -> Way:
        try:
            return parse(word)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return parsed


def parse_arguments() -> argparse.Namespace:
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "specfabric"
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cells.add_cells(parser, clients=(1, 4, 16), rounds=5)
    add_way = partial(parser.add_argument, nargs="*", metavar="KIND[:TOKENS]")
    add_way(
        "--vllm",
        type=checked(peer_servers.vllm_way),
        default=[Way("plain"), Way("ngram", 5), Way("draft", 5)],
        help="plain, ngram:N, draft:N; nothing: without vLLM",
    )
    add_way(
        "--llama",
        type=checked(peer_servers.llama_way),
        default=[Way("plain"), Way("draft", 8), Way("ngram-mod")],
        help="plain, draft[:N], ngram-...; nothing: without llama.cpp",
    )
    parser.add_argument(
        "--vllm_python", type=Path, default=cache / "peers" / "vllm" / "bin" / "python"
    )
    parser.add_argument(
        "--work", type=Path, default=cache / "bench-decode", help="where llama.cpp is built"
    )
    # best_of.py's; peers are measured to the end.
    parser.set_defaults(drop=0.0)
    arguments = parser.parse_args()
    if not arguments.vllm and not arguments.llama:
        parser.error("--vllm and --llama: allowed is at least one way of one")
    return arguments


def bench(arguments: argparse.Namespace) -> None:
    assert_built()
    file = arguments.out / "peers.json" if arguments.out else None
    record = cells.Record(file, HEADER, row, picture)
    wanted = product(arguments.temperatures, arguments.workloads, arguments.clients)
    missing = record.missing(Cell(SHARED, *rest) for rest in wanted)
    if missing:
        with servers_of(peers_of(arguments), arguments) as servers:
            for cell in missing:
                measured = cells.measure_cell(
                    cell,
                    servers.by_name,
                    servers.by_name,
                    servers.by_name[PLAIN],
                    arguments,
                    servers.at_work,
                )
                record.add(asyncio.run(measured))
    print(overview(record.found))


def main() -> int:
    arguments = parse_arguments()
    return run_to_end("bench/serving/peers", lambda: bench(arguments))


if __name__ == "__main__":
    sys.exit(main())
