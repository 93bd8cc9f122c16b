#!/usr/bin/env python3
"""How large each part of a container image is, and under which licences it comes.

    scripts/image_contents.py ROOT [--json]

ROOT is the image's root folder, such as `buildah mount` prints. Parts are what scripts/install
puts there, each package of Debian, and the files of neither. Licences are read from the texts in
the image; "see its text" stands for those whose text names none in a form that can be read.
Exits with 1 where a part has no licence text.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

INSTALLED = Path("usr/local")
TEXTS = INSTALLED / "share/doc/specfabric"
PACKAGES = Path("var/lib/dpkg")
SEE_TEXT = "see its text"
SMALL_MB = 1.0


@dataclass
class Part:
    """Some files of the image, of one origin."""

    name: str
    kind: str  # installed, debian or other
    megabytes: float
    licences: list[str]


def _sizes(root: Path) -> dict[str, int]:
    """The bytes on disk of every file, folder and link of the image, by its path in it.

    A file of several links is counted once.
    """
    sizes = {}
    seen = set()
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = Path(folder) / name
            status = path.lstat()
            identity = (status.st_dev, status.st_ino)
            if identity not in seen:
                seen.add(identity)
                sizes[str(path.relative_to(root))] = status.st_blocks * 512
    return sizes


def _licences_of_package(root: Path, package: str) -> list[str]:
    """As its copyright file names them; none where there is no such file."""
    file = root / "usr/share/doc" / package / "copyright"
    if not file.is_file():
        return []
    text = file.read_text(errors="replace")
    if text.startswith("Format:") or "\nFormat:" in text:
        names = re.findall(r"^License:[ \t]*(\S[^\n]*)", text, re.M)
    else:
        names = re.findall(r"/usr/share/common-licenses/([A-Za-z0-9.-]*[A-Za-z0-9])", text)
    return sorted({name.strip() for name in names}) or [SEE_TEXT]


def _stanzas(root: Path) -> list[dict[str, str]]:
    text = (root / PACKAGES / "status").read_text()
    stanzas = [dict(re.findall(r"^(\S+): (.*)$", part, re.M)) for part in text.split("\n\n")]
    return [s for s in stanzas if s.get("Status", "").endswith(" installed")]


def _take_list(root: Path, list_file: Path, sizes: dict[str, int]) -> float:
    """Takes a package's files from `sizes`; their megabytes.

    Lists may name a file by its place before /lib became /usr/lib.
    """
    taken = 0
    for line in list_file.read_text().splitlines():
        path = root / line.lstrip("/")
        if path.is_dir() and not path.is_symlink():
            continue
        real = os.path.join(os.path.realpath(path.parent), path.name)
        taken += sizes.pop(os.path.relpath(real, root), 0)
    return taken / 1e6


def _debian_parts(root: Path, sizes: dict[str, int]) -> list[Part]:
    parts = []
    for stanza in _stanzas(root):
        name = stanza["Package"]
        info = root / PACKAGES / "info"
        lists = [info / f"{name}.list", info / f"{name}:{stanza['Architecture']}.list"]
        megabytes = sum(_take_list(root, file, sizes) for file in lists if file.is_file())
        parts.append(Part(name, "debian", megabytes, _licences_of_package(root, name)))
    return parts


def _take_below(folder: Path, sizes: dict[str, int]) -> float:
    below = [name for name in sizes if Path(name).is_relative_to(folder)]
    return sum(sizes.pop(name) for name in below) / 1e6


def _licence_of_project(root: Path) -> list[str]:
    text = root / TEXTS / "LICENSE"
    return ["Apache-2.0"] if text.is_file() and "Apache License" in text.read_text() else []


def _text_folders(root: Path) -> list[str]:
    folder = root / TEXTS / "licenses"
    return sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []


def _installed_parts(root: Path, sizes: dict[str, int]) -> list[Part]:
    """What scripts/install puts there; texts lie in a folder for each thing that they came in."""
    texts = _text_folders(root)
    inside = ["crates", "rust-std", *(name for name in texts if name.endswith("-dev"))]
    beside = [name for name in texts if name not in inside]
    licences = [*_licence_of_project(root), *(f"{name}: its text" for name in inside)]
    parts = []
    for program in sorted((root / INSTALLED / "bin").glob("specfabric*")):
        size = sizes.pop(str(program.relative_to(root))) / 1e6
        parts.append(Part(program.name, "installed", size, licences))
    for library in sorted((root / INSTALLED / "lib/specfabric").rglob("*.so*")):
        size = sizes.pop(str(library.relative_to(root)), 0) / 1e6
        parts.append(Part(library.name, "installed", size, [f"{n}: its text" for n in beside]))
    texts_size = _take_below(TEXTS, sizes)
    parts.append(Part("licence texts", "installed", texts_size, _licence_of_project(root)))
    return parts


def contents(root: Path) -> list[Part]:
    """Every part, the files of none last, so that the megabytes add up to the image's."""
    root = root.resolve()
    sizes = _sizes(root)
    parts = _installed_parts(root, sizes) + _debian_parts(root, sizes)
    return [*parts, Part("files of no part", "other", sum(sizes.values()) / 1e6, [])]


def _row(name: str, megabytes: float) -> str:
    return f"{name:<36}{megabytes:>10.1f}"


def report(parts: list[Part]) -> str:
    """The sizes, largest first and the small ones together; then the licences."""
    lines = [f"{'part':<36}{'MB':>10}"]
    for title, kind in (("SpecFabric", "installed"), ("Debian", "debian"), ("other", "other")):
        of_kind = sorted((p for p in parts if p.kind == kind), key=lambda part: -part.megabytes)
        large = [part for part in of_kind if part.megabytes >= SMALL_MB]
        small = [part for part in of_kind if part.megabytes < SMALL_MB]
        lines.append(_row(title, sum(part.megabytes for part in of_kind)))
        lines += [_row(f"  {part.name}", part.megabytes) for part in large]
        if small:
            below = sum(part.megabytes for part in small)
            lines.append(_row(f"  {len(small)} below {SMALL_MB:.0f} MB", below))
    lines.append(_row("all", sum(part.megabytes for part in parts)))
    lines += ["", "licences"]
    by_licences: dict[str, list[str]] = {}
    for part in parts:
        if part.kind != "other":
            by_licences.setdefault(", ".join(part.licences), []).append(part.name)
    for licences, names in sorted(by_licences.items(), key=lambda entry: entry[1]):
        lines.append(f"  {', '.join(names)}: {licences or 'NO TEXT'}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("root", type=Path, metavar="ROOT", help="the image's root folder")
    parser.add_argument("--json", action="store_true", help="a list of parts, for scripts")
    arguments = parser.parse_args()
    if not (arguments.root / PACKAGES / "status").is_file():
        print(
            f"image_contents.py: {arguments.root}: no root folder of an image of Debian: "
            f"{PACKAGES}/status is not there",
            file=sys.stderr,
        )
        return 2
    parts = contents(arguments.root)
    print(json.dumps([asdict(part) for part in parts]) if arguments.json else report(parts))
    lacking = [part.name for part in parts if part.kind != "other" and not part.licences]
    if lacking:
        print(f"image_contents.py: no licence text of: {', '.join(lacking)}", file=sys.stderr)
    return 1 if lacking else 0


if __name__ == "__main__":
    sys.exit(main())
