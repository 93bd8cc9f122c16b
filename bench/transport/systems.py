"""The systems that are measured: how each is started, and how its output is read."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from pair import BenchError, Pair

ROOT = Path(__file__).resolve().parents[2]
HOST = "127.0.0.1"

SHARED_MEMORY = "shared memory"
TCP = "tcp"
TRANSPORTS = [SHARED_MEMORY, TCP]

MESSAGE = "message"  # `bytes` there and `bytes` back
TREE = "tree"  # a draft's request there, 64 nodes back

# What SpecFabric itself sets on one machine for UCX before 1.16 (transport/ucx_context.cc), for it
# and for ucx_perftest alike.
UCX_COMMON = {
    "UCX_PROTO_ENABLE": "n",
    "UCX_ZCOPY_THRESH": "inf",
    "UCX_TCP_TX_SEG_SIZE": "64k",
    "UCX_POSIX_ERROR_HANDLING": "y",
    "UCX_SYSV_ERROR_HANDLING": "y",
    "UCX_TCP_PUT_ENABLE": "n",
    "UCX_KEEPALIVE_INTERVAL": "inf",
    "UCX_NET_DEVICES": "lo",
    "UCX_WARN_UNUSED_ENV_VARS": "n",
}
# tcp beside posix, because SpecFabric's connections are made by address over it; ucx_perftest's are
# not.
UCX_TLS = {SHARED_MEMORY: "posix,tcp,self", TCP: "tcp,self"}
UCX_TLS_POSIX_ALONE = "posix,self"


@dataclass(frozen=True)
class Case:
    """One point of the table. `bytes` is 0 for a tree, whose size is what its encoding makes it."""

    transport: str
    test: str
    bytes: int


@dataclass(frozen=True)
class Run:
    """A case with what one measurement of it needs."""

    case: Case
    iterations: int
    warm_up: int
    server_core: int
    client_core: int
    ucx: dict[str, str]  # settings beside those of ucx_environment; the same go before them
    directory: Path  # for sockets; empty at first


@dataclass(frozen=True)
class Reading:
    """Median one-way latency in us, half of a round trip, and the wire that carried it."""

    p50_us: float
    wire: str


@dataclass(frozen=True)
class System:
    name: str
    binary: Path
    pair: Callable[[Path, Run], Pair]
    read: Callable[[str, Case], Reading]
    cases: Callable[[Case], bool]
    # A round trip over shared memory does not enter the kernel: it takes many more iterations to
    # measure for long enough.
    bypasses_kernel: bool = False
    ours: bool = False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def ucx_environment(case: Case) -> dict[str, str]:
    return {**UCX_COMMON, "UCX_TLS": UCX_TLS[case.transport]}


def pinned(core: int, command: list[str]) -> list[str]:
    return ["taskset", "--cpu-list", str(core), *command]


def ucx_style_pair(binary: Path, run: Run, options: list[str], pin: bool = True) -> Pair:
    port = free_port()
    common = ["-p", str(port), *options]
    server, client = [str(binary), *common], [str(binary), HOST, *common]
    return Pair(
        server=pinned(run.server_core, server) if pin else server,
        client=pinned(run.client_core, client) if pin else client,
        listens_at=port,
        environment={**ucx_environment(run.case), **run.ucx},
    )


def counts(run: Run) -> list[str]:
    return ["-n", str(run.iterations), "-w", str(run.warm_up)]


def ucx_perftest(**settings: str) -> Callable[[Path, Run], Pair]:
    """With these UCX settings overriding all others."""

    def pair(binary: Path, run: Run) -> Pair:
        # -I: with wake-up, which a process that also sleeps needs. -f -v: final figures as CSV.
        options = ["-t", "ucp_am_lat", "-s", str(run.case.bytes), *counts(run), "-I", "-f", "-v"]
        plain = ucx_style_pair(binary, run, options)
        return replace(plain, environment={**plain.environment, **settings})

    return pair


def read_ucx_perftest(text: str, tls: str) -> Reading:
    """`tls`: the wires it was allowed, because it does not print the one it used."""
    # Iterations, padded, then the 50th percentile; log lines of UCX may come before.
    match = re.search(r"^ *\d+,([0-9.]+),[0-9.,]+$", text, re.MULTILINE)
    if match is None:
        raise BenchError(f"ucx_perftest printed no result: {text.strip()[-200:]!r}")
    return Reading(float(match[1]), f"UCX_TLS={tls}")


def perftest(*extra: str, pin: bool = True) -> Callable[[Path, Run], Pair]:
    def pair(binary: Path, run: Run) -> Pair:
        test = "tree" if run.case.test == TREE else "am_lat"
        size = [] if run.case.test == TREE else ["-s", str(run.case.bytes)]
        options = ["-t", test, *size, *counts(run), "--json", *extra]
        return ucx_style_pair(binary, run, options, pin)

    return pair


def read_perftest(text: str, case: Case) -> Reading:
    # Log lines of UCX may come before the object.
    try:
        result, _ = json.JSONDecoder().raw_decode(text, text.index("{"))
        reading = Reading(float(result["p50_us"]), str(result["transport"]))
    except (ValueError, KeyError, TypeError) as error:
        shown = text.strip()[-200:]
        raise BenchError(f"specfabric-perftest printed no result: {shown!r}") from error
    wanted = UCX_TLS[case.transport].partition(",")[0]
    if wanted not in reading.wire:
        raise BenchError(f"specfabric-perftest ran over {reading.wire!r} instead of {wanted}")
    return reading


def peer_pair(binary: Path, run: Run, options: list[str], socket_form: str, tcp_form: str) -> Pair:
    """A pair of one of this folder's own programs."""
    listens_at: int | Path
    if run.case.transport == SHARED_MEMORY:
        listens_at = run.directory / "socket"
        address = socket_form.format(listens_at)
    else:
        listens_at = free_port()
        address = tcp_form.format(f"{HOST}:{listens_at}")
    size = [] if run.case.test == TREE else [f"--bytes={run.case.bytes}"]
    return Pair(
        server=[str(binary), f"--listen={address}", f"--core={run.server_core}", *size, *options],
        client=[
            str(binary),
            f"--connect={address}",
            f"--core={run.client_core}",
            f"--iterations={run.iterations}",
            f"--warm_up={run.warm_up}",
            *size,
            *options,
        ],
        listens_at=listens_at,
        environment={"GRPC_VERBOSITY": "NONE"},
    )


def grpc(method: str, wait: str) -> Callable[[Path, Run], Pair]:
    def pair(binary: Path, run: Run) -> Pair:
        test = f"tree_{method}" if run.case.test == TREE else method
        return peer_pair(binary, run, [f"--test={test}", f"--wait={wait}"], "unix:{}", "{}")

    return pair


def zmq(binary: Path, run: Run) -> Pair:
    return peer_pair(binary, run, ["--wait=block"], "ipc://{}", "tcp://{}")


def tcp(binary: Path, run: Run) -> Pair:
    return peer_pair(binary, run, ["--wait=poll"], "", "{}")


def read_peer(text: str, case: Case) -> Reading:
    lines = text.strip().splitlines()
    if len(lines) != 2:
        raise BenchError(f"a peer printed no result: {text.strip()[-200:]!r}")
    row = dict(zip(lines[0].split(","), lines[1].split(","), strict=True))
    wire = "unix socket" if case.transport == SHARED_MEMORY else "tcp"
    return Reading(float(row["p50_us"]), wire)


OURS = "specfabric"
OURS_THREADED = "specfabric, by the progress thread"
UCX = "ucx_perftest"
UCX_POSIX_ALONE = "ucx_perftest without a TCP wire"


def all_systems(build: Path, ucx_perftest_binary: Path) -> list[System]:
    folder = build / "bench" / "transport"
    perftest_binary = build / "specfabric-perftest"

    def ours(name: str, pair: Callable[[Path, Run], Pair]) -> System:
        return System(name, perftest_binary, pair, read_perftest, lambda case: True, True, True)

    def grpc_system(method: str, wait: str, manner: str) -> System:
        name = f"gRPC {method}, {manner}"
        return System(name, folder / "grpc_bench", grpc(method, wait), read_peer, lambda case: True)

    def ucx(name: str, cases: Callable[[Case], bool], **settings: str) -> System:
        def read(text: str, case: Case) -> Reading:
            return read_ucx_perftest(text, settings.get("UCX_TLS", UCX_TLS[case.transport]))

        return System(name, ucx_perftest_binary, ucx_perftest(**settings), read, cases, True)

    def is_message(case: Case) -> bool:
        return case.test == MESSAGE

    return [
        ucx(
            UCX_POSIX_ALONE,
            lambda case: is_message(case) and case.transport == SHARED_MEMORY,
            UCX_TLS=UCX_TLS_POSIX_ALONE,
        ),
        ucx(UCX, is_message),
        ours(OURS, perftest()),
        # Four threads on two cores: not pinned and without spinning, as the services run on a
        # machine with few cores.
        ours(OURS_THREADED, perftest("--threaded", "--spin=0", pin=False)),
        grpc_system("stream", "poll", "polling"),
        grpc_system("unary", "poll", "polling"),
        grpc_system("stream", "block", "sleeping"),
        grpc_system("unary", "block", "sleeping"),
        System("ZeroMQ", folder / "zmq_bench", zmq, read_peer, is_message),
        System(
            "raw TCP, polling",
            folder / "tcp_bench",
            tcp,
            read_peer,
            lambda case: is_message(case) and case.transport == TCP,
        ),
    ]
