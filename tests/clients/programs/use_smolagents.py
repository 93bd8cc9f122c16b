"""Hugging Face's smolagents: its model for OpenAI's API, and an agent with a tool. See cases.py."""

from __future__ import annotations

from typing import Any

from smolagents import ChatMessage, MessageRole, OpenAIModel, ToolCallingAgent
from smolagents import tool as as_tool
from smolagents.agents import EMPTY_PROMPT_TEMPLATES, PromptTemplates
from smolagents.models import agglomerate_stream_deltas

from cases import ENDS, MOST, PARAMETERS, QUESTION, Server, Weather, calls, get_weather, run, told

# The agent's own are longer than what the model of the tests can read.
TEMPLATES: PromptTemplates = {**EMPTY_PROMPT_TEMPLATES, "system_prompt": "Call tools."}
# Its schemas allow more arguments than there are, which the model of the tests makes up.
STRICT = {
    "tools": [{"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}],
    "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
}


def model(server: Server, **options: Any) -> OpenAIModel:
    return OpenAIModel(
        model_id=server.model,
        api_base=server.url,
        api_key="none",
        client_kwargs={"max_retries": 0},
        temperature=0,
        max_tokens=MOST,
        extra_body=ENDS,
        **options,
    )


def question() -> list[ChatMessage]:
    return [ChatMessage(role=MessageRole.USER, content=[{"type": "text", "text": QUESTION}])]


def text(server: Server) -> dict[str, Any]:
    answer = model(server)(question())
    return {"text": answer.content, "tokens": answer.token_usage.output_tokens}


def stream(server: Server) -> dict[str, Any]:
    deltas = list(model(server).generate_stream(question()))
    whole = agglomerate_stream_deltas(deltas)
    parts = [delta.content for delta in deltas if delta.content]
    assert whole.content == "".join(parts)
    return {"parts": parts, "tokens": whole.token_usage.output_tokens}


def tools(streamed: bool, server: Server) -> dict[str, Any]:
    """One step, in which the agent calls, and then what it makes of being at its end."""
    agent = ToolCallingAgent(
        tools=[as_tool(get_weather)],
        model=model(server, **STRICT),
        prompt_templates=TEMPLATES,
        stream_outputs=streamed,
        max_steps=1,
    )
    agent.run(QUESTION)
    (step,) = (step for step in agent.memory.steps if getattr(step, "tool_calls", None))
    assert step.error is None or "max steps" in str(step.error), step.error
    return {"calls": list(calls), "answer": step.observations}


def form(server: Server) -> dict[str, Any]:
    schema = {"name": "weather", "schema": Weather.model_json_schema()}
    asked: Any = {"type": "json_schema", "json_schema": schema}
    answer = model(server)(question(), response_format=asked)
    return told(Weather.model_validate_json(answer.content))


run(
    ["smolagents", "openai"],
    {
        "text": text,
        "stream": stream,
        "tools": lambda server: tools(False, server),
        "streamed tools": lambda server: tools(True, server),
        "form": form,
    },
)
