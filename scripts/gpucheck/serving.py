"""Serving on one GPU: tokens a second by clients and by how tokens are proposed, and where the time
between two passes goes.

The target is the demo target with MLPs so wide that reading them takes as long as a model of some
size does (scripts/make_bench_pair.py), so that the demo draft drafts for it.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpucheck.parts import Settings
from gpucheck.runner import Failed, Missing, Part, end_group
from gpucheck.table import Row

TOKENS = 128  # of an answer
PROMPTS = (
    "def mean(values):",
    "class Stack:",
    "import os\n",
    "for i in range(10):",
    "def read_lines(path):",
    "class Node:\n    def __init__(self",
    "with open(name) as file:",
    "def test_sum():",
)
# How tokens are proposed; "plain" is what the others are held against.
FORMS: dict[str, tuple[bool, tuple[str, ...]]] = {  # whether there is a draft, and flags
    "plain": (False, ("--ngram_lookup=false",)),
    "lookup": (False, ()),
    "draft": (True, ("--ngram_lookup=false",)),
    "default": (True, ()),
}
INTERMEDIATE_SIZE = 262_144  # 2.4 GB
MODEL_NAME = "widened"
GRACE_SECONDS = 8.0  # for a cluster to end in order


@dataclass
class Load:
    """What some clients got in a while."""

    tokens: int = 0
    errors: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, tokens: int) -> None:
        with self.lock:
            self.tokens += tokens

    def fail(self, error: str) -> None:
        with self.lock:
            self.errors.append(error)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def ask(port: int, client: int, number: int, load: Load) -> None:
    body = {
        "model": MODEL_NAME,
        "prompt": PROMPTS[client % len(PROMPTS)],
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "temperature": 0,
        "seed": number,
    }
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        response = connection.getresponse()
        answer = json.loads(response.read())
        if response.status != 200:
            raise ValueError(f"{response.status}: {answer}")
        load.add(answer["usage"]["completion_tokens"])
    finally:
        connection.close()


def drive(port: int, clients: int, seconds: float) -> tuple[float, list[str]]:
    """Tokens a second of so many clients, each of which asks again once it has its answer."""
    load = Load()
    begin = time.monotonic()

    def run(client: int) -> None:
        number = 0
        while time.monotonic() - begin < seconds and not load.errors:
            try:
                ask(port, client, number, load)
            except (OSError, ValueError, KeyError, http.client.HTTPException) as error:
                load.fail(f"{type(error).__name__}: {error}")
            number += 1

    threads = [threading.Thread(target=run, args=(client,)) for client in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return load.tokens / (time.monotonic() - begin), load.errors


def spans(metrics: str) -> dict[str, tuple[float, float]]:
    """Seconds and count by phase of a round, of a target's /metrics."""
    found: dict[str, dict[str, float]] = {}
    pattern = r'^specfabric_round_span_seconds_(sum|count)\{[^}]*span="(\w+)"[^}]*\} (\S+)$'
    for kind, span, value in re.findall(pattern, metrics, re.MULTILINE):
        found.setdefault(span, {})[kind] = float(value)
    return {span: (both["sum"], both["count"]) for span, both in found.items() if len(both) == 2}


def read_metrics(address: str) -> dict[str, tuple[float, float]]:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as response:
        return spans(response.read().decode())


@dataclass
class Cluster:
    """A running cluster."""

    port: int
    admin: str  # the target's


@contextlib.contextmanager
def cluster(part: Part, settings: Settings, model: Path, form: str) -> Iterator[Cluster]:
    has_draft, flags = FORMS[form]
    port = free_port()
    command = [str(settings.programs.find("specfabric")), "up", f"--device={settings.device}"]
    command += [f"--model={model}", f"--listen=127.0.0.1:{port}", "--num_targets=1", "--print_pids"]
    command += [f"--served_model_name={MODEL_NAME}", "--log_level=warning", *flags]
    command.append(f"--num_drafts={int(has_draft)}")
    if has_draft:
        command.append(f"--draft_model={settings.programs.model('draft')}")
    with tempfile.NamedTemporaryFile("w+", suffix=".log") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, **settings.env},
            start_new_session=True,
        )
        try:
            line = first_line(part, process)
            if not line:
                told = Path(log.name).read_text(errors="replace").strip().splitlines()
                raise Failed(f"{form}: the cluster did not start: {' '.join(told[-2:])}")
            members: dict[str, Any] = json.loads(line)
            yield Cluster(port, members["target"][0]["admin"])
        finally:
            end_group(process, GRACE_SECONDS)


def first_line(part: Part, process: subprocess.Popen[str]) -> str:
    """What `up` prints once all its processes are ready; nothing where it ends."""
    output = process.stdout
    assert output is not None
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.append(output.readline()), daemon=True)
    reader.start()
    while reader.is_alive():
        reader.join(min(part.left(), 0.2))
    return lines[0] if lines else ""


def widened_target(part: Part, settings: Settings, folder: Path) -> Path:
    settings.programs.model("target")
    out = folder / "target"
    script = settings.programs.script("make_bench_pair.py")
    width = str(settings.serving_width or INTERMEDIATE_SIZE)
    part.check([sys.executable, script, "--out", out, "--intermediate_size", width])
    return out


def measure(
    part: Part, found: Cluster, form: str, clients: int, known: dict[str, float], seconds: float
) -> None:
    """Rows of one form at one number of clients."""
    before = read_metrics(found.admin)
    begin = time.monotonic()
    rate, errors = drive(found.port, clients, min(seconds, part.left()))
    elapsed = time.monotonic() - begin
    if errors:
        raise Failed(f"{form}, {clients} clients: {errors[0]}")
    plain = known.setdefault(f"plain {clients}", rate) if form == "plain" else None
    what = f"serving, {clients} clients: {form}"
    against = known.get(f"plain {clients}") if plain is None else None
    part.results.add(Row(what, rate, "tokens/s", against, "plain" if against else ""))
    part.say(f"{what}: {rate:.0f} tokens/s")
    if clients not in (1, 8):
        return
    after = read_metrics(found.admin)
    phases = {
        span: (seconds_now - before.get(span, (0, 0))[0], count - before.get(span, (0, 0))[1])
        for span, (seconds_now, count) in after.items()
    }
    forward, rounds = phases.get("forward", (0.0, 0.0))
    if rounds <= 0:
        return
    each = {
        span: 1e3 * total / rounds for span, (total, _) in phases.items() if total > 1e-4 * elapsed
    }
    note = ", ".join(f"{span} {ms:.3f}" for span, ms in sorted(each.items(), key=lambda e: -e[1]))
    part.results.add(
        Row(
            f"{what}: between two passes",
            1e3 * (elapsed - forward) / rounds,
            "ms",
            1e3 * elapsed / rounds,
            "a round",
            note=f"ms: {note}",
        )
    )


def serving(part: Part, settings: Settings) -> None:
    """Tokens a second of every form at every number of clients."""
    known: dict[str, float] = {}
    bad: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        model = widened_target(part, settings, Path(folder))
        for form in FORMS:
            try:
                with cluster(part, settings, model, form) as found:
                    drive(found.port, 1, 0.5)  # graphs are captured, prompts cached
                    for clients in settings.clients:
                        part.left()
                        measure(part, found, form, clients, known, settings.serving_seconds)
            except Failed as failure:
                part.say(str(failure))
                bad.append(str(failure))
            except Missing:
                if form == "plain":
                    raise
                part.say(f"{form}: left out, no draft")
    if bad:
        raise Failed("; ".join(bad))
