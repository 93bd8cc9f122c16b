#!/usr/bin/env python3
"""Checks that every source includes only what its folder may know.

ALLOWED is the table of folders, FAMILIES the third-party libraries that only some folders may
see. Prints one line for each include, and each library linked in CMake, that breaks a rule, and one
for each permission that no source uses, so that the table says what is and not what once was. Exits
1 if there is any.

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
    "sampling": {"base"},
    "speculation": {"base", "sampling"},
    "verification": {"base", "sampling", "speculation"},
    "schemas": {"base", "scheduler", "speculation"},
    "metrics": {"base"},
    "trace": {"base"},
    "transport": {"base"},
    "link": {"base", "metrics", "schemas", "transport"},
    "scheduler": {"base", "sampling", "speculation"},
    "model": {"base", "sampling"},
    "tokenizer": {"base"},
    "draft": {
        "base",
        "link",
        "metrics",
        "model",
        "sampling",
        "scheduler",
        "schemas",
        "speculation",
        "trace",
        "transport",
        "verification",
    },
    "target": {
        "base",
        "link",
        "metrics",
        "model",
        "sampling",
        "scheduler",
        "schemas",
        "speculation",
        "tokenizer",
        "trace",
        "transport",
        "verification",
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
    # The folders are all but those that must stay pure: nobody need make use of the permission.
    all_but_pure: bool = False


def _family(name: str, headers: str, folders: set[str], all_but_pure: bool = False) -> Family:
    return Family(name, re.compile(headers), frozenset(folders), all_but_pure)


_PURE = {"sampling", "scheduler", "speculation"}
FAMILIES = [
    _family("libtorch", r"^(torch|ATen|c10|caffe2)/", {"model"}),
    _family("CUDA", r"^(cuda|cublas|nccl|nvtx3/|flashinfer/|thrust/|cub/)", {"base", "model"}),
    _family("UCX", r"^(ucp|uct|ucs|ucm)/", {"transport"}),
    _family("FlatBuffers", r"^flatbuffers/|_generated\.h$", {"schemas"}),
    _family("prometheus-cpp", r"^prometheus/", {"metrics"}),
    _family(
        "threads and clocks",
        r"^(thread|mutex|shared_mutex|condition_variable|future|stop_token)$"
        r"|^(pthread\.h|absl/synchronization/|absl/time/clock\.h)",
        set(ALLOWED) - _PURE,
        all_but_pure=True,
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
        what = f'includes "{self.included}"' if self.line else self.included
        return f"{self.path}:{self.line}: {what}: {self.reason}"


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


def _includes(root: Path, path: Path) -> Iterator[tuple[int, str, bool]]:
    """Line, header and whether it is in quotes, of each include of a source."""
    text = (root / path).read_text(encoding="utf-8")
    for number, line in enumerate(text.splitlines(), start=1):
        if match := _INCLUDE.match(line):
            yield number, match[1] or match[2], match[1] is not None


def _unused_permissions(root: Path) -> Iterator[Violation]:
    """Folders and families that a folder may use and no source of it does."""
    edges: set[tuple[str, str]] = set()
    families: set[tuple[str, str]] = set()
    for path in _sources(root):
        folder = path.parts[0]
        for _, included, _ in _includes(root, path):
            edges.add((folder, included.partition("/")[0]))
            families |= {(folder, f.name) for f in FAMILIES if f.headers.search(included)}
    for folder, allowed in ALLOWED.items():
        for other in sorted(allowed):
            if (folder, other) not in edges:
                reason = f"{folder}/ may use {other}/ and does not"
                yield Violation(Path(folder), 0, f"{other}/", reason)
    for family in FAMILIES:
        # The family of threads and clocks is kept from the pure folders, not given to the others.
        if family.all_but_pure:
            continue
        for folder in sorted(family.folders):
            if (folder, family.name) not in families:
                reason = f"{folder}/ may use {family.name} and does not"
                yield Violation(Path(folder), 0, family.name, reason)


def _linked(root: Path) -> Iterator[tuple[Path, str, set[str]]]:
    """The CMakeLists.txt, name and dependencies of each library of the table's folders."""
    for folder in ALLOWED:
        for path in sorted((root / folder).rglob("CMakeLists.txt")):
            text = re.sub(r"#.*", "", path.read_text(encoding="utf-8"))
            for call in re.findall(r"specfabric_library\(([^)]*)\)", text):
                words = call.split()
                dependencies = {word for word in words if word.startswith("sf_")}
                name = words[words.index("NAME") + 1]
                yield path.relative_to(root), name, dependencies - {name}


def _link_violations(root: Path) -> Iterator[Violation]:
    """Libraries that a folder links though it may not use their folder."""
    libraries = list(_linked(root))
    home = {name: path.parts[0] for path, name, _ in libraries}
    for path, name, dependencies in libraries:
        folder = path.parts[0]
        for dependency in sorted(dependencies):
            other = home.get(dependency, folder)
            if other != folder and other not in ALLOWED[folder]:
                reason = f"{name} links it, and {folder}/ may not use {other}/"
                yield Violation(path, 0, dependency, reason)


def check(root: Path) -> list[Violation]:
    """Every include and linked library under `root` that breaks a rule, and unused permissions."""
    violations = [
        Violation(Path(name), 0, "", "a folder of sources that ALLOWED does not name")
        for name in _unknown_folders(root)
    ]
    for path in _sources(root):
        for number, included, quoted in _includes(root, path):
            if reason := _reason_against(path.parts[0], included, quoted):
                violations.append(Violation(path, number, included, reason))
    return [*violations, *_link_violations(root), *_unused_permissions(root)]


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[2]
    violations = check(root)
    for violation in violations:
        print(violation)
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
