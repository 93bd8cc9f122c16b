"""What headers and docs name in docs/ is there."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def _sources() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "*.h", "*.cc", "*.cu", "*.cuh", "*.inc", "*.py", "*.md", "*.fbs"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return [ROOT / name for name in listed.splitlines() if (ROOT / name).is_file()]


def test_sections_of_verification_md_exist() -> None:
    text = (ROOT / "docs" / "verification.md").read_text(encoding="utf-8")
    sections = set(re.findall(r"^## (\d+)\.", text, re.M))
    named = re.compile(r"verification\.md,?\s+(?://\s+)?sections?\s+(\d+)(?:\s+and\s+(\d+))?")
    missing = [
        f"{path.relative_to(ROOT)}: section {number}"
        for path in _sources()
        for match in named.finditer(path.read_text(encoding="utf-8"))
        for number in match.groups()
        if number is not None and number not in sections
    ]
    assert not missing, missing


def test_docs_that_sources_name_exist() -> None:
    named = re.compile(r"\bdocs/([\w/-]+\.md)\b")
    missing = [
        f"{path.relative_to(ROOT)}: docs/{name}"
        for path in _sources()
        for name in named.findall(path.read_text(encoding="utf-8"))
        if not (ROOT / "docs" / name).is_file()
    ]
    assert not missing, missing


def test_headers_that_docs_name_exist() -> None:
    # Paths of ours begin with one of our folders; others are of other projects.
    folders = "|".join(path.name for path in ROOT.iterdir() if path.is_dir())
    named = re.compile(rf"`((?:{folders})/[\w/]+\.(?:h|cc|cu|py))`")
    missing = [
        f"docs/{path.name}: {name}"
        for path in sorted((ROOT / "docs").glob("*.md"))
        for name in named.findall(path.read_text(encoding="utf-8"))
        if not (ROOT / name).is_file()
    ]
    assert not missing, missing
