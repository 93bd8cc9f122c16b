#!/usr/bin/env python3
"""scripts/gpu_check on emulated GPUs: the parts that run benches of passes, of a tiny random model.

tests/cuda/gpu_check_emulated_test.py STEP_BENCH_EMULATED NUMERICS_BENCH_EMULATED
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main(step_bench: str, numerics_bench: str) -> int:
    with tempfile.TemporaryDirectory() as folder:
        build = Path(folder)
        (build / "step_bench").symlink_to(step_bench)
        (build / "numerics_bench").symlink_to(numerics_bench)
        out = build / "out.json"
        command: list[str | Path] = [
            sys.executable,
            ROOT / "scripts" / "gpu_check",
            build,
            "--out",
            out,
        ]
        command += ["--only=passes,numerics", "--models=random:tiny", "--rows=1,9"]
        command += ["--prefill=40", "--numerics=--batches=1,2 --tokens=5 --context=4"]
        command += ["--total=1100", "--budget=550"]
        env = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}
        status = subprocess.run(command, env=env, check=False).returncode
        results = json.loads(out.read_text())
    rows = {row["what"]: row["figure"] for row in results["rows"]}
    wrong = [name for name in ("pass of 1", "pass of 9") if rows[f"random:tiny: {name}"] <= 0]
    wrong += [part["name"] for part in results["parts"] if part["status"] != "ok"]
    if rows["random:tiny: prompt of 40"] <= 0:
        wrong.append("prompt")
    if rows["rows whose logits depend on their batch"] != 0:
        wrong.append("logits")
    print(f"wrong: {wrong}" if wrong else "as expected")
    return status or (1 if wrong else 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
