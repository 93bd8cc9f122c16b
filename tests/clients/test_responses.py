"""/v1/responses as OpenAI's own client for Python takes it, unmodified."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import fastjsonschema
import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from cases import ENDS, MOST, PARAMETERS, QUESTION, Weather
from client_cases import CALL, TOKENS, WEATHER, plain_text
from cluster import Cluster
from test_openai_forms import GetWeather, TakeNote

TOOLS: list[Any] = [
    {"type": "function", "name": "get_weather", "parameters": PARAMETERS, "strict": True}
]
NAMED = {"type": "function", "name": "get_weather"}
FORM = {"format": {"type": "json_schema", "name": "weather", "schema": WEATHER, "strict": True}}


@pytest.fixture
def client(served_tools: Cluster) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{served_tools.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def body(served_tools: Cluster, **options: Any) -> dict[str, Any]:
    return {
        "model": served_tools.model,
        "input": QUESTION,
        "temperature": 0,
        "max_output_tokens": MOST,
        "extra_body": ENDS,
        **options,
    }


def test_a_text(client: OpenAI, served_tools: Cluster) -> None:
    answer = client.responses.create(**body(served_tools))
    assert answer.output_text == plain_text(served_tools.url, served_tools.model)
    assert (answer.object, answer.status, answer.model) == (
        "response",
        "completed",
        served_tools.model,
    )
    assert (answer.error, answer.incomplete_details) == (None, None)
    (message,) = answer.output
    assert (message.type, message.role, message.status) == ("message", "assistant", "completed")
    assert answer.usage is not None
    assert answer.usage.output_tokens == TOKENS
    assert answer.usage.total_tokens == answer.usage.input_tokens + TOKENS
    assert answer.usage.output_tokens_details.reasoning_tokens == 0
    # As the client's own types want it.
    type(answer).model_validate(answer.to_dict())


@pytest.mark.parametrize(
    "given",
    [
        [{"role": "user", "content": QUESTION}],
        [
            {
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": QUESTION}],
            }
        ],
    ],
)
def test_every_way_to_ask(client: OpenAI, served_tools: Cluster, given: list[Any]) -> None:
    answer = client.responses.create(**body(served_tools, input=given, tools=[], include=[]))
    assert answer.output_text == plain_text(served_tools.url, served_tools.model)


def test_instructions_are_a_system_message(client: OpenAI, served_tools: Cluster) -> None:
    told = client.responses.create(**body(served_tools, instructions="Be brief."))
    messages: list[Any] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": QUESTION},
    ]
    chat = client.chat.completions.create(
        model=served_tools.model,
        messages=messages,
        temperature=0,
        max_tokens=MOST,
        extra_body=ENDS,
    )
    assert told.output_text == chat.choices[0].message.content
    assert told.usage is not None
    assert chat.usage is not None
    assert told.usage.input_tokens == chat.usage.prompt_tokens


def events_of(client: OpenAI, asked: dict[str, Any]) -> list[Any]:
    """A stream's events, each as the client's own type wants it, numbered without a gap."""
    events = list(client.responses.create(**asked, stream=True))
    for number, event in enumerate(events):
        assert event.sequence_number == number
        type(event).model_validate(event.to_dict())
    return events


def test_a_stream(client: OpenAI, served_tools: Cluster) -> None:
    asked = body(served_tools)
    whole = client.responses.create(**asked)
    events = events_of(client, asked)
    kinds = [event.type for event in events]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert len(deltas) > 1
    assert "".join(deltas) == whole.output_text
    assert [kind for kind in kinds if kind != "response.in_progress"] == [
        "response.created",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * len(deltas),
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    final = events[-1].response
    assert final.output_text == whole.output_text
    assert final.usage == whole.usage
    assert final.id == events[0].response.id
    assert final.output == [event.item for event in events if hasattr(event, "item")][-1:]


def test_a_stream_of_a_call(client: OpenAI, served_tools: Cluster) -> None:
    events = events_of(client, body(served_tools, tools=TOOLS, tool_choice=NAMED))
    (item,) = events[-1].response.output
    kind = "response.function_call_arguments"
    parts = [event.delta for event in events if event.type == f"{kind}.delta"]
    (done,) = [event for event in events if event.type == f"{kind}.done"]
    assert "".join(parts) == done.arguments == item.arguments
    assert len(parts) > 1
    fastjsonschema.validate(CALL, json.loads(item.arguments))
    (added,) = [event.item for event in events if event.type == "response.output_item.added"]
    assert (added.id, added.call_id, added.name) == (item.id, item.call_id, "get_weather")


def test_the_streaming_helper(client: OpenAI, served_tools: Cluster) -> None:
    asked = body(served_tools)
    whole = client.responses.create(**asked)
    with client.responses.stream(**asked) as stream:
        snapshots = [event.snapshot for event in stream if hasattr(event, "snapshot")]
        final = stream.get_final_response()
    assert snapshots[-1] == final.output_text == whole.output_text


@pytest.mark.parametrize("seed", range(3))
def test_a_form_is_parsed(client: OpenAI, served_tools: Cluster, seed: int) -> None:
    asked = body(served_tools, temperature=1, extra_body={"seed": seed})
    whole = client.responses.parse(**asked, text_format=Weather).output_parsed
    assert isinstance(whole, Weather)
    with client.responses.stream(**asked, text_format=Weather) as stream:
        assert stream.get_final_response().output_parsed == whole
    plain = client.responses.create(**asked, text=FORM)
    fastjsonschema.validate(WEATHER, json.loads(plain.output_text))


@pytest.mark.parametrize("seed", range(3))
def test_arguments_are_parsed(client: OpenAI, served_tools: Cluster, seed: int) -> None:
    asked = body(
        served_tools,
        tools=[openai.pydantic_function_tool(model) for model in (GetWeather, TakeNote)],
        tool_choice="required",
        parallel_tool_calls=False,
        temperature=1,
        extra_body={"seed": seed},
    )
    (call,) = client.responses.parse(**asked).output
    assert call.type == "function_call"
    assert type(call.parsed_arguments).__name__ == call.name
    with client.responses.stream(**asked) as stream:
        (streamed,) = stream.get_final_response().output
    assert streamed.type == "function_call"
    assert streamed.parsed_arguments == call.parsed_arguments


def test_a_conversation_goes_on_after_calls(client: OpenAI, served_tools: Cluster) -> None:
    """By items that go back as they came, as nothing is kept on the server."""
    first = client.responses.create(**body(served_tools, tools=TOOLS, tool_choice="required"))
    given: list[Any] = [{"role": "user", "content": QUESTION}, *first.output]
    for item in first.output:
        assert item.type == "function_call"
        given.append(
            {"type": "function_call_output", "call_id": item.call_id, "output": "It is warm."}
        )
    second = client.responses.create(
        **body(served_tools, input=given, tools=TOOLS, tool_choice="none")
    )
    assert second.output_text
    third = client.responses.create(
        **body(
            served_tools,
            input=[*given, *second.output, {"role": "user", "content": "And in Rome?"}],
        )
    )
    assert third.output_text
    assert second.usage is not None
    assert third.usage is not None
    assert third.usage.input_tokens > second.usage.input_tokens


def test_an_answer_that_is_cut_is_incomplete(client: OpenAI, served_tools: Cluster) -> None:
    asked = body(served_tools, max_output_tokens=4, extra_body={"min_tokens": 4})
    whole = client.responses.create(**asked)
    assert whole.status == "incomplete"
    assert whole.incomplete_details is not None
    assert whole.incomplete_details.reason == "max_output_tokens"
    last = events_of(client, asked)[-1]
    assert last.type == "response.incomplete"
    assert last.response.status == "incomplete"
    assert last.response.output_text == whole.output_text


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"background": True}, "background"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"temperature": 3}, "temperature"),
    ],
)
def test_what_cannot_be_done_is_refused(
    client: OpenAI, served_tools: Cluster, options: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        client.responses.create(**body(served_tools, **options))
    assert (error.value.param or "").startswith(param)


def test_what_is_stored_is_not_found(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve("resp_1")


def test_an_asynchronous_client(served_tools: Cluster) -> None:
    async def ask() -> tuple[str, str]:
        async with AsyncOpenAI(base_url=f"{served_tools.url}/v1", api_key="none") as client:
            async with client.responses.stream(**body(served_tools)) as stream:
                streamed = await stream.get_final_response()
            whole = await client.responses.create(**body(served_tools))
        return streamed.output_text, whole.output_text

    streamed, whole = asyncio.run(ask())
    assert streamed == whole == plain_text(served_tools.url, served_tools.model)


def test_a_stream_that_is_closed_cancels_its_work(
    served: Cluster, cancelled: Callable[[], AbstractContextManager[None]]
) -> None:
    with (
        OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client,
        cancelled(),
    ):
        stream = client.responses.create(
            model=served.model,
            input=QUESTION,
            max_output_tokens=1900,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        next(iter(stream))
        stream.close()
