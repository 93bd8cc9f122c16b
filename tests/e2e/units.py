"""Single processes of a cluster at fixed addresses, which a test ends, stops and starts at will.

`started_units` ends every one of them whatever happens: stopped ones are woken, by pid.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import plain_http
from cluster import START_SECONDS, Member, Process, free_address, wait_until


@dataclass
class Unit:
    """One role at one address, through all the lives of its process."""

    role: str
    name: str
    arguments: Sequence[str]
    folder: Path
    listen: str = field(default_factory=free_address)
    admin: str = field(default_factory=free_address)
    process: Process | None = None
    lives: int = 0
    born: float = 0.0  # the present life, by time.monotonic()
    asleep: bool = False

    @property
    def pid(self) -> int:
        assert self.process is not None, f"{self.name} does not run"
        return self.process.pid

    @property
    def running(self) -> bool:
        """Started, and as far as this test knows neither ended nor stopped."""
        return self.process is not None and not self.asleep

    @property
    def member(self) -> Member:
        return Member(self.pid, self.listen, self.admin)

    def start(self) -> None:
        assert self.process is None, f"{self.name} runs already"
        self.lives += 1
        self.born = time.monotonic()
        self.process = Process.start(
            [
                self.role,
                f"--listen={self.listen}",
                f"--admin_listen={self.admin}",
                *self.arguments,
            ],
            self.folder / f"{self.name}.{self.lives}.log",
        )

    def is_ready(self) -> bool:
        assert self.process is not None
        assert self.process.popen.poll() is None, f"{self.name} ended\n{self.process.log_text()}"
        return plain_http.status_of(f"http://{self.admin}/readyz") == 200

    def wait_ready(self) -> None:
        wait_until(self.is_ready, f"{self.name} is ready", START_SECONDS)

    def signal(self, sign: signal.Signals) -> None:
        os.kill(self.pid, sign)

    def sleep(self) -> None:
        self.signal(signal.SIGSTOP)
        self.asleep = True

    def wake(self) -> None:
        self.asleep = False
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """Ends it the way a crash does."""
        process, self.process, self.asleep = self.process, None, False
        assert process is not None
        assert process.popen.poll() is None, f"{self.name} ended by itself\n{process.log_text()}"
        process.popen.kill()
        process.popen.wait()
        if process.popen.stdout is not None:
            process.popen.stdout.close()

    def drain(self) -> None:
        """SIGTERM, and the end that it must come to: status 0."""
        process = self.process
        assert process is not None
        assert process.popen.poll() is None, f"{self.name} ended by itself\n{process.log_text()}"
        try:
            status = process.stop()
        finally:
            self.process = None
        assert status == 0, f"{self.name}: status {status}\n{process.log_text()}"


@contextlib.contextmanager
def started_units(units: Sequence[Unit]) -> Iterator[None]:
    """Starts them in order; those that run at the end must end with status 0."""
    try:
        for unit in units:
            unit.start()
        for unit in units:
            unit.wait_ready()
        yield
    except BaseException:
        for unit in units:
            if unit.process is not None:
                with contextlib.suppress(AssertionError, ProcessLookupError):
                    unit.wake()
                    unit.process.stop(signal.SIGKILL)
        raise
    for unit in units:
        if unit.process is not None:
            unit.drain()
