#!/usr/bin/env python3
"""Runs clang-tidy over C++ sources, in batches that share what they include.

Most of clang-tidy's time goes to parsing headers, the same ones for nearly every source of a
folder. So sources of a folder that can be compiled as one are included by one file, and clang-tidy
sees that file. Whether they can is told from the names that they define at namespace scope; where
that was not enough and the compiler reports an error, the batch is split. Compile flags are those
of the builds that there are; sources that none of them compiles are counted and left out.

    $(scripts/setup --print-venv)/bin/python scripts/tidy.py [--build DIR]... [--jobs N] [SOURCE...]

Prints each finding once, and exits 1 if there is any. The checks are those of .clang-tidy.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CLANG_TIDY = Path(sys.executable).with_name("clang-tidy")
# More is little faster, and leaves the last processor alone with the last batch.
BATCH_BYTES = 100_000

# What a line that begins in the first column defines.
DEFINITIONS = (
    re.compile(r"^(?:TEST|TEST_F|TEST_P|TYPED_TEST)\((\w+, \w+)", re.M),
    re.compile(r"^(?:class|struct|union|enum|enum class|enum struct) (\w+)", re.M),
    re.compile(r"^using (\w+) =", re.M),
    re.compile(r"^#define (\w+)", re.M),
    re.compile(r"^(?:DEFINE|BENCHMARK)\w*\((\w+)", re.M),
    re.compile(r"^[A-Za-z][\w:<>,&* \[\]]*[\s&*>](\w+)(?:\[\w*\])?(?:\(| = |;|\{)", re.M),
)
INCLUDE = re.compile(r'^#include "([^"]+)"', re.M)
FINDING = re.compile(r"^(/[^:\n]+):\d+:\d+: (warning|error): .*$", re.M)


@dataclass(frozen=True)
class Flags:
    """How a source is compiled, without what does not matter to clang-tidy."""

    options: tuple[str, ...]
    defines: tuple[str, ...]
    includes: tuple[str, ...]

    def key(self) -> tuple[str, ...]:
        """What sources that are compiled as one must have in common."""
        return (*self.options, *(path for path in self.includes if str(ROOT) not in path))


@dataclass
class Batch:
    sources: list[Path] = field(default_factory=list)
    size: int = 0


def parse_command(command: str) -> Flags:
    words = shlex.split(command)[1:]
    options: list[str] = []
    defines: list[str] = []
    includes: list[str] = []
    while words:
        word = words.pop(0)
        if word in ("-o", "-c"):
            words.pop(0)
        elif word in ("-isystem", "-I"):
            includes.append(word + words.pop(0))
        elif word.startswith("-I"):
            includes.append(word)
        elif word.startswith("-D"):
            defines.append(word)
        elif word.startswith(("-m", "-std=")):
            options.append(word)
    return Flags(tuple(options), tuple(defines), tuple(includes))


def sources_of(compiled: Path) -> list[Path]:
    """Those that a file of a unity build includes; else the file itself."""
    if compiled.parent.name != "Unity":
        return [compiled]
    return [Path(name) for name in INCLUDE.findall(compiled.read_text())]


def read_flags(builds: list[Path]) -> dict[Path, Flags]:
    """The flags of every source; those of the first build that compiles it."""
    found: dict[Path, Flags] = {}
    for build in builds:
        database = build / "compile_commands.json"
        if not database.is_file():
            continue
        for entry in json.loads(database.read_text()):
            flags = parse_command(entry["command"])
            for source in sources_of(Path(entry["file"])):
                found.setdefault(source, flags)
    return found


@functools.cache
def defined_names(file: Path) -> frozenset[str]:
    text = file.read_text()
    return frozenset(name for pattern in DEFINITIONS for name in pattern.findall(text))


@functools.cache
def headers_of(file: Path) -> frozenset[Path]:
    """The repository's headers that a file includes, and those that they include."""
    direct = {ROOT / name for name in INCLUDE.findall(file.read_text())}
    present = {header for header in direct if header.is_file()}
    return frozenset(present.union(*(headers_of(header) for header in present)))


@functools.cache
def header_names(source: Path) -> frozenset[str]:
    return frozenset().union(*(defined_names(header) for header in headers_of(source)))


def go_together(a: Path, b: Path) -> bool:
    """Whether neither source defines what the other defines, or finds in a header of its own."""
    return not (
        defined_names(a) & defined_names(b)
        or defined_names(a) & (header_names(b) - header_names(a))
        or defined_names(b) & (header_names(a) - header_names(b))
    )


def folder_of(source: Path) -> tuple[str, ...]:
    """The folder of docs/development.md's table; for tests, the one that they test."""
    parts = source.relative_to(ROOT).parts
    return parts[: 2 if parts[0] == "tests" else 1]


def make_batches(sources: list[Path], flags: dict[Path, Flags]) -> list[list[Path]]:
    """Each source goes to the first batch of its folder and flags where it fits; largest first."""
    groups: dict[tuple[object, ...], list[Batch]] = {}
    for source in sources:
        size = source.stat().st_size
        group = groups.setdefault((folder_of(source), *flags[source].key()), [])
        for batch in group:
            fits = batch.size + size <= BATCH_BYTES
            if fits and all(go_together(source, other) for other in batch.sources):
                break
        else:
            batch = Batch()
            group.append(batch)
        batch.sources.append(source)
        batch.size += size
    batches = sorted((b for group in groups.values() for b in group), key=lambda b: -b.size)
    return [batch.sources for batch in batches]


def command_for(unit: Path, sources: list[Path], flags: dict[Path, Flags]) -> list[str]:
    used = [flags[source] for source in sources]
    command = [str(CLANG_TIDY), "--quiet", f"--config-file={ROOT / '.clang-tidy'}"]
    command += [f"--header-filter=^{ROOT}/", f"--exclude-header-filter=^{ROOT}/build", str(unit)]
    # Compilers' own warnings are for the builds. The operators that nlohmann-json 3.11 has for
    # C++20 need an older rule about reversed operators, which newer clangs do not follow.
    command += ["--", "-xc++", "-w", "-DJSON_HAS_THREE_WAY_COMPARISON=0", *used[0].options]
    command += dict.fromkeys(define for one in used for define in one.defines)
    command += dict.fromkeys(include for one in used for include in one.includes)
    return command


def split(sources: list[Path], blamed: set[Path]) -> tuple[list[Path], list[Path]]:
    """A batch without the sources that have errors, or include what has; halves if all do."""
    apart = [source for source in sources if source in blamed or headers_of(source) & blamed]
    if not 0 < len(apart) < len(sources):
        apart = sources[len(sources) // 2 :]
    return [source for source in sources if source not in apart], apart


def run_batch(sources: list[Path], flags: dict[Path, Flags], folder: Path) -> str:
    """clang-tidy's report on the sources."""
    handle, name = tempfile.mkstemp(suffix=".cc", dir=folder)
    with os.fdopen(handle, "w") as unit:
        unit.writelines(f'#include "{source}"\n' for source in sources)
    done = subprocess.run(command_for(Path(name), sources, flags), capture_output=True, text=True)
    blamed = {Path(m[1]) for m in FINDING.finditer(done.stdout) if m[2] == "error"}
    if not blamed and done.returncode != 0:
        raise RuntimeError(f"{CLANG_TIDY}: {done.stderr}")
    if not blamed or len(sources) == 1:
        return done.stdout
    print(
        f"tidy.py: split {len(sources)} sources of {'/'.join(folder_of(sources[0]))}/",
        file=sys.stderr,
    )
    rest, apart = split(sources, blamed)
    return run_batch(rest, flags, folder) + run_batch(apart, flags, folder)


def findings(reports: list[str]) -> dict[str, str]:
    """The text of each finding with its notes, by its first line."""
    found: dict[str, str] = {}
    for report in reports:
        starts = [match.start() for match in FINDING.finditer(report)]
        for start, end in itertools.pairwise([*starts, len(report)]):
            text = report[start:end]
            if not text.startswith(f"{ROOT}/"):  # a declaration of a library that a test defines
                continue
            found.setdefault(text.split("\n", 1)[0], text)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--build", type=Path, action="append", help="default: build, build-cuda")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("sources", type=Path, nargs="*")
    arguments = parser.parse_args()
    builds = arguments.build or [ROOT / "build", ROOT / "build-cuda"]
    flags = read_flags([build.resolve() for build in builds])
    named = [source.resolve() for source in arguments.sources]
    sources = [source for source in named or sorted(flags) if source in flags]
    batches = make_batches(sources, flags)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(arguments.jobs) as pool:
        reports = list(pool.map(lambda batch: run_batch(batch, flags, Path(folder)), batches))
    found = findings(reports)
    for line in sorted(found):
        print(found[line], end="")
    left_out = len(named) - len(sources) if named else 0
    print(
        f"tidy.py: {len(found)} findings in {len(sources)} sources, {len(batches)} batches; "
        f"{left_out} sources are in no build here",
        file=sys.stderr,
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
