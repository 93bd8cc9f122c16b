"""Starts SpecFabric's processes for a test, on free loopback ports, and ends every one of them.

A test never outlives its processes: ends are by pid, asked for with SIGTERM first, and whatever
has to be killed or refuses to exit cleanly is an error that names the log.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

import plain_http
from exposition import value_of

ROOT = Path(__file__).resolve().parents[2]
BINARY = Path(os.environ.get("SPECFABRIC_BINARY", ROOT / "build" / "specfabric"))
TARGET = ROOT / "models" / "target"
DRAFT = ROOT / "models" / "draft"
# For the demo target: one of each kind (docs/drafters.md).
DRAFTERS = {kind: ROOT / "models" / kind for kind in ("draft", "pard", "eagle3", "dspark")}

START_SECONDS = 60.0
STOP_SECONDS = 30.0


def assert_built() -> None:
    """Nothing here can run without the program and the demo models."""
    assert BINARY.is_file(), f"{BINARY} is not built: run scripts/build"
    for model in (TARGET, DRAFT):
        assert (model / "config.json").is_file(), f"{model} holds no checkpoint"


def free_port() -> int:
    """A port that was free a moment ago, on the loopback interface.

    Below those the kernel gives to whoever asks for any: a process of the same cluster, which
    listens before this port's, could get it otherwise.
    """
    lowest_given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", random.randrange(min(10000, lowest_given // 2), lowest_given)))
            return probe.getsockname()[1]


def free_address() -> str:
    return f"127.0.0.1:{free_port()}"


def is_alive(pid: int) -> bool:
    """True where `pid` runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def descendants(pid: int) -> list[int]:
    """The live processes below `pid`, itself not among them."""
    found = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += [int(child), *descendants(int(child))]
    return found


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
    """Polls until `condition`; `seconds` is only how long to wait before calling it broken."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"still not so after {seconds:.0f} s: {what}")
        time.sleep(0.05)


def with_test_hooks(hooks: str) -> dict[str, str]:
    """This process's environment, with SPECFABRIC_TEST_HOOKS where there are any."""
    return {**os.environ, **({"SPECFABRIC_TEST_HOOKS": hooks} if hooks else {})}


@dataclass
class Process:
    """One started process, its output in `log`."""

    command: list[str]
    log: Path
    popen: subprocess.Popen[bytes]

    @classmethod
    def start(cls, arguments: Sequence[str], log: Path, test_hooks: str = "") -> Process:
        command = [str(BINARY), *arguments]
        with log.open("wb") as errors:
            popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=with_test_hooks(test_hooks),
            )
        return cls(command, log, popen)

    @property
    def pid(self) -> int:
        return self.popen.pid

    def read_line(self, seconds: float) -> str:
        """The next line of its standard output; an error that shows the log if none comes."""
        assert self.popen.stdout is not None
        line = b""
        deadline = time.monotonic() + seconds
        while not line.endswith(b"\n"):
            left = max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select([self.popen.stdout], [], [], left)
            byte = os.read(self.popen.stdout.fileno(), 1) if ready else b""
            if not byte:
                raise AssertionError(f"{' '.join(self.command)}: no line came\n{self.log_text()}")
            line += byte
        return line.decode()

    def log_text(self) -> str:
        return self.log.read_text(errors="replace")

    def stop(self, sign: signal.Signals = signal.SIGTERM) -> int:
        """Asks it to end, and waits for it and all below it. Returns its exit status.

        Raises AssertionError, after killing what stayed, where something had to be killed.
        """
        below = descendants(self.pid)
        stayed = []
        if self.popen.poll() is None:
            self.popen.send_signal(sign)
        try:
            self.popen.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            stayed.append(self.pid)
            below += descendants(self.pid)
            self.popen.kill()
            self.popen.wait()
        deadline = time.monotonic() + 5
        for pid in below:
            while is_alive(pid) and time.monotonic() < deadline:
                time.sleep(0.02)
            if is_alive(pid):
                stayed.append(pid)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if self.popen.stdout is not None:
            self.popen.stdout.close()
        if stayed:
            raise AssertionError(
                f"{' '.join(self.command)}: had to be killed: {stayed}\n{self.log_text()}"
            )
        return self.popen.returncode


@dataclass
class Member:
    """One process of a cluster, as `up --print_pids` tells of it."""

    pid: int
    listen: str
    admin: str


@dataclass
class Cluster:
    """A running `specfabric up`; made by `start_cluster`."""

    process: Process
    gateway: Member
    targets: list[Member]
    drafts: list[Member]
    model: str = ""
    killed: list[int] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://{self.gateway.listen}"

    @property
    def members(self) -> list[Member]:
        return [self.gateway, *self.targets, *self.drafts]

    def client(self) -> httpx.Client:
        return plain_http.client(self.url)

    def kill(self, member: Member) -> None:
        """Ends a member the way a crash does."""
        os.kill(member.pid, signal.SIGKILL)
        self.killed.append(member.pid)
        wait_until(lambda: not is_alive(member.pid), f"process {member.pid} is gone")

    def complete(self, **body: Any) -> dict[str, Any]:
        """The answer to one /v1/completions request that must succeed."""
        with self.client() as client:
            response = client.post("/v1/completions", json={"model": self.model, **body})
        assert response.status_code == 200, response.text
        return response.json()

    def text_of(self, token_ids: list[int]) -> str:
        """As completions show them: without the tokens that only mark where a text ends."""
        with self.client() as client:
            whole = client.post("/detokenize", json={"tokens": token_ids}).json()["prompt"]
        return whole.replace("<|begin|>", "").replace("<|end|>", "")

    def stream(self, **body: Any) -> Generator[dict[str, Any], None, None]:
        """The events of one streamed /v1/completions request that must succeed."""
        with (
            self.client() as client,
            client.stream(
                "POST", "/v1/completions", json={"model": self.model, "stream": True, **body}
            ) as response,
        ):
            assert response.status_code == 200, response.read()
            yield from events_of(response)


def events_of(response: httpx.Response) -> Iterator[dict[str, Any]]:
    """The JSON of each server-sent event; the stream must end with [DONE]."""
    done = False
    for line in response.iter_lines():
        if not line.startswith("data: "):
            assert line == "" or line.startswith(":"), f"not an event: {line!r}"
            continue
        assert not done, "an event came after [DONE]"
        if line == "data: [DONE]":
            done = True
            continue
        yield json.loads(line.removeprefix("data: "))
    assert done, "the stream ended without [DONE]"


def up_arguments(
    model: Path,
    draft_model: Path | None,
    listen: str,
    *,
    tensor_parallel: int,
    targets: int,
    drafts: int,
    dtype: str,
    extra: Sequence[str] = (),
) -> list[str]:
    arguments = [
        "up",
        f"--model={model}",
        f"--listen={listen}",
        f"--tensor_parallel={tensor_parallel}",
        f"--num_targets={targets}",
        f"--num_drafts={drafts}",
        f"--dtype={dtype}",
        "--print_pids",
        *extra,
    ]
    if draft_model is not None:
        arguments.append(f"--draft_model={draft_model}")
    return arguments


def wait_for_drafts(target: Member, count: int) -> None:
    """Waits until the target has its draft workers; it serves without them until they have come."""
    wait_until(
        lambda: value_of(target.admin, "specfabric_target_draft_workers") == count,
        "the target has its draft workers",
    )


@contextlib.contextmanager
def start_cluster(
    log: Path,
    model: Path = TARGET,
    draft_model: Path | None = DRAFT,
    *,
    tensor_parallel: int = 1,
    targets: int = 1,
    drafts: int = 2,
    dtype: str = "float32",
    speculation: str = "always",
    ngram_lookup: bool = False,
    extra: Sequence[str] = (),
    test_hooks: str = "",
) -> Iterator[Cluster]:
    """A cluster that is ready for requests; on leaving, it must end by itself with status 0.

    By default every round waits for its draft, whatever that costs, and nothing else proposes
    tokens: most tests want the draft verified. `test_hooks`: see docs/development.md.
    """
    arguments = up_arguments(
        model,
        draft_model if drafts else None,
        free_address(),
        tensor_parallel=tensor_parallel,
        targets=targets,
        drafts=drafts,
        dtype=dtype,
        extra=[
            f"--speculation={speculation}",
            f"--ngram_lookup={str(ngram_lookup).lower()}",
            *extra,
        ],
    )
    process = Process.start(arguments, log, test_hooks)
    try:
        roles = {
            role: [Member(m["pid"], m["listen"], m["admin"]) for m in members]
            for role, members in json.loads(process.read_line(START_SECONDS)).items()
        }
        cluster = Cluster(process, roles["gateway"][0], roles["target"], roles.get("draft", []))
        assert len(cluster.targets) == targets
        assert len(cluster.drafts) == drafts
        with cluster.client() as client:
            wait_until(lambda: client.get("/readyz").status_code == 200, "the cluster is ready")
            for target in cluster.targets:
                wait_for_drafts(target, drafts)
            cluster.model = client.get("/v1/models").json()["data"][0]["id"]
        yield cluster
    except BaseException:
        with contextlib.suppress(AssertionError):
            process.stop()
        raise
    status = process.stop()
    assert status == 0, f"ended with status {status}\n{process.log_text()}"


@contextlib.contextmanager
def started(log: Path, arguments: Sequence[str], test_hooks: str = "") -> Iterator[Process]:
    """One process, which must end with status 0 when it is asked to."""
    process = Process.start(arguments, log, test_hooks)
    try:
        yield process
    except BaseException:
        with contextlib.suppress(AssertionError):
            process.stop()
        raise
    assert process.stop() == 0, process.log_text()


@contextlib.contextmanager
def start_target(
    folder: Path, name: str, model: Path, drafts: Sequence[str], flags: Sequence[str]
) -> Iterator[Cluster]:
    """A target that asks drafts at these addresses, which may come and go, and a gateway.

    It is ready for requests. The last of repeated `flags` of the target counts.
    """
    at, target_at, admin = free_address(), free_address(), free_address()
    arguments = ["target", f"--model={model}", f"--listen={target_at}", f"--admin_listen={admin}"]
    if drafts:
        arguments.append(f"--drafts={','.join(drafts)}")
    gateway_arguments = [f"--model={model}", f"--listen={at}", f"--targets={target_at}"]
    with (
        started(folder / f"{name}target.log", [*arguments, *flags]) as target,
        started(folder / f"{name}gateway.log", ["gateway", *gateway_arguments]) as gateway,
    ):
        cluster = Cluster(
            gateway, Member(gateway.pid, at, at), [Member(target.pid, target_at, admin)], []
        )
        with cluster.client() as client:

            def ready() -> bool:
                with contextlib.suppress(httpx.TransportError):
                    return client.get("/readyz").status_code == 200
                return False

            wait_until(ready, "the gateway is ready")
            cluster.model = client.get("/v1/models").json()["data"][0]["id"]
        yield cluster


def run(
    arguments: Sequence[str], seconds: float = 60, test_hooks: str = ""
) -> subprocess.CompletedProcess[str]:
    """Runs the binary to its end."""
    return subprocess.run(
        [str(BINARY), *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
        env=with_test_hooks(test_hooks),
    )
