"""OpenAI's Agents SDK: agents over its default, responses, and over chats. See cases.py."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from agents import (
    Agent,
    ModelSettings,
    OpenAIProvider,
    RunConfig,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from openai.types.responses import ResponseTextDeltaEvent

from cases import ENDS, MOST, QUESTION, Server, Weather, calls, get_weather, run, told

set_tracing_disabled(True)  # it would send traces to OpenAI


def settings(**options: Any) -> ModelSettings:
    return ModelSettings(
        temperature=0, max_tokens=MOST, include_usage=True, extra_body=ENDS, **options
    )


def agent(server: Server, **options: Any) -> Agent[None]:
    options = {"model_settings": settings(), **options}
    return Agent(name="forecaster", model=server.model, **options)


def config(responses: bool, server: Server) -> RunConfig:
    """The provider is named, because a model's name with a slash would name another."""
    client = AsyncOpenAI(base_url=server.url, api_key="none", max_retries=0)
    provider = OpenAIProvider(openai_client=client, use_responses=responses)
    return RunConfig(model_provider=provider)


def ask(asked: Agent[None], responses: bool, server: Server) -> Any:
    return Runner.run_sync(asked, QUESTION, run_config=config(responses, server), max_turns=3)


def text(responses: bool, server: Server) -> dict[str, Any]:
    result = ask(agent(server), responses, server)
    return {
        "text": result.final_output,
        "tokens": result.context_wrapper.usage.output_tokens,
    }


def streamed(asked: Agent[None], responses: bool, server: Server) -> tuple[list[str], Any]:
    """The parts of the text, and the result."""

    async def read() -> tuple[list[str], Any]:
        result = Runner.run_streamed(
            asked, QUESTION, run_config=config(responses, server), max_turns=3
        )
        parts = [
            event.data.delta
            async for event in result.stream_events()
            if event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent)
        ]
        return parts, result

    return asyncio.run(read())


def stream(responses: bool, server: Server) -> dict[str, Any]:
    parts, result = streamed(agent(server), responses, server)
    return {"parts": parts, "tokens": result.context_wrapper.usage.output_tokens}


def caller(server: Server, choice: str, **options: Any) -> Agent[None]:
    """Its choice of tools is for the first turn alone, as the SDK has it."""
    return agent(
        server,
        tools=[function_tool(get_weather)],
        model_settings=settings(tool_choice=choice, parallel_tool_calls=False),
        **options,
    )


def tools(responses: bool, server: Server) -> dict[str, Any]:
    """The model is asked again once the tool has answered."""
    result = ask(caller(server, "get_weather"), responses, server)
    return {"calls": list(calls), "answer": result.final_output}


def tools_once(responses: bool, server: Server) -> dict[str, Any]:
    asked = caller(server, "required", tool_use_behavior="stop_on_first_tool")
    return {"answer": ask(asked, responses, server).final_output, "calls": list(calls)}


def stream_tools(responses: bool, server: Server) -> dict[str, Any]:
    _, result = streamed(caller(server, "get_weather"), responses, server)
    return {"calls": list(calls), "answer": result.final_output}


def form(responses: bool, server: Server) -> dict[str, Any]:
    return told(ask(agent(server, output_type=Weather), responses, server).final_output)


def stream_form(responses: bool, server: Server) -> dict[str, Any]:
    _, result = streamed(agent(server, output_type=Weather), responses, server)
    return told(result.final_output)


def over(
    responses: bool, asked: Callable[[bool, Server], dict[str, Any]]
) -> Callable[[Server], Any]:
    return lambda server: asked(responses, server)


ASKED = {
    "text": text,
    "stream": stream,
    "tools": tools,
    "tools, stopped after one": tools_once,
    "streamed tools": stream_tools,
    "form": form,
    "streamed form": stream_form,
}

run(
    ["openai-agents", "openai"],
    {name: over(False, asked) for name, asked in ASKED.items()}
    | {f"responses: {name}": over(True, asked) for name, asked in ASKED.items()},
)
