#!/usr/bin/env python3
"""SpecFabric's transport beside ucx_perftest over RDMA verbs, in a virtual machine.

tests/transport/rdma_vm.sh boots the guest, which has two Soft-RoCE devices: an RDMA card made of
the guest's kernel, so that only the ratios mean something. Repetitions are interleaved. Prints a
Markdown table and writes transport_verbs.csv (every sample).

    scripts/setup --vm && scripts/build && bench/transport/verbs.py
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from arguments import parse_with_common
from pair import BenchError
from report import Results, Sample, number, size_name, table, write_csv
from systems import MESSAGE, OURS, ROOT, UCX, Case

VERBS = "verbs"
# Enough that a measurement takes about a second in an emulated guest.
ITERATIONS = {8: 2_000, 4 << 10: 1_000, 256 << 10: 60, 4 << 20: 10}
GUEST_SECONDS = 3_000


def guest_command(build: Path, repetitions: int, scale: float) -> list[str]:
    perftest = build / "specfabric-perftest"
    if not os.access(perftest, os.X_OK):
        raise BenchError(f"no program {perftest}: scripts/build")
    libraries = build / "verbs" / "bench"
    collect = ROOT / "tests" / "transport" / "rdma_vm_libraries.sh"
    subprocess.run([str(collect), str(libraries), str(perftest)], check=True)
    cases = [f"{size}:{max(5, round(n * scale))}" for size, n in ITERATIONS.items()]
    script = str(ROOT / "bench" / "transport" / "verbs_guest.sh")
    environment = f"LD_LIBRARY_PATH={libraries}"
    return ["env", environment, script, str(perftest), str(repetitions), *cases]


def read_sample(line: str) -> Sample:
    _, repetition, system, size, iterations, p50_us, wire = line.split(",")
    return Sample(
        int(repetition), system, VERBS, MESSAGE, int(size), int(iterations), float(p50_us), wire
    )


def measure(command: list[str]) -> list[Sample]:
    """Prints the guest's output while it runs."""
    machine = str(ROOT / "tests" / "transport" / "rdma_vm.sh")
    checked = subprocess.run([machine, "--check"], capture_output=True, text=True)
    if checked.returncode != 0:
        raise BenchError(checked.stderr.strip())
    samples = []
    with subprocess.Popen(
        [machine, str(ROOT), *command],
        env={"RDMA_VM_TIMEOUT": str(GUEST_SECONDS), **os.environ},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    ) as guest:
        assert guest.stdout is not None
        try:
            for line in guest.stdout:
                if line.startswith("sample,"):
                    samples.append(read_sample(line.strip()))
                print(line, end="", file=sys.stderr)
        except BaseException:
            guest.terminate()
            raise
    if guest.returncode != 0:
        raise BenchError(f"the guest ended with {guest.returncode}")
    return samples


def verbs_table(samples: list[Sample]) -> str:
    """Uses each system's best repetition: a guest that shares its cores with other work is paused
    for milliseconds at a time."""
    results = Results(samples)
    cases = [Case(VERBS, MESSAGE, size) for size in ITERATIONS]

    def best(system: str, case: Case) -> float:
        return min(results.by_repetition(system, case).values())

    rows = []
    for system in (UCX, OURS):
        rows.append([system, *(number(results.median_us(system, case)) for case in cases)])
        rows.append([f"{system}, best", *(number(best(system, case)) for case in cases)])
    ratios: dict[str, list[float | None]] = {
        "ratio of medians": [results.ratio_of_medians(OURS, UCX, case) for case in cases],
        "median of ratios": [results.median_of_ratios(OURS, UCX, case) for case in cases],
        "ratio of the best": [best(OURS, case) / best(UCX, case) for case in cases],
    }
    for name, values in ratios.items():
        rows.append([f"specfabric / {UCX}, {name}", *(number(value) for value in values)])
    header = [f"{VERBS}, us one way", *(size_name(size) for size in ITERATIONS)]
    wires = "; ".join(f"{system}: {results.wires(system, VERBS)}" for system in (UCX, OURS))
    return f"{table(header, rows)}\n\nWires: {wires}."


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    return parse_with_common(parser, out="where the CSV goes")


def main() -> int:
    arguments = parse_arguments()
    try:
        command = guest_command(arguments.build, arguments.repetitions, arguments.scale)
        samples = measure(command)
        arguments.out.mkdir(parents=True, exist_ok=True)
        write_csv(arguments.out / "transport_verbs.csv", samples)
        print(verbs_table(samples))
    except (BenchError, OSError) as error:
        print(f"bench/transport/verbs: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
