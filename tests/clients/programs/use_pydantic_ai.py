"""Pydantic AI: agents over chats and over responses. See cases.py."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from pydantic_ai import Agent, NativeOutput, RunContext, ToolOutput, UsageLimits
from pydantic_ai.models import Model
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings

from cases import ENDS, MOST, QUESTION, Server, Weather, calls, get_weather, run, told

SETTINGS = ModelSettings(temperature=0, max_tokens=MOST, extra_body=ENDS)
LIMITS = UsageLimits(request_limit=3)
Kind = Callable[..., Model]


def agent(kind: Kind, server: Server, **options: Any) -> Agent[None, Any]:
    provider = OpenAIProvider(base_url=server.url, api_key="none")
    options = {"model_settings": SETTINGS, **options}
    return Agent(kind(server.model, provider=provider), retries=0, **options)


def text(kind: Kind, server: Server) -> dict[str, Any]:
    result = agent(kind, server).run_sync(QUESTION, usage_limits=LIMITS)
    return {"text": result.output, "tokens": result.usage.output_tokens}


def stream(kind: Kind, server: Server) -> dict[str, Any]:
    async def ask() -> dict[str, Any]:
        async with agent(kind, server).run_stream(QUESTION, usage_limits=LIMITS) as result:
            parts = [part async for part in result.stream_text(delta=True, debounce_by=None)]
        return {"parts": parts, "tokens": result.usage.output_tokens}

    return asyncio.run(ask())


def settings(context: RunContext[None]) -> ModelSettings:
    """A call in the first step, none after it."""
    choice: Any = ["get_weather"] if context.run_step == 1 else "none"
    return {**SETTINGS, "tool_choice": choice}


def tools(kind: Kind, server: Server) -> dict[str, Any]:
    caller = agent(kind, server, tools=[get_weather], model_settings=settings)
    result = caller.run_sync(QUESTION, usage_limits=LIMITS)
    return {"calls": list(calls), "answer": result.output}


def stream_tools(kind: Kind, server: Server) -> dict[str, Any]:
    async def ask() -> str:
        caller = agent(kind, server, tools=[get_weather], model_settings=settings)
        async with caller.run_stream(QUESTION, usage_limits=LIMITS) as result:
            return await result.get_output()

    return {"answer": asyncio.run(ask()), "calls": list(calls)}


def form(output: Any) -> Callable[[Kind, Server], dict[str, Any]]:
    def ask(kind: Kind, server: Server) -> dict[str, Any]:
        asked = agent(kind, server, output_type=output)
        return told(asked.run_sync(QUESTION, usage_limits=LIMITS).output)

    return ask


def stream_form(kind: Kind, server: Server) -> dict[str, Any]:
    async def ask() -> Any:
        asked = agent(kind, server, output_type=NativeOutput(Weather))
        async with asked.run_stream(QUESTION, usage_limits=LIMITS) as result:
            return await result.get_output()

    return told(asyncio.run(ask()))


def over(kind: Kind, ask: Callable[[Kind, Server], dict[str, Any]]) -> Callable[[Server], Any]:
    return lambda server: ask(kind, server)


ASKED = {
    "text": text,
    "stream": stream,
    "tools": tools,
    "streamed tools": stream_tools,
    "form": form(NativeOutput(Weather)),
    "form by a tool": form(ToolOutput(Weather)),
    "streamed form": stream_form,
}

run(
    ["pydantic-ai-slim", "openai"],
    {name: over(OpenAIChatModel, ask) for name, ask in ASKED.items()}
    | {f"responses: {name}": over(OpenAIResponsesModel, ask) for name, ask in ASKED.items()},
)
