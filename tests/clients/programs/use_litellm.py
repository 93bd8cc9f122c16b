"""LiteLLM as a library: its provider for servers like OpenAI's and that for vLLM. See cases.py."""

from __future__ import annotations

import json
import os
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would load a list of models

import litellm

from cases import ENDS, MOST, PARAMETERS, QUESTION, Server, Weather, calls, get_weather, run, told

MESSAGES: list[Any] = [{"role": "user", "content": QUESTION}]
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}},
]
NAMED = {"type": "function", "function": {"name": "get_weather"}}


def ask(provider: str, server: Server, **options: Any) -> Any:
    options = {"messages": MESSAGES, "temperature": 0, "max_tokens": MOST, **options}
    return litellm.completion(
        model=f"{provider}/{server.model}",
        api_base=server.url,
        api_key="none",
        num_retries=0,
        extra_body=ENDS,
        **options,
    )


def text(provider: str, server: Server) -> dict[str, Any]:
    answer = ask(provider, server)
    return {"text": answer.choices[0].message.content, "tokens": answer.usage.completion_tokens}


def stream(provider: str, server: Server) -> dict[str, Any]:
    chunks = list(ask(provider, server, stream=True, stream_options={"include_usage": True}))
    parts = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices]
    whole: Any = litellm.stream_chunk_builder(chunks)
    return {"parts": [part for part in parts if part], "tokens": whole.usage.completion_tokens}


def answer_to(provider: str, server: Server, message: Any) -> dict[str, Any]:
    """Calls what a message calls, and asks the model again."""
    results = [
        {
            "role": "tool",
            "tool_call_id": call.id,
            "content": get_weather(**json.loads(call.function.arguments)),
        }
        for call in message.tool_calls
    ]
    again = ask(provider, server, messages=[*MESSAGES, message, *results])
    return {"calls": list(calls), "answer": again.choices[0].message.content}


def tools(provider: str, server: Server) -> dict[str, Any]:
    answer = ask(provider, server, tools=TOOLS, tool_choice=NAMED)
    return answer_to(provider, server, answer.choices[0].message)


def stream_tools(provider: str, server: Server) -> dict[str, Any]:
    chunks = list(ask(provider, server, tools=TOOLS, tool_choice=NAMED, stream=True))
    whole: Any = litellm.stream_chunk_builder(chunks)
    return answer_to(provider, server, whole.choices[0].message)


def form(provider: str, server: Server) -> dict[str, Any]:
    answer = ask(provider, server, response_format=Weather)
    return told(Weather.model_validate_json(answer.choices[0].message.content))


def stream_form(provider: str, server: Server) -> dict[str, Any]:
    chunks = list(ask(provider, server, response_format=Weather, stream=True))
    whole: Any = litellm.stream_chunk_builder(chunks)
    return told(Weather.model_validate_json(whole.choices[0].message.content))


ASKED = {
    "text": text,
    "stream": stream,
    "tools": tools,
    "streamed tools": stream_tools,
    "form": form,
    "streamed form": stream_form,
}

# For vLLM LiteLLM takes additionalProperties out of tools, so that a model may make up arguments:
# calls are left out there.
run(
    ["litellm", "openai"],
    {name: lambda server, ask=ask: ask("openai", server) for name, ask in ASKED.items()}
    | {
        f"as vLLM: {name}": lambda server, ask=ask: ask("hosted_vllm", server)
        for name, ask in ASKED.items()
        if "tools" not in name
    },
)
