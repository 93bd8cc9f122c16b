"""OpenAI's own client for Python, unmodified."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

import installed
import plain_http
from cluster import TARGET, Cluster, free_address, start_cluster, started, wait_until
from exposition import value_of

PROMPT = "def parse(self, "
MESSAGES: list[Any] = [{"role": "user", "content": "Write a function that adds two numbers."}]
# The end token is the likeliest wherever it is allowed: an answer of exactly 13 tokens that ends
# by itself, which the helpers want (one that is cut off they refuse to give back).
ENDS = {"max_tokens": 40, "logit_bias": {"1": 100}, "extra_body": {"min_tokens": 12}}
TOKENS = 13


@pytest.fixture(scope="module", autouse=True)
def _version() -> None:
    installed.met("openai-python", openai.__version__)


@pytest.fixture
def client(served: Cluster) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_a_model_whose_name_holds_a_slash_is_retrieved(client: OpenAI, served: Cluster) -> None:
    model = client.models.retrieve(served.model)
    assert (model.id, model.object) == (served.model, "model")
    raw = client.models.with_raw_response.retrieve(served.model)
    assert raw.status_code == 200
    assert raw.parse() == model
    assert [model] == list(client.models.list())


@pytest.mark.parametrize("name", ["My-Model", "Org/Other", "a b?c#d%", "näme"])
def test_a_model_that_is_not_there_is_not_found(client: OpenAI, name: str) -> None:
    with pytest.raises(openai.NotFoundError) as error:
        client.models.retrieve(name)
    assert error.value.code == "model_not_found"
    assert name in error.value.message


def test_what_is_not_there_at_all_is_not_found(client: OpenAI, served: Cluster) -> None:
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model=served.model, input="x")
    with pytest.raises(openai.NotFoundError):
        client.batches.list()


@pytest.mark.parametrize("choices", [1, 3])
def test_streaming_helper_gives_every_log_probability_once(
    client: OpenAI, served: Cluster, choices: int
) -> None:
    """The helper's sum of the chunks is the answer without streaming, in each of its parts."""
    body: dict[str, Any] = {
        "model": served.model,
        "messages": MESSAGES,
        "n": choices,
        "logprobs": True,
        "top_logprobs": 2,
        "seed": 3,
        **ENDS,
    }
    whole = client.chat.completions.create(**body)
    text: dict[str, str] = {}
    with client.chat.completions.stream(**body, stream_options={"include_usage": True}) as stream:
        for event in stream:
            if event.type == "content.delta":
                text["deltas"] = text.get("deltas", "") + event.delta
                text["snapshot"] = event.snapshot
        final = stream.get_final_completion()
    assert len(final.choices) == choices
    for streamed, expected in zip(final.choices, whole.choices, strict=True):
        assert streamed.index == expected.index
        assert streamed.finish_reason == expected.finish_reason == "stop"
        assert streamed.message.role == "assistant"
        assert streamed.message.content == expected.message.content
        assert streamed.logprobs is not None
        assert expected.logprobs is not None
        assert streamed.logprobs.content is not None
        assert expected.logprobs.content is not None
        assert [entry.token for entry in streamed.logprobs.content] == [
            entry.token for entry in expected.logprobs.content
        ]
        assert len(streamed.logprobs.content) == TOKENS
        assert {len(entry.top_logprobs) for entry in streamed.logprobs.content} == {2}
    if choices == 1:
        assert text["deltas"] == text["snapshot"] == whole.choices[0].message.content
    assert final.usage is not None
    assert final.usage.completion_tokens == choices * TOKENS


def test_first_chunk_of_each_choice_holds_its_role_alone(client: OpenAI, served: Cluster) -> None:
    """Helpers that build on the first chunk (all of OpenAI's do) take it for an empty beginning.

    The Python one also takes the n-th choice that it meets for choice n.
    """
    chunks = list(
        client.chat.completions.create(
            model=served.model, messages=MESSAGES, n=3, logprobs=True, stream=True, max_tokens=4
        )
    )
    first: dict[int, Any] = {}
    for chunk in chunks:
        for choice in chunk.choices:
            first.setdefault(choice.index, choice)
    assert list(first) == [0, 1, 2]
    for choice in first.values():
        assert choice.delta.role == "assistant"
        assert choice.delta.content == ""
        assert choice.logprobs is None
        assert choice.finish_reason is None


def test_streaming_helper_takes_choices_whichever_is_first(tmp_path: Path) -> None:
    """The helper fails on a stream that does not begin with choice 0, of whichever target it is."""
    with start_cluster(tmp_path / "up.log", draft_model=None, targets=2, drafts=0) as cluster:
        body: dict[str, Any] = {
            "model": cluster.model,
            "messages": MESSAGES,
            "n": 2,
            "seed": 3,
            **ENDS,
        }
        with OpenAI(base_url=f"{cluster.url}/v1", api_key="none", max_retries=0) as client:
            whole = client.chat.completions.create(**body)
            for target in cluster.targets:
                os.kill(target.pid, signal.SIGSTOP)
                wake = threading.Timer(1, os.kill, (target.pid, signal.SIGCONT))
                wake.start()
                with client.chat.completions.stream(**body) as stream:
                    final = stream.get_final_completion()
                wake.join()
                assert [choice.message.content for choice in final.choices] == [
                    choice.message.content for choice in whole.choices
                ]


def test_five_stops(client: OpenAI, served: Cluster) -> None:
    """Of the five only the last is met: none beyond the fourth is forgotten."""
    body: dict[str, Any] = {
        "model": served.model,
        "prompt": PROMPT,
        "max_tokens": 60,
        "temperature": 0.9,
        "seed": 5,
    }
    whole = client.completions.create(**body).choices[0].text
    stops = ["<1>", "<2>", "<3>", "<4>", whole[30:40]]
    cut = whole[: whole.index(stops[4])]
    assert cut
    (choice,) = client.completions.create(**body, stop=stops).choices
    assert (choice.text, choice.finish_reason) == (cut, "stop")
    chunks = list(client.completions.create(**body, stop=stops, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == cut
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_an_answer_goes_back_as_history(client: OpenAI, served: Cluster) -> None:
    """As programs do it: the message object itself, or all its fields, most of them null."""
    first = client.chat.completions.create(
        model=served.model, messages=MESSAGES, max_tokens=8, temperature=0
    )
    message = first.choices[0].message
    question = {"role": "user", "content": [{"type": "text", "text": "And subtracts?"}]}
    plain = {"role": "assistant", "content": message.content}
    answers = [
        client.chat.completions.create(
            model=served.model,
            messages=[*MESSAGES, history, question],
            max_tokens=8,
            temperature=0,
        )
        for history in (plain, message, message.model_dump())
    ]
    assert len({answer.choices[0].message.content for answer in answers}) == 1
    assert len({answer.usage.prompt_tokens for answer in answers if answer.usage}) == 1


def test_a_stream_that_is_closed_cancels_its_work(
    client: OpenAI, served: Cluster, cancelled: Callable[[], AbstractContextManager[None]]
) -> None:
    with cancelled():
        stream = client.chat.completions.create(
            model=served.model,
            messages=MESSAGES,
            max_tokens=1900,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        next(iter(stream))
        stream.close()


def test_an_asynchronous_client_retrieves_a_model(served: Cluster) -> None:
    async def retrieve() -> str:
        async with AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none") as client:
            return (await client.models.retrieve(served.model)).id

    assert asyncio.run(retrieve()) == served.model


def test_many_streams_of_one_asynchronous_client(served: Cluster) -> None:
    prompts = [f"def function_{i}(" for i in range(16)]

    async def one(client: AsyncOpenAI, prompt: str) -> tuple[str, str]:
        body: dict[str, Any] = {"model": served.model, "prompt": prompt, "max_tokens": 20}
        stream = await client.completions.create(**body, temperature=0, stream=True)
        streamed = "".join([chunk.choices[0].text async for chunk in stream])
        whole = await client.completions.create(**body, temperature=0)
        return streamed, whole.choices[0].text

    async def all_of_them() -> list[tuple[str, str]]:
        async with AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none") as client:
            return await asyncio.gather(*(one(client, prompt) for prompt in prompts))

    for streamed, whole in asyncio.run(all_of_them()):
        assert streamed == whole
        assert whole


def test_a_client_retries_until_there_is_a_target(tmp_path: Path) -> None:
    """The gateway's 503 says when to try again, and the client does, with no code of the user's."""
    gateway_at, target_at = free_address(), free_address()
    common = [f"--model={TARGET}", "--served_model_name=Org/My-Model"]
    answers: list[Any] = []

    def ask() -> None:
        with OpenAI(base_url=f"http://{gateway_at}/v1", api_key="none", max_retries=30) as client:
            create = client.completions.with_raw_response.create
            answers.append(create(model="Org/My-Model", prompt=PROMPT, max_tokens=4))

    def refused() -> bool:
        name = "specfabric_gateway_requests_total"
        return value_of(gateway_at, name, endpoint="/v1/completions", code="503") > 0

    asking = threading.Thread(target=ask, daemon=True)
    with started(
        tmp_path / "gateway.log",
        ["gateway", *common, f"--listen={gateway_at}", f"--targets={target_at}"],
    ):
        wait_until(
            lambda: plain_http.status_of(f"http://{gateway_at}/livez") == 200, "the gateway is up"
        )
        asking.start()
        wait_until(refused, "a request was refused")
        with started(
            tmp_path / "target.log",
            ["target", *common, f"--listen={target_at}", "--dtype=float32"],
        ):
            asking.join(60)
            assert not asking.is_alive()
    (answer,) = answers
    assert answer.retries_taken > 0
    assert answer.parse().choices[0].text
