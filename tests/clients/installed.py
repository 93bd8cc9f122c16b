"""The clients that `scripts/setup --clients` installs: where they are, and how to run them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

import setup_script

ROOT = Path(__file__).resolve().parents[2]

# What the tests of this run met: name to version, or to why there is none.
_met: dict[str, str] = {}


def client_dir(name: str, kind: str = "clients") -> Path:
    """The folder of an installed client, or peer. Skips the test where it is not installed."""
    folder = setup_script.folder(kind) / name
    if not (folder / ".specfabric-client").is_file():
        _met[name] = "not installed, its tests are skipped: run scripts/setup --all-clients"
        pytest.skip(f"{name}: {_met[name]}")
    return folder


def program(name: str) -> str:
    """The path of a client that the system has. Skips the test where there is none."""
    path = shutil.which(name)
    if path is None:
        _met[name] = f"not installed, its tests are skipped: apt-get install {name}"
        pytest.skip(f"{name}: {_met[name]}")
    version = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    met(name, version.stdout.strip())
    return path


def met(name: str, version: str) -> None:
    """Notes which version of a client a test ran, for the summary of the run."""
    _met[name] = version


def report() -> Iterator[str]:
    """One line a client."""
    for name, version in sorted(_met.items()):
        yield f"client {name}: {version}"


def environment(changes: Mapping[str, str]) -> dict[str, str]:
    """This process' environment for a client, with what would lead it away from loopback taken out.

    No key is in it that a client would send, no proxy, and no other Python's modules.
    """
    led_away = ("ANTHROPIC_", "OPENAI_", "HF_", "PYTHON")
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(led_away) and not key.lower().endswith("_proxy")
    }
    return {**kept, **changes}


def run_client(
    command: Sequence[str | Path], changes: Mapping[str, str], folder: Path, seconds: float
) -> str:
    """What a client prints, which must end with status 0; runs it in `folder`.

    It and the processes that it starts are one process group, ended whole where it takes too long.
    """
    process = subprocess.Popen(
        [str(part) for part in command],
        cwd=folder,
        env=environment(changes),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert process.returncode == 0, output
    return output
