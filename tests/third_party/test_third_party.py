"""docs/third_party.md lists what the programs contain, and each licence text can be shipped."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "third_party.py"
DOCUMENT = (ROOT / "docs" / "third_party.md").read_text()


def test_the_list_of_crates_is_up_to_date() -> None:
    done = subprocess.run([SCRIPT, "--check"], stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("requirements", ["debian-runtime.txt", "runtime.txt", "ucx.txt"])
def test_every_package_that_is_shipped_is_listed(requirements: str) -> None:
    lines = (ROOT / "requirements" / requirements).read_text().splitlines()
    packages = {re.split("==", line)[0] for line in lines if not line.startswith("#")}
    assert packages, requirements
    assert {name for name in packages if f"`{name}`" not in DOCUMENT} == set()


def test_every_crate_and_header_has_its_text(tmp_path: Path) -> None:
    subprocess.run([SCRIPT, "--texts", tmp_path], check=True)
    crates = re.findall(r"^\| (\S+) \| (\d\S*) \|", DOCUMENT, re.M)
    assert len(crates) > 20
    copied = {folder.name for folder in (tmp_path / "crates").iterdir()}
    assert copied == {f"{name}-{version}" for name, version in crates}
    for package in re.findall(r"`(\S+-dev)`", DOCUMENT):
        assert list((tmp_path / package).iterdir()), package
