"""Cells of a comparison of servers: one workload at one number of clients, answered by all in turn.

What best_of.py and peers.py share: which cells there are, the requests of each, and the rates that
were found, which are kept in a file as they come.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

import numpy as np

from bench.serving import texts
from bench.serving.client import Server, tokenize
from bench.serving.metrics import Summary
from bench.serving.run import count, number
from bench.serving.sweep import Load, measure
from bench.serving.turns import Interval, rates_of, ratio, ratio_by_round, take_turns
from bench.serving.workload import Planned
from cluster import DRAFT

ROOT = Path(__file__).resolve().parents[2]
SHARED, APART, REMOTE = PLACES = ("shared", "apart", "remote")
# Of every request. No filters: servers have different ones by default.
OPTIONS = {"ignore_eos": True, "top_k": 0, "top_p": 1, "min_p": 0}


@dataclass(frozen=True)
class Cell:
    """What is compared within."""

    place: str
    temperature: float
    workload: str
    clients: int

    def __str__(self) -> str:
        return f"{self.place}, {self.temperature:g}, {self.workload}, {self.clients}"


@dataclass(frozen=True)
class Found:
    """A cell's rates by server and round, and draft tokens accepted a round (medians)."""

    cell: Cell
    rates: dict[str, list[float]]
    accepted: dict[str, float]

    def over(self, ours: str, theirs: str) -> Interval:
        return ratio(self.rates[ours], self.rates[theirs])

    def over_by_round(self, ours: str, theirs: str) -> Interval:
        return ratio_by_round(self.rates[ours], self.rates[theirs])


def seed_of(cell: Cell, number_of_round: int, seed: int) -> list[int]:
    """Other requests in every cell and round; the same for every server."""
    kind = list(texts.KINDS).index(cell.workload)
    place = PLACES.index(cell.place)
    return [seed, number_of_round + 1, place, kind, cell.clients, round(1000 * cell.temperature)]


async def plan(
    cell: Cell, number_of_round: int, tokenizer: Server, arguments: argparse.Namespace
) -> list[Planned]:
    """The requests of one round; `tokenizer` says their tokens."""
    seed = seed_of(cell, number_of_round, arguments.seed)
    amount = max(arguments.min_requests, arguments.waves * cell.clients)
    wanted = texts.asked(
        cell.workload, amount, arguments.prompt_characters, arguments.output_tokens, seed
    )
    seeds = np.random.default_rng(seed).integers(1 << 31, size=amount)
    return [
        Planned(0.0, await tokenize(tokenizer, one.prompt), one.output_tokens, int(own))
        for one, own in zip(wanted, seeds, strict=True)
    ]


async def measure_cell(
    cell: Cell,
    servers: Mapping[str, Server],
    always: Collection[str],
    tokenizer: Server,
    arguments: argparse.Namespace,
    at_work: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext(),
    first_round: int = 0,
) -> Found:
    """What `servers` make of a cell, those in `always` in every round.

    A server's turn lies within `at_work` of its name. `first_round`: of other servers before them.
    """
    plans: dict[int, list[Planned]] = {}
    options = {**OPTIONS, "temperature": cell.temperature}

    async def once(name: str, number_of_round: int) -> Summary:
        if number_of_round not in plans:
            plans[number_of_round] = await plan(cell, number_of_round, tokenizer, arguments)
        load = Load(cell.clients, None)
        with at_work(name):
            return await measure(servers[name], plans[number_of_round], load, options)

    found = await take_turns(
        list(servers), once, arguments.rounds, always, arguments.drop, first_round
    )
    accepted = {
        name: median(s.accepted_per_round or 0 for s in summaries)
        for name, summaries in found.items()
        if summaries
    }
    return Found(cell, rates_of(found), accepted)


def joined(parts: Sequence[Found]) -> Found:
    """One cell's rounds by one set of servers after the other."""
    names = list(parts[0].rates)
    rates = {name: [r for part in parts for r in part.rates.get(name, [])] for name in names}
    accepted = {
        name: median(part.accepted[name] for part in parts if name in part.accepted)
        for name in names
    }
    return Found(parts[0].cell, rates, accepted)


@dataclass
class Record:
    """Cells that were measured: printed, and written to the file where there is one, as they come.

    It begins with those that the file holds.
    """

    file: Path | None
    header: str
    row: Callable[[Found], str]
    picture: Callable[[Sequence[Found]], str]
    found: list[Found] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.file:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self.found = read(self.file)
        print("\n".join([self.header, *map(self.row, self.found)]), flush=True)

    def missing(self, wanted: Iterable[Cell]) -> list[Cell]:
        known = {one.cell for one in self.found}
        return [cell for cell in wanted if cell not in known]

    def add(self, one: Found) -> None:
        self.found.append(one)
        print(self.row(one), flush=True)
        if self.file:
            write(self.file, self.found)
            self.file.with_suffix(".svg").write_text(self.picture(self.found))


def read(path: Path) -> list[Found]:
    """The cells of an earlier run; none where there is no file."""
    if not path.is_file():
        return []
    rows = json.loads(path.read_text())
    return [Found(Cell(**r["cell"]), r["rates"], r["accepted"]) for r in rows]


def write(path: Path, found: Sequence[Found]) -> None:
    """The file is there whole or as it was, however the run ends."""
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps([asdict(f) for f in found], indent=1) + "\n")
    unfinished.replace(path)


def least_and_mean(name: str, ratios: Mapping[Cell, float]) -> str:
    """A line over all cells."""
    mean = float(np.exp(np.mean(np.log(list(ratios.values())))))
    cell, least = min(ratios.items(), key=lambda item: item[1])
    return f"{name}: geometric mean {mean:.2f}, least {least:.2f} ({cell})"


def add_cells(parser: argparse.ArgumentParser, clients: Sequence[int], rounds: int) -> None:
    """The flags that say which cells are measured, and how."""
    parser.add_argument("--model", type=Path, default=ROOT / "models" / "bench")
    parser.add_argument("--draft_model", type=Path, default=DRAFT)
    parser.add_argument(
        "--workloads", nargs="+", choices=list(texts.KINDS), default=list(texts.KINDS)
    )
    parser.add_argument("--clients", type=count, nargs="+", default=list(clients))
    parser.add_argument("--rounds", type=count, default=rounds, help="besides one to warm up")
    parser.add_argument("--waves", type=count, default=2, help="requests of a round over --clients")
    parser.add_argument("--min_requests", type=count, default=4, help="of a round")
    parser.add_argument("--prompt_characters", type=count, default=400, help="about")
    parser.add_argument("--output_tokens", type=count, default=64, help="mean")
    parser.add_argument("--temperatures", type=number(0), nargs="+", default=[0.0, 1.0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="a folder for JSON and picture, kept up to date")
