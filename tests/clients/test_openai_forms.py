"""OpenAI's own client for Python: what it parses into objects, whole and streamed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel

from cases import MOST, QUESTION, Weather
from cluster import Cluster

MESSAGES: list[Any] = [{"role": "user", "content": QUESTION}]


class GetWeather(BaseModel):
    """Tells the weather."""

    city: Literal["Paris", "Rome"]
    days: Literal[1, 2, 3]


class TakeNote(BaseModel):
    """Notes something."""

    about: Literal["sun", "rain"]


@pytest.fixture
def client(served_tools: Cluster) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{served_tools.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def body(served_tools: Cluster, **options: Any) -> dict[str, Any]:
    return {
        "model": served_tools.model,
        "messages": MESSAGES,
        "temperature": 1,
        "max_tokens": MOST,
        **options,
    }


@pytest.mark.parametrize("seed", range(3))
def test_a_form_is_parsed(client: OpenAI, served_tools: Cluster, seed: int) -> None:
    asked = body(served_tools, response_format=Weather, seed=seed)
    whole = client.chat.completions.parse(**asked).choices[0].message.parsed
    assert isinstance(whole, Weather)
    with client.chat.completions.stream(**asked) as stream:
        (done,) = [event for event in stream if event.type == "content.done"]
        streamed = stream.get_final_completion().choices[0].message.parsed
    assert done.parsed == streamed == whole


@pytest.mark.parametrize("seed", range(3))
def test_arguments_are_parsed(client: OpenAI, served_tools: Cluster, seed: int) -> None:
    asked = body(
        served_tools,
        tools=[openai.pydantic_function_tool(model) for model in (GetWeather, TakeNote)],
        tool_choice="required",
        parallel_tool_calls=False,
        seed=seed,
    )
    (call,) = client.chat.completions.parse(**asked).choices[0].message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, GetWeather | TakeNote)
    assert type(call.function.parsed_arguments).__name__ == call.function.name
    parts = []
    with client.chat.completions.stream(**asked) as stream:
        for event in stream:
            if event.type == "tool_calls.function.arguments.delta":
                parts.append(event.arguments_delta)
            elif event.type == "tool_calls.function.arguments.done":
                assert event.parsed_arguments == call.function.parsed_arguments
        (streamed,) = stream.get_final_completion().choices[0].message.tool_calls or []
    assert "".join(parts) == streamed.function.arguments == call.function.arguments
    assert len(parts) > 1
    assert streamed.function.parsed_arguments == call.function.parsed_arguments
    assert streamed.id
