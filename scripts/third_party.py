#!/usr/bin/env python3
"""What the programs contain of other projects: the list in docs/, and the licence texts to ship.

docs/third_party.md is written by hand, but for the Rust crates that the tokenizer links: that part
is made from Cargo's own metadata.

    scripts/third_party.py                   rewrites that part
    scripts/third_party.py --check           exits 1 if it is out of date
    scripts/third_party.py --texts DIR [--cuda] [LIBRARY...]
        copies the licence texts of everything that is compiled into the programs, and of the named
        shared libraries that are installed beside them (scripts/install)

Needs cargo, and nothing beyond Python's standard library.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "third_party.md"
CRATE = ROOT / "tokenizer" / "rust" / "Cargo.toml"
PLATFORMS = ("x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu")
BEGIN = "<!-- made by scripts/third_party.py: begin -->\n"
END = "<!-- end -->\n"
TEXT_NAMES = re.compile(r"(licen[cs]e|copying|copyright|notice|unlicense)", re.IGNORECASE)

# Debian packages whose headers hold code that the programs contain.
HEADER_PACKAGES = (
    "libboost1.81-dev",
    "libflatbuffers-dev",
    "libspdlog-dev",
    "libxxhash-dev",
    "nlohmann-json3-dev",
)
# The same of Python packages, in CUDA builds.
CUDA_HEADER_DISTRIBUTIONS = ("flashinfer_python", "nvidia_cuda_cccl")


def _metadata(platform: str) -> dict[str, Any]:
    command = ["cargo", "metadata", "--locked", "--format-version=1"]
    command += ["--filter-platform", platform, "--manifest-path", str(CRATE)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def _linked(metadata: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The packages, by id, whose code ends up in the program: no build scripts, no macros."""
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    root = metadata["resolve"]["root"]
    found: dict[str, dict[str, Any]] = {}
    waiting = [root]
    while waiting:
        identity = waiting.pop()
        if identity in found:
            continue
        kinds = {kind for target in packages[identity]["targets"] for kind in target["kind"]}
        if "proc-macro" in kinds:
            continue
        found[identity] = packages[identity]
        waiting += [
            dependency["pkg"]
            for dependency in nodes[identity]["deps"]
            if any(kind["kind"] is None for kind in dependency["dep_kinds"])
        ]
    del found[root]
    return found


def linked_crates() -> list[dict[str, Any]]:
    crates: dict[str, dict[str, Any]] = {}
    for platform in PLATFORMS:
        crates |= _linked(_metadata(platform))
    return sorted(crates.values(), key=lambda crate: (crate["name"], crate["version"]))


def crates_table() -> str:
    rows = ["| crate | version | licence |", "|---|---|---|"]
    for crate in linked_crates():
        # Some write the older form of "either": a slash.
        licence = re.sub(r"\s*/\s*", " OR ", crate["license"] or "see its text")
        rows.append(f"| {crate['name']} | {crate['version']} | {licence} |")
    return "\n".join(rows) + "\n"


def updated_document() -> str:
    before, rest = DOCUMENT.read_text().split(BEGIN)
    after = rest.split(END, 1)[1]
    return before + BEGIN + crates_table() + END + after


def _texts_in(folder: Path) -> Iterator[Path]:
    """The licence texts of a source tree: at its top, or in a folder for them."""
    for path in sorted(folder.iterdir()):
        if not TEXT_NAMES.search(path.name):
            continue
        yield from (path,) if path.is_file() else (p for p in path.rglob("*") if p.is_file())


def _copy(texts: Iterator[Path], folder: Path) -> None:
    copied = 0
    for text in texts:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(text, folder / text.name)
        copied += 1
    if copied == 0:
        print(f"third_party.py: no licence text for {folder.name}", file=sys.stderr)


def _site_packages(path: Path) -> Path | None:
    return next((parent for parent in path.parents if parent.name == "site-packages"), None)


def _distribution_of(library: Path, site_packages: Path) -> Path | None:
    """The dist-info folder of the Python package that installed a file."""
    name = str(library.relative_to(site_packages))
    for record in site_packages.glob("*.dist-info/RECORD"):
        if any(row and row[0] == name for row in csv.reader(record.open())):
            return record.parent
    return None


def _write_library_texts(library: Path, folder: Path) -> None:
    library = library.resolve()
    site_packages = _site_packages(library)
    if site_packages is None:
        # Built from source, such as by scripts/build_ucx: PREFIX/lib/NAME, PREFIX/share/doc/*/.
        documents = sorted((library.parents[1] / "share" / "doc").glob("*"))
        _copy(
            (t for d in documents if d.is_dir() for t in _texts_in(d)),
            folder / library.name.split(".")[0],
        )
        return
    distribution = _distribution_of(library, site_packages)
    if distribution is None:
        print(f"third_party.py: no package has installed {library}", file=sys.stderr)
        return
    _copy(_texts_in(distribution), folder / distribution.stem)


def write_texts(folder: Path, libraries: list[Path], cuda: bool) -> None:
    for crate in linked_crates():
        source = Path(crate["manifest_path"]).parent
        _copy(_texts_in(source), folder / "crates" / f"{crate['name']}-{crate['version']}")
    sysroot = subprocess.run(
        ["rustc", "--print", "sysroot"], check=True, stdout=subprocess.PIPE, text=True
    ).stdout.strip()
    rust = [*Path(sysroot).glob("share/doc/rust"), *Path("/usr/share/doc").glob("libstd-rust*")]
    _copy((text for place in rust for text in _texts_in(place)), folder / "rust-std")
    for package in HEADER_PACKAGES:
        _copy(_texts_in(Path("/usr/share/doc") / package), folder / package)
    for library in libraries:
        _write_library_texts(library, folder)
    if not cuda:
        return
    site_packages = next(filter(None, map(_site_packages, libraries)))
    for name in CUDA_HEADER_DISTRIBUTIONS:
        for distribution in site_packages.glob(f"{name}-*.dist-info"):
            _copy(_texts_in(distribution), folder / distribution.stem)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--check", action="store_true", help="only tell whether it is up to date")
    parser.add_argument("--texts", type=Path, metavar="DIR", help="copy licence texts there")
    parser.add_argument("--cuda", action="store_true", help="with --texts: of a CUDA build")
    parser.add_argument("libraries", type=Path, nargs="*", metavar="LIBRARY")
    arguments = parser.parse_args()
    if arguments.texts:
        write_texts(arguments.texts, arguments.libraries, arguments.cuda)
        return 0
    wanted = updated_document()
    if not arguments.check:
        DOCUMENT.write_text(wanted)
        return 0
    if wanted == DOCUMENT.read_text():
        return 0
    print("third_party.py: docs/third_party.md is out of date: run scripts/third_party.py")
    return 1


if __name__ == "__main__":
    sys.exit(main())
