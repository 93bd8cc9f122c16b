"""How peers are asked to speculate, and when the goal is reached."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.serving import peer_servers, peers
from bench.serving.cells import Cell, Found
from bench.serving.peer_servers import Pair, Way
from bench.serving.turns import Interval

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
