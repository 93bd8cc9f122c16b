"""How peers are asked to speculate, and when the goal is reached."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from bench.serving import peer_servers, peers
from bench.serving.cells import Cell, Found
from bench.serving.client import ServerError, complete
from bench.serving.peer_servers import Pair, Peer, Way
from bench.serving.turns import Interval
from cluster import descendants, is_alive, wait_until

PAIR = Pair(Path("/m/target"), Path("/m/draft"), [0, 2], 16)
CELL = Cell("shared", 0.0, "code", 4)


def test_ways_are_told_by_kind_and_tokens() -> None:
    assert peer_servers.vllm_way("draft:5") == Way("draft", 5)
    assert peer_servers.llama_way("draft") == Way("draft")
    assert str(Way("draft", 5)) == "draft:5"
    assert str(Way("plain")) == "plain"


@pytest.mark.parametrize("word", ["", "eagle", "plain:3", "draft:", "draft:0", "draft:x", "ngram"])
def test_what_vllm_cannot_do_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match="allowed:"):
        peer_servers.vllm_way(word)


@pytest.mark.parametrize("word", ["ngram", "ngram-mod:3", "draft:-1"])
def test_what_llama_cannot_do_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match="allowed:"):
        peer_servers.llama_way(word)


def speculation_of(chosen: Way) -> dict[str, object] | None:
    command = peer_servers.vllm(Path("/v/python"), PAIR, chosen).command
    if "--speculative-config" not in command:
        return None
    return json.loads(command[command.index("--speculative-config") + 1])


def test_vllm_is_told_how_to_speculate_and_on_which_cores() -> None:
    assert speculation_of(Way("plain")) is None
    draft = speculation_of(Way("draft", 3))
    assert draft == {"method": "draft_model", "model": "/m/draft", "num_speculative_tokens": 3}
    ngram = speculation_of(Way("ngram", 5))
    assert ngram is not None
    assert (ngram["method"], ngram["num_speculative_tokens"]) == ("ngram", 5)
    environment = peer_servers.vllm(Path("/v/python"), PAIR, Way("plain")).environment
    assert environment["VLLM_CPU_OMP_THREADS_BIND"] == "0,2"


def test_llama_has_a_whole_context_for_each_client() -> None:
    peer = peer_servers.llama(Path("/l/llama-server"), PAIR, Way("draft", 8))
    flags = dict(zip(peer.command[1::2], peer.command[2::2], strict=True))
    assert flags["--ctx-size"] == str(16 * PAIR.context)
    assert (flags["--parallel"], flags["--threads"]) == ("16", "2")
    assert (flags["--spec-draft-model"], flags["--spec-draft-n-max"]) == ("/m/draft", "8")
    assert "--spec-type" not in peer_servers.llama(Path("/l"), PAIR, Way("plain")).command


def test_each_system_is_compared_by_its_best() -> None:
    rates = {
        "default": [40.0, 42.0, 41.0],
        "plain": [10.0] * 3,
        "vLLM plain": [9.0] * 3,
        "vLLM draft:5": [20.0, 20.0, 21.0],
        "llama.cpp plain": [30.0] * 3,
    }
    one = Found(CELL, rates, {})
    assert peers.best_of(one, "vLLM") == "vLLM draft:5"
    assert peers.best_of(one, "llama.cpp") == "llama.cpp plain"
    line = peers.row(one)
    assert "| 20.0 | draft:5 | 2.05" in line
    assert "2: reached" in line
    assert "2: missed" in line
    assert peers.best_of(Found(CELL, {"default": [1.0], "plain": [1.0]}, {}), "vLLM") is None


def test_goals_are_for_some_numbers_of_clients() -> None:
    assert peers.goal_of(16, Interval(1.5, 1.0, 2.0)) == "1.5: reached"
    assert peers.goal_of(4, Interval(1.99, 1.0, 3.0)) == "2: missed"
    assert peers.goal_of(7, Interval(9.0, 9.0, 9.0)) == ""


# Answers every request with one token; has a child that only ends by a signal.
SERVER = """
import http.server, subprocess, sys
subprocess.Popen(["sleep", "600"])
BODY = (
    b'data: {"choices": [{"text": "a"}], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}'
    b"\\n\\ndata: [DONE]\\n\\n"
)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()
        self.wfile.write(BODY)
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()
"""


def states_of(pids: list[int]) -> set[str]:
    """As /proc tells them: T is stopped."""
    stats = [Path(f"/proc/{pid}/stat").read_text() for pid in pids]
    return {stat.rpartition(")")[2].split()[0] for stat in stats}


def test_a_peer_is_stopped_between_its_turns_and_gone_with_all_its_processes(
    tmp_path: Path,
) -> None:
    peer = Peer("vLLM", Way("draft", 5), [sys.executable, "-c", SERVER])
    with peer_servers.started(peer, tmp_path) as running:
        pids = [running.popen.pid, *descendants(running.popen.pid)]
        assert len(pids) == 2
        wait_until(lambda: states_of(pids) == {"T"}, "all are stopped")
        running.resume()
        assert asyncio.run(complete(running.server, [1], 1, {})).succeeded
        running.pause()
        wait_until(lambda: states_of(pids) == {"T"}, "all are stopped again")
    wait_until(lambda: not any(map(is_alive, pids)), "all are gone")


def test_a_peer_that_does_not_start_shows_its_log(tmp_path: Path) -> None:
    peer = Peer("vLLM", Way("plain"), [sys.executable, "-c", "raise SystemExit('no such model')"])
    with (
        pytest.raises(ServerError, match="vLLM plain ended with 1: no such model"),
        peer_servers.started(peer, tmp_path),
    ):
        pass


def test_the_environment_is_added_to_this_one(tmp_path: Path) -> None:
    say = "import os; raise SystemExit(os.environ['PATH'] + os.environ['ADDED'])"
    peer = Peer("vLLM", Way("plain"), [sys.executable, "-c", say], {"ADDED": ":x"})
    with (
        pytest.raises(ServerError, match=f"{os.environ['PATH'][-20:]}:x"),
        peer_servers.started(peer, tmp_path),
    ):
        pass
