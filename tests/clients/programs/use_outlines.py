"""Outlines, with its models for OpenAI's API and for vLLM's. See cases.py."""

from __future__ import annotations

import re
from typing import Any, Literal

import outlines
from openai import OpenAI
from outlines.types import CFG, Regex

from cases import ENDS, MOST, QUESTION, Server, Weather, run, told

SETTINGS: dict[str, Any] = {"temperature": 0, "max_tokens": MOST}


def client(server: Server) -> OpenAI:
    return OpenAI(base_url=server.url, api_key="none", max_retries=0)


def as_openai(server: Server) -> Any:
    return outlines.from_openai(client(server), server.model)


def as_vllm(server: Server) -> Any:
    return outlines.from_vllm(client(server), server.model)


def text(server: Server) -> dict[str, Any]:
    return {"text": as_openai(server)(QUESTION, extra_body=ENDS, **SETTINGS)}


def stream(server: Server) -> dict[str, Any]:
    parts = as_openai(server).stream(QUESTION, extra_body=ENDS, **SETTINGS)
    return {"parts": [part for part in parts if part]}


def form(model: Any) -> dict[str, Any]:
    return told(Weather.model_validate_json(model(QUESTION, Weather, **SETTINGS)))


def stream_form(server: Server) -> dict[str, Any]:
    parts = list(as_vllm(server).stream(QUESTION, Weather, **SETTINGS))
    return told(Weather.model_validate_json("".join(parts)))


def choice(server: Server) -> dict[str, Any]:
    """A regular expression to the server, made of a type."""
    answer = as_vllm(server)(QUESTION, Literal["warm", "cold"], **SETTINGS)
    assert answer in ("warm", "cold"), answer
    return {"answer": answer}


def expression(server: Server) -> dict[str, Any]:
    pattern = r"\d{2} degrees( Celsius)?"
    answer = as_vllm(server)(QUESTION, Regex(pattern), **SETTINGS)
    assert re.fullmatch(pattern, answer), answer
    return {"answer": answer}


def grammar(server: Server) -> dict[str, Any]:
    answer = as_vllm(server)(QUESTION, CFG('start: ("sun" | "rain") " " /[0-9]/'), **SETTINGS)
    assert re.fullmatch("(sun|rain) [0-9]", answer), answer
    return {"answer": answer}


run(
    ["outlines", "openai"],
    {
        "text": text,
        "stream": stream,
        "form": lambda server: form(as_openai(server)),
        "as vLLM: form": lambda server: form(as_vllm(server)),
        "as vLLM: streamed form": stream_form,
        "as vLLM: choice": choice,
        "as vLLM: regular expression": expression,
        "as vLLM: grammar": grammar,
    },
)
