"""A client of /v1/completions that spends little time itself: asyncio streams and h11.

It shares the machine with what it measures. One connection a request, so a time to first token
includes connecting.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import h11

READ_BYTES = 1 << 16


class ServerError(Exception):
    """An answer other than 200, or none; `status` is 0 where there was none."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}" if status else message)
        self.status = status


@dataclass(frozen=True)
class Server:
    """An OpenAI-compatible server; `model` is the name that it serves."""

    url: str  # up to and without /v1
    model: str = ""

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"--url={self.url}; allowed: http://HOST:PORT or https://HOST:PORT")

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        parts = urlsplit(self.url)
        secure = parts.scheme == "https"
        port = parts.port or (443 if secure else 80)
        return await asyncio.open_connection(parts.hostname, port, ssl=secure or None)

    def request(self, path: str, body: bytes) -> list[h11.Event]:
        parts = urlsplit(self.url)
        headers = [
            ("Host", parts.netloc),
            ("Connection", "close"),
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(body))),
        ]
        method = "POST" if body else "GET"
        head = h11.Request(method=method, target=parts.path.rstrip("/") + path, headers=headers)
        return [head, h11.Data(data=body), h11.EndOfMessage()]


async def _body(
    server: Server, path: str, payload: dict[str, Any] | None
) -> AsyncGenerator[tuple[int, bytes], None]:
    """(status, bytes) of an answer's body as it comes; closes the connection when it is left."""
    body = b"" if payload is None else json.dumps(payload).encode()
    try:
        reader, writer = await server.connect()
        try:
            connection = h11.Connection(h11.CLIENT)
            for part in server.request(path, body):
                writer.write(connection.send(part) or b"")
            await writer.drain()
            status = 0
            while True:
                event = connection.next_event()
                if event is h11.NEED_DATA:
                    connection.receive_data(await reader.read(READ_BYTES))
                elif isinstance(event, h11.Response):
                    status = event.status_code
                elif isinstance(event, h11.Data):
                    yield status, bytes(event.data)
                elif isinstance(event, h11.EndOfMessage):
                    break
        finally:
            writer.close()
    except (OSError, h11.ProtocolError) as error:
        raise ServerError(0, f"{type(error).__name__}: {error}") from error


async def ask(server: Server, path: str, payload: dict[str, Any] | None = None) -> dict[str, Any]:
    """The JSON of one answer that is not streamed."""
    status, body = 0, b""
    async for status, part in _body(server, path, payload):  # noqa: B007
        body += part
    if status != 200:
        raise ServerError(status, body.decode(errors="replace")[:500])
    return json.loads(body)


async def events(server: Server, path: str, payload: dict[str, Any]) -> AsyncGenerator[Any, None]:
    """The JSON of every event of a stream; an error where it ends before [DONE]."""
    rest, refusal = b"", b""
    status = 0
    async with contextlib.aclosing(_body(server, path, payload)) as body:
        async for status, part in body:
            if status != 200:
                refusal += part
                continue
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                # Anything else is a comment (a ping) or the empty line between two events.
                if not line.startswith(b"data:"):
                    continue
                data = line.removeprefix(b"data:").strip()
                if data == b"[DONE]":
                    return
                yield json.loads(data)
    if status != 200:
        raise ServerError(status, refusal.decode(errors="replace")[:500])
    raise ServerError(0, "the stream ended without [DONE]")


@dataclass
class Outcome:
    """What came of one request. Times are of time.perf_counter()."""

    start: float
    chunks: list[float] = field(default_factory=list)  # when events with a choice came
    prompt_tokens: int = 0
    output_tokens: int = 0
    speculation: dict[str, Any] = field(default_factory=dict)  # as SpecFabric tells of it
    error: str = ""

    @property
    def succeeded(self) -> bool:
        return not self.error


async def complete(
    server: Server, prompt: list[int], output_tokens: int, options: dict[str, Any]
) -> Outcome:
    """Streams one completion to its end; errors are in the outcome.

    Token counts are those that the server reports in `usage`, because one event may carry several
    tokens.
    """
    payload = {
        "model": server.model,
        "prompt": prompt,
        "max_tokens": output_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        **options,
    }
    outcome = Outcome(time.perf_counter())
    try:
        async with contextlib.aclosing(events(server, "/v1/completions", payload)) as stream:
            async for event in stream:
                if event.get("choices"):
                    outcome.chunks.append(time.perf_counter())
                if usage := event.get("usage"):
                    outcome.prompt_tokens = usage["prompt_tokens"]
                    outcome.output_tokens = usage["completion_tokens"]
                    outcome.speculation = usage.get("speculation", {})
                if "error" in event:
                    raise ServerError(0, str(event["error"]))
        if not outcome.chunks:
            raise ServerError(0, "no token came")
        if not outcome.output_tokens:
            raise ServerError(0, "the server sends no usage: tokens cannot be counted")
    except (ServerError, json.JSONDecodeError) as error:
        outcome.error = str(error) or type(error).__name__
    return outcome


async def find_model(server: Server) -> Server:
    """The server with the first model that it serves, unless it names one."""
    if server.model:
        return server
    models = (await ask(server, "/v1/models"))["data"]
    return Server(server.url, models[0]["id"])


async def tokenize(server: Server, text: str, piece: int = 1 << 15) -> list[int]:
    """A text's tokens by the server's /tokenize (vLLM has one too), in pieces of whole lines."""
    tokens: list[int] = []
    lines = text.splitlines(keepends=True)
    while lines:
        size = 0
        taken = 0
        while taken < len(lines) and (taken == 0 or size + len(lines[taken]) <= piece):
            size += len(lines[taken])
            taken += 1
        payload = {
            "model": server.model,
            "prompt": "".join(lines[:taken]),
            "add_special_tokens": False,
        }
        tokens += (await ask(server, "/tokenize", payload))["tokens"]
        lines = lines[taken:]
    return tokens
