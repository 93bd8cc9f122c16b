"""Instructor, which gives objects: by a call of a tool, and by a schema. See cases.py."""

from __future__ import annotations

from typing import Any

import instructor
from openai import OpenAI

from cases import ENDS, MOST, QUESTION, Server, Weather, run, told

ASKED: dict[str, Any] = {
    "messages": [{"role": "user", "content": QUESTION}],
    "temperature": 0,
    "max_tokens": MOST,
    "max_retries": 0,
}


def client(server: Server, mode: instructor.Mode) -> instructor.Instructor:
    made = OpenAI(base_url=server.url, api_key="none", max_retries=0)
    return instructor.from_openai(made, mode=mode, model=server.model)


def form(mode: instructor.Mode, server: Server) -> dict[str, Any]:
    return told(client(server, mode).create(response_model=Weather, **ASKED))


def stream(mode: instructor.Mode, server: Server) -> dict[str, Any]:
    """Objects whose members come one by one."""
    objects = list(client(server, mode).create_partial(response_model=Weather, **ASKED))
    assert len(objects) > 1
    return Weather.model_validate(objects[-1].model_dump()).model_dump()


def text(server: Server) -> dict[str, Any]:
    answer: Any = client(server, instructor.Mode.TOOLS).create(
        response_model=None, extra_body=ENDS, **ASKED
    )
    return {"text": answer.choices[0].message.content, "tokens": answer.usage.completion_tokens}


run(
    ["instructor", "openai"],
    {
        "text": text,
        "form by a tool": lambda server: form(instructor.Mode.TOOLS, server),
        "form": lambda server: form(instructor.Mode.JSON_SCHEMA, server),
        "streamed form by a tool": lambda server: stream(instructor.Mode.TOOLS, server),
        "streamed form": lambda server: stream(instructor.Mode.JSON_SCHEMA, server),
    },
)
