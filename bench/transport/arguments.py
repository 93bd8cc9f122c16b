"""Command-line options shared by the benchmarks of this folder."""

from __future__ import annotations

import argparse
from pathlib import Path

from systems import ROOT


def parse_with_common(parser: argparse.ArgumentParser, out: str) -> argparse.Namespace:
    """Adds the common options, parses and checks. `out` says what goes there."""
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies all iterations")
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="the build folder")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "benchmarks", help=out)
    arguments = parser.parse_args()
    if arguments.repetitions < 1:
        parser.error(f"--repetitions={arguments.repetitions}; allowed: 1 or more")
    if not 0 < arguments.scale <= 1000:
        parser.error(f"--scale={arguments.scale}; allowed: above 0, at most 1000")
    return arguments
