"""The load generator's client against a server that says what a test wants, in odd pieces."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from bench.serving.client import Outcome, Server, ServerError, ask, complete, tokenize
from bench.serving.load import drive
from bench.serving.workload import Planned

Answer = Callable[[dict[str, Any], asyncio.StreamWriter], Awaitable[None]]
HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: text/event-stream\r\n\r\n"
USAGE = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 7}}


def event(text: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, "text": text}]}).encode() + b"\n\n"


USAGE_EVENT = b"data: " + json.dumps(USAGE).encode() + b"\n\n"
DONE = b"data: [DONE]\n\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


async def with_server(answer: Answer, use: Callable[[Server], Awaitable[Any]]) -> Any:
    """What `use` makes of a server that answers every request by `answer`."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1])
            for line in head.split(b"\r\n")
            if line.lower().startswith(b"content-length")
        )
        body = json.loads(await reader.readexactly(length)) if length else {}
        try:
            await answer(body | {"path": head.split()[1].decode()}, writer)
        finally:
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listener:
        host, port = listener.sockets[0].getsockname()[:2]
        return await use(Server(f"http://{host}:{port}", "m"))


def completed(answer: Answer) -> Outcome:
    return asyncio.run(with_server(answer, lambda server: complete(server, [1, 2, 3], 7, {})))


def streamed(*pieces: bytes) -> Answer:
    """Sends the pieces one by one, each a moment after the other."""

    async def answer(_: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD)
        for piece in pieces:
            writer.write(chunk(piece))
            await writer.drain()
            await asyncio.sleep(0.01)
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    return answer


def test_counts_events_and_usage() -> None:
    before = time.perf_counter()
    outcome = completed(streamed(event("a"), event("b") + event("c"), USAGE_EVENT, DONE))
    assert outcome.succeeded, outcome.error
    assert len(outcome.chunks) == 3
    assert (outcome.prompt_tokens, outcome.output_tokens) == (3, 7)
    assert before < outcome.start < outcome.chunks[0] < outcome.chunks[2] < time.perf_counter()


def test_events_may_be_cut_anywhere() -> None:
    whole = b": ping\n\n" + event("\u00e4") + b"\r\n" + event("b") + USAGE_EVENT + DONE
    outcome = completed(streamed(*(whole[i : i + 7] for i in range(0, len(whole), 7))))
    assert outcome.succeeded, outcome.error
    assert len(outcome.chunks) == 2


@pytest.mark.parametrize(
    ("pieces", "error"),
    [
        ((event("a"), USAGE_EVENT), "ended without"),
        ((event("a"), DONE), "no usage"),
        ((USAGE_EVENT, DONE), "no token"),
        ((b"data: {\n\n", DONE), "Expecting"),
        ((b'data: {"error": {"message": "lost"}}\n\n', DONE), "lost"),
    ],
)
def test_streams_that_go_wrong(pieces: tuple[bytes, ...], error: str) -> None:
    outcome = completed(streamed(*pieces))
    assert not outcome.succeeded
    assert error in outcome.error


def test_refusals_and_broken_connections() -> None:
    async def refuse(_: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 4\r\n\r\nfull")

    async def hang_up(_: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + chunk(event("a")))

    assert completed(refuse).error == "429: full"
    assert not completed(hang_up).succeeded
    gone = asyncio.run(complete(Server("http://127.0.0.1:1", "m"), [1], 1, {}))
    assert "Connect" in gone.error


def test_request_carries_its_fields() -> None:
    seen: list[dict[str, Any]] = []

    async def answer(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        seen.append(body)
        await streamed(event("a"), USAGE_EVENT, DONE)(body, writer)

    asyncio.run(with_server(answer, lambda server: complete(server, [5, 6], 9, {"seed": 4})))
    (body,) = seen
    assert body["path"] == "/v1/completions"
    assert (body["model"], body["prompt"], body["max_tokens"]) == ("m", [5, 6], 9)
    assert body["seed"] == 4
    assert body["stream"] is True


def test_load_keeps_to_its_concurrency_and_order() -> None:
    at_once = peak = 0

    async def answer(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        nonlocal at_once, peak
        at_once += 1
        peak = max(peak, at_once)
        usage = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": body["seed"]}}
        writer.write(HEAD + chunk(event("a")))
        await asyncio.sleep(0.01)
        at_once -= 1  # before the client can know
        writer.write(chunk(b"data: " + json.dumps(usage).encode() + b"\n\n" + DONE))

    requests = [Planned(0.0, [1], 1, seed) for seed in range(1, 13)]
    outcomes, duration = asyncio.run(
        with_server(answer, lambda server: drive(server, requests, {}, max_concurrency=3))
    )
    assert peak == 3
    assert all(outcome.succeeded for outcome in outcomes)
    assert [outcome.output_tokens for outcome in outcomes] == list(range(1, 13))
    assert duration > 0


def test_requests_do_not_come_before_their_time() -> None:
    requests = [Planned(seconds, [1], 1, 1) for seconds in (0.0, 0.05, 0.1)]
    begin = time.perf_counter()
    outcomes, _ = asyncio.run(
        with_server(
            streamed(event("a"), USAGE_EVENT, DONE), lambda server: drive(server, requests, {})
        )
    )
    for outcome, request in zip(outcomes, requests, strict=True):
        assert outcome.start - begin >= request.seconds


def test_tokenize_sends_every_line_once() -> None:
    sent: list[str] = []

    async def answer(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        sent.append(body["prompt"])
        reply = json.dumps({"tokens": [len(body["prompt"])]}).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(reply), reply))

    text = "".join(f"line {i}\n" for i in range(50)) + "x" * 200 + "\nend"
    tokens = asyncio.run(with_server(answer, lambda server: tokenize(server, text, piece=100)))
    assert "".join(sent) == text
    assert sum(tokens) == len(text)
    assert max(len(piece) for piece in sent if "xx" not in piece) <= 100


def test_other_statuses_are_errors() -> None:
    async def answer(_: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno")

    with pytest.raises(ServerError, match="404: no"):
        asyncio.run(with_server(answer, lambda server: ask(server, "/v1/models")))
    with pytest.raises(ValueError, match="allowed: http"):
        Server("127.0.0.1:8000")
