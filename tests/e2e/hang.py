"""Stops one thread of another process, while the others go on: what a hang looks like."""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Iterator
from pathlib import Path

PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_DETACH = 0x4206, 0x4207, 17
_WALL = 0x40000000  # __WALL: threads too

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


def _ptrace(request: int, thread: int) -> None:
    if _libc.ptrace(request, thread, None, None) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"ptrace: {os.strerror(error)}")


def _cpu_ticks(pid: int) -> dict[int, int]:
    """What each thread has computed so far."""
    ticks = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        fields = (task / "stat").read_text().rpartition(")")[2].split()
        ticks[int(task.name)] = int(fields[11]) + int(fields[12])
    return ticks


def busiest_thread(pid: int, seconds: float = 0.5) -> int:
    before = _cpu_ticks(pid)
    time.sleep(seconds)
    after = _cpu_ticks(pid)
    return max(after, key=lambda thread: after[thread] - before.get(thread, 0))


@contextlib.contextmanager
def hanging(thread: int) -> Iterator[None]:
    """The thread stands still until the end; to be entered and left on one thread."""
    _ptrace(PTRACE_SEIZE, thread)
    try:
        _ptrace(PTRACE_INTERRUPT, thread)
        os.waitpid(thread, _WALL)
        yield
    finally:
        _ptrace(PTRACE_DETACH, thread)
