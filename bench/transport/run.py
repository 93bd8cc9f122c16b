#!/usr/bin/env python3
"""SpecFabric's transport beside ucx_perftest, gRPC, ZeroMQ and raw TCP, on one machine.

Every measurement is a fresh pair of processes, one on each of two cores. Repetitions are
interleaved and their order changes, so that a change of the machine's speed meets everyone. Prints
Markdown tables of medians and writes transport.csv (every sample) and transport.svg.

    scripts/setup --bench && scripts/build && bench/transport/run.py
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from arguments import parse_with_common
from chart import svg
from pair import BenchError, run_pair
from report import Results, Sample, message_table, tree_table, wire_lines, write_csv
from systems import MESSAGE, SHARED_MEMORY, TRANSPORTS, TREE, Case, Run, System, all_systems

SIZES = [8, 4 << 10, 256 << 10, 4 << 20]
CASES = [
    *(Case(transport, MESSAGE, size) for transport in TRANSPORTS for size in SIZES),
    *(Case(transport, TREE, 0) for transport in TRANSPORTS),
]
# Enough that a measurement takes a few tenths of a second.
BYPASS_ITERATIONS = {0: 40_000, 8: 200_000, 4 << 10: 100_000, 256 << 10: 5_000, 4 << 20: 300}
KERNEL_ITERATIONS = {0: 4_000, 8: 4_000, 4 << 10: 4_000, 256 << 10: 1_000, 4 << 20: 80}
WARM_UP_SHARE = 10


@dataclass(frozen=True)
class Plan:
    """Shared by all measurements of one call."""

    cores: tuple[int, int]
    scale: float
    repetitions: int
    ucx: dict[str, str]


def planned_run(system: System, case: Case, plan: Plan, directory: Path) -> Run:
    bypasses = system.bypasses_kernel and case.transport == SHARED_MEMORY
    planned = (BYPASS_ITERATIONS if bypasses else KERNEL_ITERATIONS)[case.bytes]
    iterations = max(10, round(planned * plan.scale))
    warm_up = max(5, iterations // WARM_UP_SHARE)
    return Run(case, iterations, warm_up, *plan.cores, plan.ucx, directory)


def measure(system: System, case: Case, plan: Plan, repetition: int) -> Sample:
    with tempfile.TemporaryDirectory(prefix="transport-bench-") as directory:
        run = planned_run(system, case, plan, Path(directory))
        output = run_pair(system.name, system.pair(system.binary, run))
    reading = system.read(output, case)
    return Sample(
        repetition,
        system.name,
        case.transport,
        case.test,
        case.bytes,
        run.iterations,
        reading.p50_us,
        reading.wire,
    )


def rotated(systems: list[System], by: int) -> list[System]:
    return [systems[(i + by) % len(systems)] for i in range(len(systems))]


def order(systems: list[System], repetition: int) -> list[System]:
    """Keeps the systems over UCX together, because their ratios matter most; rotates the rest."""
    over_ucx = rotated([s for s in systems if s.bypasses_kernel], repetition)
    others = rotated([s for s in systems if not s.bypasses_kernel], repetition)
    return others + over_ucx if repetition % 2 else over_ucx + others


def measure_all(systems: list[System], plan: Plan) -> list[Sample]:
    samples = []
    for repetition in range(plan.repetitions):
        begin = time.monotonic()
        for case in CASES:
            for system in order(systems, repetition):
                if system.cases(case):
                    samples.append(measure(system, case, plan, repetition))
        elapsed = time.monotonic() - begin
        print(
            f"repetition {repetition + 1} of {plan.repetitions}: {elapsed:.0f} s", file=sys.stderr
        )
    # In the order of the tables, not of the last rotation.
    names = [system.name for system in systems]
    return sorted(samples, key=lambda sample: names.index(sample.system))


def check_binaries(systems: list[System]) -> None:
    for system in systems:
        if os.access(system.binary, os.X_OK):
            continue
        hint = "scripts/setup --bench && scripts/build"
        if system.ours:
            hint = "scripts/build, or leave it out by --peers"
        raise BenchError(f"{system.name}: no program {system.binary}: {hint}")


def prepare_folder(path: Path) -> None:
    """Checked before minutes of measuring, not after."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BenchError(f"--out={path}: {error.strerror}; allowed: a folder to write to") from None
    if not os.access(path, os.W_OK):
        raise BenchError(f"--out={path}: not writable; allowed: a folder to write to")


def parse_cores(text: str) -> tuple[int, int]:
    allowed = sorted(os.sched_getaffinity(0))
    try:
        server, client = (int(core) for core in text.split(","))
    except ValueError:
        raise BenchError(f"--cores={text}; allowed: two numbers, e.g. 0,1") from None
    if server == client or not {server, client} <= set(allowed):
        raise BenchError(f"--cores={text}; allowed: two different ones of {allowed}")
    return server, client


def parse_ucx(settings: list[str]) -> dict[str, str]:
    parsed = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not name.startswith("UCX_") or not equals:
            raise BenchError(f"--ucx={setting}; allowed: UCX_NAME=VALUE")
        if name == "UCX_TLS":
            raise BenchError(f"--ucx={setting}; allowed: any but UCX_TLS, which each table sets")
        parsed[name] = value
    return parsed


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", action="store_true", help="measure all but specfabric")
    parser.add_argument("--cores", default="0,1", help="server's and client's (default 0,1)")
    parser.add_argument(
        "--ucx",
        action="append",
        default=[],
        metavar="UCX_NAME=VALUE",
        help="one more setting, for ucx_perftest and specfabric alike; may be repeated",
    )
    parser.add_argument("--ucx_perftest", type=Path, help="default: the one on the PATH")
    return parse_with_common(parser, out="where CSV and SVG go")


def bench(arguments: argparse.Namespace) -> None:
    plan = Plan(
        parse_cores(arguments.cores),
        arguments.scale,
        arguments.repetitions,
        parse_ucx(arguments.ucx),
    )
    ucx_perftest = arguments.ucx_perftest or Path(shutil.which("ucx_perftest") or "ucx_perftest")
    systems = all_systems(arguments.build, ucx_perftest)
    if arguments.peers:
        systems = [system for system in systems if not system.ours]
    check_binaries(systems)
    prepare_folder(arguments.out)
    samples = measure_all(systems, plan)
    results = Results(samples)
    write_csv(arguments.out / "transport.csv", samples)
    (arguments.out / "transport.svg").write_text(svg(results, SIZES))
    for transport in TRANSPORTS:
        print(message_table(results, transport, SIZES), end="\n\n")
    print(tree_table(results), end="\n\n")
    print(wire_lines(results))


def main() -> int:
    arguments = parse_arguments()
    # Ends like an interrupt, through every clean-up.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        bench(arguments)
    except BenchError as error:
        print(f"bench/transport: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


if __name__ == "__main__":
    sys.exit(main())
