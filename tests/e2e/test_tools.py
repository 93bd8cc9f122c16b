"""Calls of tools in chats: required ones by grammar, others where the model writes them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import fastjsonschema
import openai
import pytest

from cluster import Cluster
from tools_template import serve_with_tools

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Paris", "Rome"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "unit": {"$ref": "#/$defs/Unit"},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
    "$defs": {"Unit": {"enum": ["C", "F"]}},
}
NOTE: dict[str, Any] = {
    "type": "object",
    "properties": {"text": {"type": "string", "maxLength": 10}},
    "required": ["text"],
    "additionalProperties": False,
}
SCHEMAS = {"get_weather": WEATHER, "take_note": NOTE}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "parameters": schema, "description": name}}
    for name, schema in SCHEMAS.items()
]
END = 1  # the demo models' end of text
MESSAGES: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with serve_with_tools(tmp_path_factory.mktemp("tools")) as running:
        yield running


@pytest.fixture(scope="module")
def client(cluster: Cluster) -> openai.OpenAI:
    return openai.OpenAI(base_url=cluster.url + "/v1", api_key="none", max_retries=0)


def ask(client: openai.OpenAI, **settings: Any) -> Any:
    model = client.models.list().data[0].id
    body: dict[str, Any] = {
        "model": model,
        "messages": MESSAGES,
        "tools": TOOLS,
        "max_tokens": 400,
        "temperature": 1,
        "seed": 1,
    }
    return client.chat.completions.create(**body | settings)


def assert_valid(call: Any) -> None:
    assert call.type == "function"
    fastjsonschema.validate(SCHEMAS[call.function.name], json.loads(call.function.arguments))


@pytest.mark.parametrize("seed", range(5))
def test_a_required_call_is_valid(client: openai.OpenAI, seed: int) -> None:
    answer = ask(client, tool_choice="required", parallel_tool_calls=False, seed=seed)
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    (call,) = choice.message.tool_calls
    assert_valid(call)


def test_a_greedy_call_ends(client: openai.OpenAI) -> None:
    """Whatever white space a model likes best."""
    settings = {"tool_choice": "required", "parallel_tool_calls": False, "temperature": 0}
    (choice,) = ask(client, **settings).choices
    assert choice.finish_reason == "tool_calls"
    for call in choice.message.tool_calls:
        assert_valid(call)


@pytest.mark.parametrize("name", list(SCHEMAS))
def test_a_named_tool_is_called(client: openai.OpenAI, name: str) -> None:
    answer = ask(client, tool_choice={"type": "function", "function": {"name": name}}, n=2)
    ids = set()
    for choice in answer.choices:
        (call,) = choice.message.tool_calls
        assert call.function.name == name
        assert_valid(call)
        ids.add(call.id)
    assert len(ids) == 2


def test_a_stream_tells_calls_as_they_come(client: openai.OpenAI) -> None:
    whole = ask(client, tool_choice="required", parallel_tool_calls=False)
    expected = whole.choices[0].message.tool_calls[0].function
    name, arguments, ids, reason, parts = "", "", [], None, 0
    for chunk in ask(client, tool_choice="required", parallel_tool_calls=False, stream=True):
        (choice,) = chunk.choices
        reason = choice.finish_reason or reason
        assert not choice.delta.content
        for call in choice.delta.tool_calls or []:
            assert call.index == 0
            ids += [call.id] if call.id else []
            name += call.function.name or ""
            arguments += call.function.arguments or ""
            parts += 1
    assert (name, arguments) == (expected.name, expected.arguments)
    assert len(ids) == 1
    assert reason == "tool_calls"
    assert parts > 1


def test_several_calls(client: openai.OpenAI) -> None:
    """A model that ends or goes on by chance calls once or more often."""
    counts = set()
    for seed in range(16):
        (choice,) = ask(client, tool_choice="required", seed=seed, logit_bias={str(END): 7}).choices
        calls = choice.message.tool_calls
        for call in calls if choice.finish_reason == "tool_calls" else calls[:-1]:
            assert_valid(call)
        counts.add(len(calls))
    assert len(counts) > 1


def test_a_chat_goes_on_after_a_call(client: openai.OpenAI) -> None:
    call = ask(client, tool_choice="required", parallel_tool_calls=False).choices[0].message
    answer = ask(
        client,
        messages=[
            *MESSAGES,
            call.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": call.tool_calls[0].id, "content": "sunny"},
        ],
        tool_choice="none",
        max_tokens=8,
    )
    assert answer.choices[0].finish_reason in ("length", "stop")
    assert answer.choices[0].message.tool_calls is None


def test_text_without_a_call_is_content(client: openai.OpenAI) -> None:
    answer = ask(client, temperature=0, max_tokens=20)
    plain = ask(client, temperature=0, max_tokens=20, tool_choice="auto", logprobs=True)
    assert answer.choices[0].message.tool_calls is None
    assert answer.choices[0].message.content == plain.choices[0].message.content


def test_a_tool_that_cannot_be_followed_is_refused(client: openai.OpenAI) -> None:
    bad = [{"type": "function", "function": {"name": "f", "parameters": {"type": "tree"}}}]
    with pytest.raises(openai.BadRequestError) as error:
        ask(client, tools=bad, tool_choice="required")
    assert error.value.param == "tools"
