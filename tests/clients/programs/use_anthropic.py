"""Anthropic's own client, over messages. See cases.py."""

from __future__ import annotations

import asyncio
from typing import Any

from anthropic import Anthropic, AsyncAnthropic

from cases import ENDS, MOST, PARAMETERS, QUESTION, Server, Weather, calls, get_weather, run, told

GREEDY = {"temperature": 0}  # the client has no argument for it
MESSAGES: list[Any] = [{"role": "user", "content": QUESTION}]
TOOLS: list[Any] = [
    {"name": "get_weather", "description": "Tells the weather.", "input_schema": PARAMETERS}
]


def client(server: Server) -> Anthropic:
    return Anthropic(base_url=server.root, api_key="none", max_retries=0)


def body(server: Server, **options: Any) -> dict[str, Any]:
    return {
        "model": server.model,
        "max_tokens": MOST,
        "messages": MESSAGES,
        "extra_body": GREEDY | ENDS,
        **options,
    }


def text(server: Server) -> dict[str, Any]:
    answer = client(server).messages.create(**body(server))
    assert (answer.type, answer.role, answer.stop_reason) == ("message", "assistant", "end_turn")
    (block,) = answer.content
    return {"text": block.text, "tokens": answer.usage.output_tokens}


def stream(server: Server) -> dict[str, Any]:
    with client(server).messages.stream(**body(server)) as events:
        parts = list(events.text_stream)
        final = events.get_final_message()
    assert final.stop_reason == "end_turn"
    assert final.content[0].text == "".join(parts)
    return {"parts": parts, "tokens": final.usage.output_tokens}


def stream_asynchronously(server: Server) -> dict[str, Any]:
    async def read() -> dict[str, Any]:
        async with AsyncAnthropic(base_url=server.root, api_key="none", max_retries=0) as asked:
            events = await asked.messages.create(**body(server), stream=True)
            parts = [
                event.delta.text async for event in events if event.type == "content_block_delta"
            ]
        return {"parts": parts}

    return asyncio.run(read())


def limits(server: Server) -> dict[str, Any]:
    """How an answer that does not end by itself says so."""
    asked = body(server, max_tokens=12, extra_body=GREEDY | {"ignore_eos": True})
    cut = client(server).messages.create(**asked)
    stop = cut.content[0].text[8:12]
    stopped = client(server).messages.create(**asked, stop_sequences=["<none>", stop])
    return {
        "answer": stopped.content[0].text,
        "reasons": [cut.stop_reason, stopped.stop_reason],
        "stops": [stop, stopped.stop_sequence],
        "whole": cut.content[0].text,
    }


def answer_to(server: Server, message: Any) -> dict[str, Any]:
    """Calls what a message calls, and asks the model again."""
    assert message.stop_reason == "tool_use"
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": get_weather(**block.input)}
        for block in message.content
        if block.type == "tool_use"
    ]
    history = [
        *MESSAGES,
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": results},
    ]
    again = client(server).messages.create(
        **body(server, messages=history, tools=TOOLS, tool_choice={"type": "none"})
    )
    return {"calls": list(calls), "answer": again.content[0].text}


ANY = {"type": "any", "disable_parallel_tool_use": True}


def tools(choice: Any, server: Server) -> dict[str, Any]:
    answer = client(server).messages.create(**body(server, tools=TOOLS, tool_choice=choice))
    return answer_to(server, answer)


def stream_tools(server: Server) -> dict[str, Any]:
    asked = body(server, tools=TOOLS, tool_choice=ANY)
    with client(server).messages.stream(**asked) as events:
        parts = [event.partial_json for event in events if event.type == "input_json"]
        final = events.get_final_message()
    assert len(parts) > 1
    return answer_to(server, final)


def form(server: Server) -> dict[str, Any]:
    answer = client(server).messages.parse(**body(server), output_format=Weather)
    return told(answer.parsed_output)


def stream_form(server: Server) -> dict[str, Any]:
    with client(server).messages.stream(**body(server), output_format=Weather) as events:
        return told(events.get_final_message().parsed_output)


run(
    ["anthropic"],
    {
        "text": text,
        "stream": stream,
        "asynchronous stream": stream_asynchronously,
        "limits": limits,
        "tools": lambda server: tools({"type": "tool", "name": "get_weather"}, server),
        "any tool": lambda server: tools(ANY, server),
        "streamed tools": stream_tools,
        "form": form,
        "streamed form": stream_form,
    },
)
