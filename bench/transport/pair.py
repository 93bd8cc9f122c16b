"""Runs a server and a client at the same time, and cleans up after them."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

START_TIMEOUT_S = 10.0
CLIENT_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 2.0
TCP_LISTEN = "0A"
UNIX_LISTEN = "00010000"  # __SO_ACCEPTCON


class BenchError(Exception):
    """Ends the run; its text is one line for the user."""


@dataclass(frozen=True)
class Pair:
    """The commands of both sides, and where the server listens: a TCP port or a socket's path."""

    server: list[str]
    client: list[str]
    listens_at: int | Path
    environment: dict[str, str] = field(default_factory=dict)


def is_listening(where: int | Path) -> bool:
    """From the kernel's tables: the server would take a trial connection for its client."""
    if isinstance(where, Path):
        rows = (line.split() for line in Path("/proc/net/unix").read_text().splitlines())
        return any(row[3] == UNIX_LISTEN and row[-1] == str(where) for row in rows)
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        if not Path(table).exists():
            continue
        for line in Path(table).read_text().splitlines()[1:]:
            local, state = line.split()[1], line.split()[3]
            if state == TCP_LISTEN and int(local.rpartition(":")[2], 16) == where:
                return True
    return False


def stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def last_line(*logs: IO[bytes]) -> str:
    """The last line of the first log that has one."""
    for log in logs:
        log.seek(0)
        lines = log.read().decode(errors="replace").strip().splitlines()
        if lines:
            return lines[-1]
    return "it printed nothing"


@contextmanager
def running(
    command: list[str], environment: dict[str, str], output: IO[bytes], errors: IO[bytes]
) -> Iterator[subprocess.Popen[bytes]]:
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, env=environment
        )
    except OSError as error:
        raise BenchError(f"cannot start {command[0]}: {error.strerror}") from error
    try:
        yield process
    finally:
        stop(process)


def child_environment(extra: dict[str, str]) -> dict[str, str]:
    """This process's, without settings of UCX and gRPC that would make runs differ."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("UCX_", "GRPC_"))}
    return {**inherited, **extra}


def await_listening(
    server: subprocess.Popen[bytes], where: int | Path, name: str, log: IO[bytes]
) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not is_listening(where):
        if server.poll() is not None:
            raise BenchError(
                f"{name}: the server exited with {server.returncode}: {last_line(log)}"
            )
        if time.monotonic() > deadline:
            raise BenchError(f"{name}: the server does not listen at {where}: {last_line(log)}")
        time.sleep(0.005)


def run_pair(name: str, pair: Pair) -> str:
    """What the client printed on its standard output."""
    environment = child_environment(pair.environment)
    with (
        tempfile.TemporaryFile() as server_log,
        tempfile.TemporaryFile() as output,
        tempfile.TemporaryFile() as errors,
        running(pair.server, environment, server_log, server_log) as server,
    ):
        await_listening(server, pair.listens_at, name, server_log)
        with running(pair.client, environment, output, errors) as client:
            try:
                status = client.wait(CLIENT_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                raise BenchError(
                    f"{name}: the client took longer than {CLIENT_TIMEOUT_S:.0f} s"
                ) from None
        if status != 0:
            reason = last_line(errors, output)
            raise BenchError(f"{name}: the client exited with {status}: {reason}")
        output.seek(0)
        return output.read().decode()
