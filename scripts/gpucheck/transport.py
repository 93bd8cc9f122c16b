"""GPU memory to GPU memory between two processes: ours beside UCX's own ucx_perftest."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpucheck.parts import Settings, objects
from gpucheck.programs import tool
from gpucheck.runner import Failed, Missing, Part, end_group
from gpucheck.serving import free_port
from gpucheck.table import Row

# Logits in bfloat16 by rows and tokens: a step's, and so many that the wire's bandwidth shows.
LOGITS = {"logits of 4.1 MB": (16, 128_256), "logits of 33.6 MB": (128, 131_072)}
THEIRS_SECONDS = 8.0
WIRES = {"UCX_TLS": "cuda_copy,cuda_ipc,sm,tcp"}


@dataclass
class Server:
    """The far end."""

    process: subprocess.Popen[str]
    log: Path

    def said(self) -> str:
        """Failed where it has ended: nothing more will come of it."""
        text = self.log.read_text(errors="replace")
        if self.process.poll() is not None:
            lines = text.strip().splitlines() or ["without a word"]
            raise Failed(f"the server ended: {lines[-1]}")
        return text


@contextlib.contextmanager
def server(command: Sequence[str | Path], env: dict[str, str]) -> Iterator[Server]:
    """The far end, while it runs."""
    with tempfile.NamedTemporaryFile("w+", suffix=".log") as log:
        process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **env},
            start_new_session=True,
        )
        try:
            yield Server(process, Path(log.name))
        finally:
            end_group(process)


def await_text(part: Part, far: Server, pattern: str) -> str:
    while True:
        if match := re.search(pattern, far.said()):
            return match[1]
        part.left()
        time.sleep(0.05)


def await_listener(part: Part, far: Server, port: int) -> None:
    """Until it listens on the port: a connection would be taken for the client."""
    local = f":{port:04X}"
    while True:
        far.said()
        for table in ("/proc/net/tcp", "/proc/net/tcp6"):
            for line in Path(table).read_text().splitlines()[1:]:
                words = line.split()
                if words[1].endswith(local) and words[3] == "0A":
                    return
        part.left()
        time.sleep(0.05)


def ours(
    part: Part, program: Path, memory: str, shape: tuple[int, int], env: dict[str, str]
) -> dict[str, Any]:
    """perftest's figures, as it tells them in JSON."""
    found: list[str] = []
    with server([program, "-p", "0"], env) as far:
        port = await_text(part, far, r"listening on \S*?:(\d+)")
        command: list[str | Path] = [program, "127.0.0.1", "-p", port, "-t", "logits"]
        command += ["--nodes", str(shape[0]), "--vocab", str(shape[1]), "-m", memory]
        command += ["-n", "100", "-w", "20", "--json"]
        status = part.run(command, found.append, env)
    lines = [line for line in found if line.startswith("{")]
    if status != 0 or not lines:
        raise Failed(f"perftest: {found[-1] if found else f'ended with {status}'}")
    return dict(json.loads(lines[-1]))


def rendezvous_wires(lines: Sequence[str], memory: str) -> list[str]:
    """The wires of the largest messages out of such memory, by UCX's tables (UCX_PROTO_INFO): what
    the sender expects of the receiver.
    """
    found, title = [], ""
    for line in lines:
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if not cells:
            continue
        if not re.fullmatch(r"\d+[KMG]?(\.\.(\d+[KMG]?|inf))?", cells[0]):
            title = title if cells[0] == "Range" else cells[-1]
        elif cells[0].endswith("inf") and "rendezvous" in cells[-2] and f" from {memory}" in title:
            found.append(cells[-1])
    return list(dict.fromkeys(found))


def theirs(
    part: Part, program: str, memory: str, size: int, env: dict[str, str]
) -> tuple[float, list[str]]:
    """ucx_perftest's microseconds one way, the median, and its wires."""
    port = str(free_port())
    found: list[str] = []
    env = {**env, "UCX_PROTO_INFO": "y"}
    with server([program, "-p", port], env) as far:
        await_listener(part, far, int(port))
        command = [program, "127.0.0.1", "-p", port, "-t", "ucp_am_lat", "-s", str(size)]
        command += ["-m", memory, "-n", "100", "-w", "20", "-f"]
        status = part.run(command, found.append, env, quiet=True, limit=THEIRS_SECONDS)
    for line in found:
        # Without its frame: iterations, 50th percentile, average, overall, ...
        words = line.replace("Final:", "").split()
        if len(words) >= 4 and all(re.fullmatch(r"[\d.]+", word) for word in words[:4]):
            return float(words[1]), rendezvous_wires(found, memory)
    raise Failed(f"ucx_perftest: {found[-1] if found else f'ended with {status}'}")


def find_theirs(settings: Settings) -> str:
    try:
        return str(settings.programs.find("ucx_perftest"))
    except Missing:
        return tool("ucx_perftest")


def transport(part: Part, settings: Settings) -> None:
    program = settings.programs.find("specfabric-perftest")
    memory = "cuda" if settings.device == "cuda" else "host"
    env = {**settings.env, **WIRES} if memory == "cuda" else settings.env
    measured = {name: ours(part, program, memory, shape, env) for name, shape in LOGITS.items()}
    micros: dict[int, float] = {}
    for name, figures in measured.items():
        size = 2 * LOGITS[name][0] * LOGITS[name][1]
        micros[size] = us = float(figures["p50_us"])
        wire = f"over {figures.get('payload_transport') or figures['transport']}"
        limit = None
        try:
            limit, wires = theirs(part, find_theirs(settings), memory, size, env)
            wire += f"; ucx_perftest over {', '.join(wires)}" if wires else ""
        except (Failed, Missing) as why:
            wire += f"; {why}"
        what = f"{memory} memory to another process: {name}"
        part.results.add(Row(what, us, "us", limit, "ucx_perftest" if limit else "", note=wire))
    (small, first), (large, last) = sorted(micros.items())
    if last > first:
        rate = (large - small) / (last - first) / 1e3
        copy = part.results.facts.get("copy_gb_per_s")
        part.results.add(Row("the same beyond 4.1 MB", rate, "GB/s", copy, "copy" if copy else ""))
    if memory == "cuda":
        shared_memory(part, settings, small)


def shared_memory(part: Part, settings: Settings, size: int) -> None:
    """What a copy between two processes' memory takes by CUDA alone: below that no wire comes."""
    found: list[dict[str, Any]] = []
    script = settings.programs.script("gpucheck", "torch_pass.py")
    command: list[str | Path] = [sys.executable, script, f"--shared={size}"]
    status = part.run(command, objects(found), settings.env)
    if status != 0 or not found:
        part.results.add(Row("CUDA shares memory between processes", 0, note="no: cuda_ipc cannot"))
        return
    us = 1e3 * found[0]["median_ms"]
    part.results.add(Row("copy from another process's memory, by CUDA", us, "us"))
