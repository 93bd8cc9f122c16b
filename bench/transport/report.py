"""Computes medians and ratios from samples, and writes a CSV file and Markdown tables."""

from __future__ import annotations

import csv
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from statistics import median

from systems import MESSAGE, OURS, OURS_THREADED, TRANSPORTS, TREE, UCX, UCX_POSIX_ALONE, Case


@dataclass(frozen=True)
class Sample:
    """One measurement. Latency is one way, half of a round trip."""

    repetition: int
    system: str
    transport: str
    test: str
    bytes: int
    iterations: int
    p50_us: float
    wire: str


def write_csv(path: Path, samples: list[Sample]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([field.name for field in fields(Sample)])
        writer.writerows(astuple(sample) for sample in samples)


class Results:
    def __init__(self, samples: list[Sample]) -> None:
        self.samples = samples
        # SpecFabric's rows are kept even where they were not measured.
        names = [UCX_POSIX_ALONE, UCX, OURS, OURS_THREADED, *(sample.system for sample in samples)]
        self.systems = list(dict.fromkeys(names))

    def by_repetition(self, system: str, case: Case) -> dict[int, float]:
        return {
            s.repetition: s.p50_us
            for s in self.samples
            if s.system == system and Case(s.transport, s.test, s.bytes) == case
        }

    def median_us(self, system: str, case: Case) -> float | None:
        values = self.by_repetition(system, case)
        return median(values.values()) if values else None

    def ratio_of_medians(self, above: str, below: str, case: Case) -> float | None:
        a, b = self.median_us(above, case), self.median_us(below, case)
        return None if a is None or b is None else a / b

    def median_of_ratios(self, above: str, below: str, case: Case) -> float | None:
        """By repetition: within one, both were measured shortly after each other."""
        a, b = self.by_repetition(above, case), self.by_repetition(below, case)
        ratios = [a[repetition] / b[repetition] for repetition in a.keys() & b.keys()]
        return median(ratios) if ratios else None

    def wires(self, system: str, transport: str) -> str:
        found = {s.wire for s in self.samples if s.system == system and s.transport == transport}
        return ", ".join(sorted(found))


def size_name(size: int) -> str:
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


def number(value: float | None) -> str:
    if value is None:
        return "absent"
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def message_table(results: Results, transport: str, sizes: list[int]) -> str:
    cases = [Case(transport, MESSAGE, size) for size in sizes]
    rows = []
    for system in results.systems:
        values = [results.median_us(system, case) for case in cases]
        if system in (OURS, OURS_THREADED) or any(value is not None for value in values):
            rows.append([system, *(number(value) for value in values)])
    for name, system in (("specfabric", OURS), ("by the progress thread", OURS_THREADED)):
        for kind, ratio in (
            ("ratio of medians", results.ratio_of_medians),
            ("median of ratios", results.median_of_ratios),
        ):
            values = [ratio(system, UCX, case) for case in cases]
            rows.append([f"{name} / {UCX}, {kind}", *(number(value) for value in values)])
    return table([f"{transport}, us one way", *(size_name(size) for size in sizes)], rows)


def tree_table(results: Results) -> str:
    """Round trips, because the two directions differ in size."""
    cases = [Case(transport, TREE, 0) for transport in TRANSPORTS]
    rows = []
    for system in results.systems:
        ours = system in (OURS, OURS_THREADED)
        if not ours and all(results.median_us(system, case) is None for case in cases):
            continue
        row = [system]
        for case in cases:
            one_way = results.median_us(system, case)
            row.append(number(None if one_way is None else 2 * one_way))
            if ours:
                row.append("")
                continue
            by_medians = results.ratio_of_medians(system, OURS, case)
            by_ratios = results.median_of_ratios(system, OURS, case)
            row.append(f"{number(by_medians)}; {number(by_ratios)}")
        rows.append(row)
    header = ["64-node tree, us a round trip"]
    for transport in TRANSPORTS:
        header += [transport, "specfabric is x faster: of medians; median"]
    return table(header, rows)


def wire_lines(results: Results) -> str:
    """The wires that were used."""
    lines = []
    for transport in TRANSPORTS:
        wires = {system: results.wires(system, transport) for system in results.systems}
        used = "; ".join(f"{system}: {wire}" for system, wire in wires.items() if wire)
        lines.append(f"Wires of {transport}: {used}.")
    return "\n".join(lines)
