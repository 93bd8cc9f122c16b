"""How a benchmark that starts clusters of its own runs, and ends."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable

from bench.serving.client import ServerError
from bench.serving.workload import WorkloadError


def run_to_end(name: str, bench: Callable[[], None]) -> int:
    """The exit status of `bench`, whose failures are one line; SIGTERM ends its clusters too."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        bench()
    except (WorkloadError, ServerError, OSError, AssertionError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0
