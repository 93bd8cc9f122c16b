"""Checks a CUDA build on a machine with a GPU: kernels against the CPU, texts, speed.

One table at the end says what was found beside its limit; --out holds the same for programs. Every
part has a budget: what takes longer is ended and marked "cut", with what it had found. All of it
takes under 6 minutes.

Needs no network and installs nothing, so that a build may be carried to a machine, as a build tree
or as an archive with programs in one folder: CUDA's libraries are those of LD_LIBRARY_PATH, or of
the packages of this Python. What compares with torch needs torch and numpy; models of real shapes
have random weights in memory, without a disk.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from gpucheck import parts, serving, transport
from gpucheck.programs import Programs, library_path
from gpucheck.runner import Planned, run_parts
from gpucheck.table import Results, render

ROOT = Path(__file__).resolve().parents[2]
TOTAL_SECONDS = 350.0
PASS_SECONDS = {"random:llama-1b": 20, "random:llama-8b": 30, "random:qwen3-8b": 26}


def plan(settings: parts.Settings) -> list[Planned]:
    """What matters most comes first, as the time in all may not suffice."""
    bodies = [
        ("peaks", 20, partial(parts.peaks, settings=settings)),
        ("tests", 42, partial(parts.kernel_tests, settings=settings)),
        ("torch", 36, partial(parts.torch_passes, settings=settings)),
    ]
    for model in settings.models:
        body = partial(parts.passes, settings=settings, model=model)
        bodies.append((f"passes-{model}", PASS_SECONDS.get(model, 30), body))
    bodies += [
        ("kernels", 10, partial(parts.kernels, settings=settings)),
        ("serving", 70, partial(serving.serving, settings=settings)),
        ("transport", 20, partial(transport.transport, settings=settings)),
        ("texts", 22, partial(parts.texts, settings=settings)),
        ("numerics", 12, partial(parts.numerics, settings=settings)),
        ("profile", 20, partial(parts.profile, settings=settings)),
        ("sanitizer", 18, partial(parts.sanitizer, settings=settings)),
    ]
    return [Planned(name, budget, body) for name, budget, body in bodies]


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(","))


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="gpu_check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    unpacked = ROOT / "build"  # of an archive
    default = unpacked if (unpacked / "step_bench").exists() else ROOT / "build-cuda"
    add = parser.add_argument
    add("build", nargs="?", type=Path, default=default, metavar="BUILD")
    add("--out", type=Path, default=Path("gpu_check.json"), help="the results, in JSON")
    add("--only", help="parts to run, separated by commas (a beginning of their names is enough)")
    add("--skip", help="parts to leave out, likewise")
    add("--list", action="store_true", help="names the parts and their budgets, and ends")
    add("--total", type=float, default=TOTAL_SECONDS, help="seconds for all parts")
    add("--budget", type=float, help="seconds for each part, in place of its own")
    add("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: to try the script itself")
    add("--models", help="of passes and numerics, separated by commas: random:NAME or folders")
    add("--rows", type=numbers, default=parts.ROWS, help="rows of passes")
    add("--prefill", type=int, default=parts.PREFILL_TOKENS, help="tokens of a timed prompt")
    add("--numerics", help="flags of numerics_bench, separated by spaces")
    add("--clients", type=numbers, default=parts.Settings.clients, help="clients of the servers")
    add("--serving_width", type=int, default=0, help="columns of the served target's MLPs")
    return parser.parse_args(words)


def chosen(planned: list[Planned], only: str | None, skip: str | None) -> list[Planned]:
    def named(part: Planned, names: str) -> bool:
        return any(part.name.startswith(name) for name in names.split(",") if name)

    kept = [part for part in planned if only is None or named(part, only)]
    return [part for part in kept if skip is None or not named(part, skip)]


def main(words: Sequence[str]) -> int:
    arguments = parse(words)
    build = arguments.build.resolve()
    if not build.is_dir():
        print(f"gpu_check: no build in {build}", file=sys.stderr)
        return 2
    settings = parts.Settings(
        Programs(ROOT, build),
        device=arguments.device,
        rows=arguments.rows,
        prefill=arguments.prefill,
        clients=arguments.clients,
        serving_width=arguments.serving_width,
        env={"LD_LIBRARY_PATH": library_path(ROOT)},
    )
    if arguments.models:
        settings = replace(settings, models=tuple(arguments.models.split(",")))
    if arguments.numerics:
        settings = replace(settings, numerics=tuple(arguments.numerics.split()))
    planned = chosen(plan(settings), arguments.only, arguments.skip)
    if arguments.list:
        for part in planned:
            print(f"{part.name:<28}{part.budget:4.0f} s")
        return 0
    if not planned:
        print("gpu_check: no part has such a name; --list names them", file=sys.stderr)
        return 2
    if arguments.budget is not None:
        planned = [Planned(part.name, arguments.budget, part.body) for part in planned]
    os.chdir(ROOT)
    results = Results()
    # Ended from outside it still shows what it has.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        run_parts(planned, arguments.total, results, arguments.out)
    finally:
        print("\n" + render(results), flush=True)
        results.write(arguments.out)
    failed = [part.name for part in results.parts if part.status == "failed"]
    if failed:
        print(f"gpu_check: failed: {', '.join(failed)}", file=sys.stderr)
        return 1
    cut = [part.name for part in results.parts if part.status in ("cut", "missing")]
    print("gpu_check: passed" + (f"; not whole: {', '.join(cut)}" if cut else ""))
    return 0
