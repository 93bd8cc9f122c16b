"""LangChain's ChatOpenAI. See cases.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from cases import ENDS, MOST, QUESTION, Server, Weather, calls, get_weather, run, told


def model(responses: bool, server: Server) -> ChatOpenAI:
    return ChatOpenAI(
        base_url=server.url,
        api_key="none",
        model=server.model,
        temperature=0,
        max_tokens=MOST,
        max_retries=0,
        stream_usage=True,
        use_responses_api=responses,
        extra_body=ENDS,
    )


def text(responses: bool, server: Server) -> dict[str, Any]:
    answer = model(responses, server).invoke(QUESTION)
    return {"text": answer.text, "tokens": answer.usage_metadata["output_tokens"]}


def stream(responses: bool, server: Server) -> dict[str, Any]:
    whole: Any = None
    parts = []
    for chunk in model(responses, server).stream(QUESTION):
        whole = chunk if whole is None else whole + chunk
        if chunk.text:
            parts.append(chunk.text)
    return {"parts": parts, "tokens": whole.usage_metadata["output_tokens"]}


def answer_to(responses: bool, server: Server, message: Any) -> dict[str, Any]:
    """Calls what a message calls, and asks the model again."""
    made = tool(get_weather)
    results = [made.invoke(call) for call in message.tool_calls]
    again = model(responses, server).invoke([HumanMessage(QUESTION), message, *results])
    return {"calls": list(calls), "answer": again.text}


def bound(responses: bool, server: Server, choice: str) -> Any:
    """Strict: its schema allows no more arguments than there are."""
    return model(responses, server).bind_tools([tool(get_weather)], tool_choice=choice, strict=True)


def tools(responses: bool, server: Server) -> dict[str, Any]:
    return answer_to(responses, server, bound(responses, server, "get_weather").invoke(QUESTION))


def stream_tools(responses: bool, server: Server) -> dict[str, Any]:
    whole: Any = None
    for chunk in bound(responses, server, "any").stream(QUESTION):
        whole = chunk if whole is None else whole + chunk
    return answer_to(responses, server, whole)


def form(method: str) -> Callable[[bool, Server], dict[str, Any]]:
    def ask(responses: bool, server: Server) -> dict[str, Any]:
        asked: Any = model(responses, server).with_structured_output(Weather, method=method)
        return told(asked.invoke(QUESTION))

    return ask


def stream_form(responses: bool, server: Server) -> dict[str, Any]:
    asked: Any = model(responses, server).with_structured_output(Weather)
    return told(list(asked.stream(QUESTION))[-1])


def over(responses: bool, ask: Callable[[bool, Server], dict[str, Any]]) -> Callable[[Server], Any]:
    return lambda server: ask(responses, server)


ASKED = {
    "text": text,
    "stream": stream,
    "tools": tools,
    "streamed tools": stream_tools,
    "form": form("json_schema"),
    "form by a tool": form("function_calling"),
    "streamed form": stream_form,
}

run(
    ["langchain-openai", "langchain-core", "openai"],
    {name: over(False, ask) for name, ask in ASKED.items()}
    | {f"responses: {name}": over(True, ask) for name, ask in ASKED.items()},
)
