"""Where scripts/setup has put things."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path

SETUP = Path(__file__).resolve().parents[2] / "scripts" / "setup"


@functools.cache
def folder(what: str) -> Path:
    """What `scripts/setup --print-<what>-dir` prints."""
    told = subprocess.run(
        [SETUP, f"--print-{what}-dir"], check=True, capture_output=True, text=True
    )
    return Path(told.stdout.strip())
