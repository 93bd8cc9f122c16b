"""Runs the parts of a check one after the other, each within a budget of its own."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpucheck.table import PartResult, Results

SILENCE_SECONDS = 10.0  # after which a line says that a part still runs
GRACE_SECONDS = 2.0  # between asking a program to end and ending it


class Cut(Exception):
    """The part's budget is spent."""


class Failed(Exception):
    """A check failed; the message says which."""


class Missing(Exception):
    """Something that the part needs is not on this machine."""


def end_group(process: subprocess.Popen[str], grace: float = GRACE_SECONDS) -> None:
    """Ends a program that leads a session, and all that it started."""
    for sign, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, None)):
        try:
            os.killpg(process.pid, sign)
        except ProcessLookupError:
            break
        try:
            process.wait(seconds)
            if sign == signal.SIGTERM:
                continue  # what it started may not have ended with it
        except subprocess.TimeoutExpired:
            continue
    process.wait()


class Part:
    """One part while it runs: its deadline, and how it runs programs."""

    def __init__(self, name: str, budget: float, results: Results, begin: float) -> None:
        self.name = name
        self.results = results
        self.start = time.monotonic()
        self.deadline = self.start + budget
        self._begin = begin

    def left(self) -> float:
        """Seconds; raises Cut where there are none."""
        seconds = self.deadline - time.monotonic()
        if seconds <= 0:
            raise Cut
        return seconds

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self._begin:4.0f} s] {self.name}: {text}", flush=True)

    def run(
        self,
        command: Sequence[str | Path],
        on_line: Callable[[str], None] | None = None,
        env: Mapping[str, str] | None = None,
        quiet: bool = False,
        limit: float | None = None,
    ) -> int:
        """The program's exit status; `on_line` gets each line of its output as it comes. Failed
        where it takes more than `limit` seconds.
        """
        self.left()
        end = None if limit is None else time.monotonic() + limit
        process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )
        lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, args=(process, lines), daemon=True).start()
        heard = time.monotonic()
        try:
            while True:
                if end is not None and time.monotonic() > end:
                    raise Failed(f"{Path(command[0]).name} did not end in {limit:.0f} s")
                wait = min(self.left(), max(0.1, heard + SILENCE_SECONDS - time.monotonic()))
                try:
                    line = lines.get(timeout=wait)
                except queue.Empty:
                    if time.monotonic() - heard >= SILENCE_SECONDS:
                        self.say(f"{Path(command[0]).name} runs, {self.left():.0f} s left")
                        heard = time.monotonic()
                    continue
                if line is None:
                    return process.wait()
                heard = time.monotonic()
                if not quiet:
                    self.say(line)
                if on_line is not None:
                    on_line(line)
        finally:
            end_group(process)

    @staticmethod
    def _read(process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line.rstrip("\n"))
        lines.put(None)

    def check(
        self,
        command: Sequence[str | Path],
        on_line: Callable[[str], None] | None = None,
        env: Mapping[str, str] | None = None,
        quiet: bool = False,
    ) -> None:
        """As `run`, and Failed where the status is not 0."""
        status = self.run(command, on_line, env, quiet)
        if status != 0:
            raise Failed(f"{Path(command[0]).name} ended with {status}")


@dataclass(frozen=True)
class Planned:
    """A part to run."""

    name: str
    budget: float
    body: Callable[[Part], None]


def run_parts(
    parts: Sequence[Planned], total: float, results: Results, out: Path | None
) -> Results:
    """Every part, within `total` seconds. `out` is written after each."""
    begin = time.monotonic()
    for planned in parts:
        budget = min(planned.budget, begin + total - time.monotonic())
        if budget <= 0:
            results.parts.append(
                PartResult(planned.name, "cut", 0, planned.budget, "no time was left in all")
            )
            continue
        part = Part(planned.name, budget, results, begin)
        part.say(f"begins, with {budget:.0f} s")
        status, detail = "ok", ""
        try:
            planned.body(part)
        except Cut:
            status = "cut"
        except Failed as failure:
            status, detail = "failed", str(failure)
        except Missing as missing:
            status, detail = "missing", str(missing)
        except (OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
            status, detail = "failed", f"{type(error).__name__}: {error}"
        seconds = time.monotonic() - part.start
        results.parts.append(PartResult(planned.name, status, seconds, budget, detail))
        part.say(f"{status} {detail}".rstrip())
        if out is not None:
            results.write(out)
    sys.stdout.flush()
    return results
