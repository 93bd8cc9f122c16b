"""Runs the programs of tests/clients/programs, and says what is right in what they find.

The model says nothing sensible, so what counts is what a client makes of an answer: the text that
the server gave, an object of the client's own type, a function called with valid arguments.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fastjsonschema
import pytest

import installed
import plain_http
from cases import ENDS, QUESTION
from cluster import Cluster

PROGRAMS = Path(__file__).with_name("programs")
TOKENS = 13  # of a text with ENDS

CALL: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Paris", "Rome"]},
        "days": {"enum": [1, 2, 3]},
        "sunny": {"type": "boolean"},
    },
    "required": ["city", "days", "sunny"],
    "additionalProperties": False,
}
WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "place": {
            "type": "object",
            "properties": {
                "city": {"enum": ["Paris", "Rome"]},
                "country": {"enum": ["France", "Italy"]},
            },
            "required": ["city", "country"],
            "additionalProperties": False,
        },
        "days": {"enum": [1, 2, 3]},
        "sunny": {"type": "boolean"},
        "wind": {"enum": ["north", "south", None]},
    },
    "required": ["place", "days", "sunny", "wind"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Client:
    """A client of scripts/setup --clients, and which cases its program has."""

    folder: str
    program: str
    cases: tuple[str, ...]
    tokens: int = TOKENS  # of its texts
    long: bool = False  # in the long tier alone


@functools.cache
def plain_text(url: str, model: str) -> str:
    """What the server says to the question, told by no client's code."""
    body = {"model": model, "messages": [{"role": "user", "content": QUESTION}], "temperature": 0}
    with plain_http.client(url) as client:
        answer = client.post("/v1/chat/completions", json=body | ENDS).json()
    assert answer["usage"]["completion_tokens"] == TOKENS
    return answer["choices"][0]["message"]["content"]


def run_program(client: Client, server: Cluster, folder: Path) -> dict[str, Any]:
    """What a client's program found in its cases."""
    if client.long and os.environ.get("SPECFABRIC_TEST_TIER") != "long":
        pytest.skip("only in the long tier: SPECFABRIC_TEST_TIER=long")
    place = installed.client_dir(client.folder)
    program = PROGRAMS / client.program
    node = program.suffix == ".cjs"
    answer = folder / f"{program.stem}.json"
    command = ["node" if node else place / "bin" / "python", program, answer]
    try:
        installed.run_client(
            [*command, f"{server.url}/v1", server.model, *client.cases],
            {"NODE_PATH": str(place / "node_modules")} if node else {},
            folder,
            240,
        )
    except (AssertionError, subprocess.TimeoutExpired) as error:
        # All its cases have failed; they do not run it again.
        return {"found": {}, "failed": dict.fromkeys(client.cases, str(error))}
    told = json.loads(answer.read_text())
    for package, version in told["versions"].items():
        installed.met(f"{package}, for {program.name}", version)
    return told


def check(client: Client, case: str, told: dict[str, Any], server: Cluster) -> None:
    """Whether what was found in a case is right; which kind of case it is says its name."""
    assert case not in told["failed"], told["failed"][case]
    found = told["found"][case]
    if "form" in case:
        fastjsonschema.validate(WEATHER, found)
    elif "tool" in case:
        assert found["calls"]
        for call in found["calls"]:
            fastjsonschema.validate(CALL, call)
        assert found["answer"]
    elif "text" in case or "stream" in case:
        parts = found["parts"] if "stream" in case else [found["text"]]
        assert len(parts) > 1 or "stream" not in case
        assert "".join(parts) == plain_text(server.url, server.model)
        assert found.get("tokens", client.tokens) == client.tokens
    else:
        assert found["answer"]
