#!/usr/bin/env python3
"""Checks that every source includes only what its folder may know.

ALLOWED is the table of folders, FAMILIES the third-party libraries that only some folders may
see. Prints one line for each include that breaks a rule, and exits 1 if there is any.

    tests/boundaries/check_includes.py [REPOSITORY_ROOT]
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Which folders' headers the sources of a folder may include, besides their own.
ALLOWED: dict[str, set[str]] = {
    "base": set(),
    "speculation": {"base"},
    "schemas": {"base", "scheduler", "speculation"},
    "metrics": {"base"},
    "trace": {"base"},
    "transport": {"base", "metrics"},
    "link": {"base", "metrics", "schemas", "transport"},
    "scheduler": {"base", "speculation"},
    "model": {"base", "speculation"},
    "tokenizer": {"base"},
    "draft": {
        "base",
        "link",
        "metrics",
        "model",
        "scheduler",
        "schemas",
        "speculation",
        "trace",
        "transport",
    },
    "target": {
        "base",
        "link",
        "metrics",
        "model",
        "scheduler",
        "schemas",
        "speculation",
        "trace",
        "transport",
    },
    "gateway": {"base", "link", "metrics", "schemas", "tokenizer", "trace", "transport"},
}
# app/ assembles the processes; tests/ and bench/ look inside everything. Nothing includes them.
UNRESTRICTED = {"app", "tests", "bench"}


@dataclass(frozen=True)
class Family:
    """A third-party library or a facility of the platform, and the folders that may see it."""

    name: str
    headers: re.Pattern[str]
    folders: frozenset[str]


def _family(name: str, headers: str, folders: set[str]) -> Family:
    return Family(name, re.compile(headers), frozenset(folders))


_PURE = {"speculation", "scheduler"}
FAMILIES = [
    _family("libtorch", r"^(torch|ATen|c10|caffe2)/", {"model", "draft", "target"}),
    _family("CUDA", r"^(cuda|cublas|nccl|nvtx3/|flashinfer/|thrust/|cub/)", {"model"}),
    _family("UCX", r"^(ucp|uct|ucs|ucm)/", {"transport"}),
    _family("FlatBuffers", r"^flatbuffers/|_generated\.h$", {"schemas"}),
    _family("prometheus-cpp", r"^prometheus/", {"metrics"}),
    _family(
        "threads and clocks",
        r"^(thread|mutex|shared_mutex|condition_variable|future|stop_token)$"
        r"|^(pthread\.h|absl/synchronization/|absl/time/clock\.h)",
        set(ALLOWED) - _PURE,
    ),
]

SOURCE_SUFFIXES = {".h", ".hpp", ".cc", ".cpp", ".cu", ".cuh"}
_INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')


@dataclass(frozen=True)
class Violation:
    path: Path
    line: int
    included: str
    reason: str

    def __str__(self) -> str:
        return f'{self.path}:{self.line}: includes "{self.included}": {self.reason}'


def _sources(root: Path) -> Iterator[Path]:
    """The C++ sources of the table's folders and of app/, relative to `root`."""
    for folder in sorted({*ALLOWED, "app"}):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in SOURCE_SUFFIXES and path.is_file():
                yield path.relative_to(root)


def _unknown_folders(root: Path) -> Iterator[str]:
    """Folders, build trees apart, that hold C++ sources but are in no table."""
    for folder in sorted(p for p in root.iterdir() if p.is_dir()):
        if folder.name in ALLOWED or folder.name in UNRESTRICTED:
            continue
        if folder.name.startswith((".", "build")):
            continue
        if any(p.suffix in SOURCE_SUFFIXES for p in folder.rglob("*")):
            yield folder.name


def _reason_against(folder: str, included: str, quoted: bool) -> str | None:
    """Why a source of `folder` may not include `included`; None where it may."""
    if folder not in UNRESTRICTED:
        for family in FAMILIES:
            if family.headers.search(included) and folder not in family.folders:
                return f"{folder}/ may not use {family.name}"
    first, _, rest = included.partition("/")
    if rest and first in UNRESTRICTED and first != folder:
        return f"nothing may include {first}/"
    if folder in UNRESTRICTED or not quoted:
        return None
    if not rest:
        return "paths in quotes start at the repository's root"
    if first in ALLOWED and first != folder and first not in ALLOWED[folder]:
        allowed = ", ".join(sorted(ALLOWED[folder])) or "no other folder"
        return f"{folder}/ may use {allowed}"
    return None


def check(root: Path) -> list[Violation]:
    """Every include under `root` that breaks a rule."""
    violations = [
        Violation(Path(name), 0, "", "a folder of sources that ALLOWED does not name")
        for name in _unknown_folders(root)
    ]
    for path in _sources(root):
        text = (root / path).read_text(encoding="utf-8")
        for number, line in enumerate(text.splitlines(), start=1):
            match = _INCLUDE.match(line)
            if not match:
                continue
            included = match[1] or match[2]
            reason = _reason_against(path.parts[0], included, quoted=match[1] is not None)
            if reason:
                violations.append(Violation(path, number, included, reason))
    return violations


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[2]
    violations = check(root)
    for violation in violations:
        print(violation)
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
