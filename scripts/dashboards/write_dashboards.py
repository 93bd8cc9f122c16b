#!/usr/bin/env python3
"""Writes the Grafana dashboards of helm/specfabric/dashboards.

    scripts/dashboards/write_dashboards.py [--check]

`--check` writes nothing, and exits 1 where a file differs from what would be written.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from dashboard import to_json
from fabric_dashboard import FABRIC
from service_dashboard import SERVICE
from speculation_dashboard import SPECULATION

FOLDER = Path(__file__).resolve().parents[2] / "helm" / "specfabric" / "dashboards"
DASHBOARDS = [SERVICE, SPECULATION, FABRIC]


def main() -> int:
    parser = argparse.ArgumentParser(description="Writes the Grafana dashboards.")
    parser.add_argument("--check", action="store_true", help="only say whether a file differs")
    check = parser.parse_args().check
    status = 0
    for dashboard in DASHBOARDS:
        path = FOLDER / f"{dashboard.uid}.json"
        text = json.dumps(to_json(dashboard), indent=2) + "\n"
        if not check:
            path.write_text(text)
        elif not path.is_file() or path.read_text() != text:
            print(
                f"{path.name}: differs from the tables; run scripts/dashboards/write_dashboards.py"
            )
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
