"""OpenAI's own client for Node.js, unmodified; openai_node.cjs stands for a user's program."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

import installed
from cluster import Cluster

TOKENS = 13  # as openai_node.cjs asks for


@pytest.fixture(scope="module")
def modules() -> Path:
    folder = installed.client_dir("openai-node") / "node_modules"
    version = run(folder, "version", "", "")
    installed.met("openai-node", version)
    return folder


def run(modules: Path, case: str, url: str, model: str) -> Any:
    script = Path(__file__).with_name("openai_node.cjs")
    output = installed.run_client(
        ["node", script, case, url, model], {"NODE_PATH": str(modules)}, modules, 120
    )
    return json.loads(output)


def case(modules: Path, served: Cluster, name: str) -> Any:
    return run(modules, name, f"{served.url}/v1", served.model)


def test_a_model_whose_name_holds_a_slash_is_retrieved(modules: Path, served: Cluster) -> None:
    found = case(modules, served, "retrieve")
    assert found["retrieved"]["id"] == served.model
    assert found["listed"] == [found["retrieved"]]


def test_a_model_that_is_not_there_is_not_found(modules: Path, served: Cluster) -> None:
    assert case(modules, served, "missing") == {"isNotFound": True, "code": "model_not_found"}


@pytest.mark.parametrize("choices", [1, 3])
def test_streaming_helper_gives_every_log_probability_once(
    modules: Path, served: Cluster, choices: int
) -> None:
    """The helper's sum of the chunks is the answer without streaming.

    Until version 7 the helper keeps the first chunk's list of log-probabilities and then appends
    that chunk's to it, so that the first chunk must have none.
    """
    found = case(modules, served, f"stream-{choices}")
    whole, final, seen = found["whole"]["choices"], found["final"]["choices"], found["seen"]
    assert len(final) == len(whole) == choices
    for streamed, expected in zip(final, whole, strict=True):
        assert streamed["message"]["role"] == "assistant"
        assert streamed["message"]["content"] == expected["message"]["content"]
        assert streamed["finish_reason"] == expected["finish_reason"] == "stop"
        tokens = [entry["token"] for entry in expected["logprobs"]["content"]]
        assert [entry["token"] for entry in streamed["logprobs"]["content"]] == tokens
        assert len(tokens) == TOKENS
    assert seen["logprobs"] == choices * TOKENS
    assert found["final"]["usage"]["completion_tokens"] == choices * TOKENS
    if choices == 1:
        assert seen["deltas"] == seen["snapshot"] == whole[0]["message"]["content"]


def test_an_aborted_stream_cancels_its_work(
    modules: Path, served: Cluster, cancelled: Callable[[], AbstractContextManager[None]]
) -> None:
    with cancelled():
        assert case(modules, served, "abort") == {"isAbort": True}


def test_streamed_completion_equals_the_whole(modules: Path, served: Cluster) -> None:
    found = case(modules, served, "completions")
    assert found["streamed"] == found["whole"] != ""
    assert found["reasons"][-1] in {"length", "stop"}
    assert set(found["reasons"][:-1]) <= {None}


def test_five_stops(modules: Path, served: Cluster) -> None:
    found = case(modules, served, "stops")
    # Of the five only the last is met.
    cut = found["whole"][: found["whole"].index(found["stop"][4])]
    assert cut
    assert (found["cut"]["text"], found["cut"]["finish_reason"]) == (cut, "stop")


def test_many_streams_of_one_client(modules: Path, served: Cluster) -> None:
    texts = case(modules, served, "many")
    assert len(texts) == 16
    assert all(texts)


def assert_valid(call: Any) -> None:
    assert set(call) == {"city", "days", "sunny"}
    assert call["city"] in ("Paris", "Rome")
    assert call["days"] in (1, 2)
    assert call["sunny"] in (True, False)


def test_a_form_is_parsed(modules: Path, served_tools: Cluster) -> None:
    whole, streamed = case(modules, served_tools, "form")
    assert_valid(whole)
    assert streamed == whole


@pytest.mark.parametrize("way", ["tools", "streamed-tools"])
def test_a_function_is_called(modules: Path, served_tools: Cluster, way: str) -> None:
    found = case(modules, served_tools, way)
    (call,) = found["calls"]
    assert_valid(call)
    assert found["result"] == "It is warm."


def test_responses(modules: Path, served_tools: Cluster) -> None:
    found = case(modules, served_tools, "responses")
    assert found["whole"] == found["deltas"] == found["final"] != ""
    whole, streamed = case(modules, served_tools, "responses-form")
    assert_valid(whole)
    assert streamed == whole
    (call,) = case(modules, served_tools, "responses-tools")
    assert_valid(call)
