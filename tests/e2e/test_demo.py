"""scripts/run_demo.py ends with a ratio, the same tokens, and the reason."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from cluster import BINARY, ROOT, TARGET


def test_compares() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "run_demo.py"), f"--model={TARGET}"]
        + ["--tensor_parallel=1", "--drafts=1", "--max_tokens=24", "--repeats=1"],
        env=os.environ | {"SPECFABRIC_BINARY": str(BINARY)},
        check=True,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert re.search(r"^ratio: +[\d.]+; .* the same, token for token$", done.stdout, re.M)
    assert re.search(r"^why: .* 24 passes became \d+, of [\d.]+ tokens each$", done.stdout, re.M)
