"""Frameworks and SDKs of others, unmodified, over chats, responses and messages.

programs/ stands for their users' programs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from client_cases import Client, check
from cluster import Cluster

ALL = ("text", "stream", "tools", "streamed tools", "form", "streamed form")
BY_TOOL = "form by a tool"


def over_both(*cases: str) -> tuple[str, ...]:
    """Over chats and over responses."""
    return (*cases, *(f"responses: {case}" for case in cases))


CLIENTS = {
    "anthropic": Client(
        "sdks", "use_anthropic.py", (*ALL, "asynchronous stream", "any tool", "limits")
    ),
    "openai-agents": Client("sdks", "use_agents.py", over_both(*ALL, "tools, stopped after one")),
    "pydantic-ai": Client("sdks", "use_pydantic_ai.py", over_both(*ALL, BY_TOOL)),
    # Its texts are cut where the others' end: see use_ai_sdk.cjs.
    "ai-sdk": Client(
        "ai-sdk",
        "use_ai_sdk.cjs",
        (*over_both(*ALL), *(f"as OpenAI: {case}" for case in ALL)),
        tokens=12,
    ),
    "instructor": Client(
        "instructor",
        "use_instructor.py",
        ("text", "form", BY_TOOL, "streamed form", "streamed form by a tool"),
        long=True,
    ),
    "langchain-openai": Client("sdks", "use_langchain.py", over_both(*ALL, BY_TOOL), long=True),
    "litellm": Client(
        "frameworks",
        "use_litellm.py",
        (*ALL, *(f"as vLLM: {case}" for case in ("text", "stream", "form", "streamed form"))),
        long=True,
    ),
    "llama-index": Client(
        "frameworks",
        "use_llama_index.py",
        (*ALL, BY_TOOL, "tools, called by a helper"),
        long=True,
    ),
    "outlines": Client(
        "frameworks",
        "use_outlines.py",
        (
            "text",
            "stream",
            "form",
            "as vLLM: form",
            "as vLLM: streamed form",
            "as vLLM: choice",
            "as vLLM: regular expression",
            "as vLLM: grammar",
        ),
        long=True,
    ),
    "smolagents": Client(
        "frameworks",
        "use_smolagents.py",
        ("text", "stream", "tools", "streamed tools", "form"),
        long=True,
    ),
}


@pytest.mark.parametrize(
    ("name", "case"), [(name, case) for name, client in CLIENTS.items() for case in client.cases]
)
def test_a_client(
    found: Callable[[Client], dict[str, Any]], served_tools: Cluster, name: str, case: str
) -> None:
    check(CLIENTS[name], case, found(CLIENTS[name]), served_tools)


def test_what_ends_a_message(
    found: Callable[[Client], dict[str, Any]], served_tools: Cluster
) -> None:
    """As Anthropic's client tells it."""
    limits = found(CLIENTS["anthropic"])["found"]["limits"]
    assert limits["reasons"] == ["max_tokens", "stop_sequence"]
    stop, stopped_by = limits["stops"]
    assert stopped_by == stop
    assert limits["answer"] == limits["whole"].partition(stop)[0]
