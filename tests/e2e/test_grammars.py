"""Structured output: every answer has the form that was asked for, whatever drafts propose.

By default of 48 schemas; the long form, three minutes or so: SPECFABRIC_SCHEMAS=200.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fastjsonschema
import openai
import pytest
import regex  # type: ignore[import-untyped]

from cluster import Cluster, start_cluster, wait_until
from exposition import value_of
from json_schemas import Schema, schemas
from prompts import PROMPTS

SCHEMAS = schemas(int(os.environ.get("SPECFABRIC_SCHEMAS", 48)), seed=1)
MOST = 400  # tokens; no answer to SCHEMAS needs as many


def format_of(schema: Schema) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


def answers_to_all(cluster: Cluster, **settings: Any) -> list[dict[str, Any]]:
    def ask(case: tuple[int, Schema]) -> dict[str, Any]:
        number, schema = case
        return cluster.complete(
            prompt=PROMPTS[number % len(PROMPTS)],
            max_tokens=MOST,
            response_format=format_of(schema),
            return_token_ids=True,
            **settings,
        )

    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(ask, enumerate(SCHEMAS)))


def tokens_of(answers: list[dict[str, Any]]) -> list[list[int]]:
    return [answer["choices"][0]["token_ids"] for answer in answers]


def assert_valid(answers: list[dict[str, Any]]) -> None:
    for schema, answer in zip(SCHEMAS, answers, strict=True):
        (choice,) = answer["choices"]
        assert choice["finish_reason"] == "stop", (schema, choice["text"])
        # fastjsonschema's `date` and the like are those of draft 7.
        fastjsonschema.validate(schema, json.loads(choice["text"]))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Without drafts, of any kind."""
    log = tmp_path_factory.mktemp("plain") / "up.log"
    with start_cluster(log, drafts=0, ngram_lookup=False) as cluster:
        return answers_to_all(cluster, temperature=0)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    log = tmp_path_factory.mktemp("grammars") / "up.log"
    extra = ["--request_verification=coupled,rejection,traversal"]
    with start_cluster(log, drafts=1, extra=extra) as running:
        yield running


def test_answers_without_drafts_are_valid(plain: list[dict[str, Any]]) -> None:
    assert_valid(plain)


@pytest.mark.parametrize("ranks", [1, 2])
def test_greedy_answers_are_the_same_with_drafts(
    plain: list[dict[str, Any]], ranks: int, tmp_path: Path
) -> None:
    with start_cluster(tmp_path / "up.log", tensor_parallel=ranks, drafts=1) as cluster:
        answers = answers_to_all(cluster, temperature=0)
    assert tokens_of(answers) == tokens_of(plain)
    accepted = sum(answer["usage"]["speculation"]["accepted"] for answer in answers)
    assert accepted > sum(map(len, tokens_of(answers))) / 5


@pytest.mark.parametrize("verification", ["coupled", "rejection", "traversal"])
def test_sampled_answers_are_valid(cluster: Cluster, verification: str) -> None:
    assert_valid(answers_to_all(cluster, temperature=1, seed=3, verification=verification))


def test_every_way_to_ask(cluster: Cluster) -> None:
    lark = 'start: "(" start ")" | /[a-z]{1,3}/'
    gbnf = r"""
        root ::= "- " item (", " item){1,3} ending?
        item ::= word | "(" item ")"   # recursive
        word ::= [a-z]{2,8} | "END"
        ending ::= [.!]
    """
    items = r"- (\(*([a-z]{2,8}|END)\)*(, |[.!]?$)){2,4}"
    cases: list[tuple[dict[str, Any], str]] = [
        ({"response_format": {"type": "json_object"}}, r"\{.*\}"),
        ({"structured_outputs": {"choice": ["left", "right"]}}, "left|right"),
        ({"guided_choice": ["yes", "no"]}, "yes|no"),
        ({"guided_regex": "[0-9]{3}-[a-f]{2}"}, "[0-9]{3}-[a-f]{2}"),
        ({"guided_json": json.dumps({"enum": ["only"]})}, '"only"'),
        ({"guided_grammar": lark}, r"\(*[a-z]{1,3}\)*"),
        ({"guided_grammar": gbnf}, items),
        ({"structured_outputs": {"grammar": gbnf}}, items),
        ({"ebnf": gbnf}, items),
        ({"grammar": gbnf}, items),
    ]
    for body, expected in cases:
        answer = cluster.complete(
            prompt=PROMPTS[0], max_tokens=MOST, temperature=0.7, seed=2, **body
        )
        (choice,) = answer["choices"]
        if choice["finish_reason"] == "stop":
            assert regex.fullmatch(expected, choice["text"], regex.DOTALL), choice["text"]
        else:
            matched = regex.fullmatch(expected, choice["text"], regex.DOTALL, partial=True)
            assert matched, choice["text"]


def test_a_stream_and_the_official_client(cluster: Cluster) -> None:
    client = openai.OpenAI(base_url=cluster.url + "/v1", api_key="none")
    (model,) = client.models.list().data
    schema = schemas(1, seed=5)[0]
    stream = client.completions.create(
        model=model.id,
        prompt=PROMPTS[1],
        max_tokens=MOST,
        stream=True,
        extra_body={"response_format": format_of(schema)},
    )
    text = "".join(chunk.choices[0].text for chunk in stream)
    fastjsonschema.validate(schema, json.loads(text))


def test_a_form_ends_the_text_whatever_else_is_asked_for(cluster: Cluster) -> None:
    settings: dict[str, Any] = {"prompt": PROMPTS[2], "guided_choice": ["yes", "no"]}
    for other in ({"ignore_eos": True}, {"min_tokens": 20}, {"logit_bias": {"1": -100}}):
        answer = cluster.complete(max_tokens=30, **settings, **other)
        assert answer["choices"][0]["text"] in ("yes", "no")
        assert answer["choices"][0]["finish_reason"] == "stop"


def test_log_probabilities_are_those_before_the_form(cluster: Cluster) -> None:
    answer = cluster.complete(
        prompt=PROMPTS[3], guided_choice=["{", "}"], logprobs=2, temperature=0, max_tokens=5
    )
    logprobs = answer["choices"][0]["logprobs"]
    assert all(value < 0 for value in logprobs["token_logprobs"])
    assert any(
        max(top.values()) > own + 0.01
        for top, own in zip(logprobs["top_logprobs"], logprobs["token_logprobs"], strict=True)
    )


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"response_format": format_of({"type": "tree"})}, "response_format"),
        ({"response_format": format_of({"$ref": "#/$defs/none"})}, "response_format"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_regex": "("}, "guided_regex"),
        ({"guided_grammar": "start: missing"}, "guided_grammar"),
        ({"guided_grammar": "root ::= missing"}, "guided_grammar"),
        ({"grammar": "root ::= <nobody>"}, "grammar"),
        ({"ebnf": 'root ::= "a'}, "ebnf"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
    ],
)
def test_what_is_no_form_is_refused(cluster: Cluster, body: dict[str, Any], param: str) -> None:
    with cluster.client() as client:
        for stream in (False, True):
            response = client.post("/v1/completions", json={"prompt": "a", "stream": stream} | body)
            assert response.status_code == 400
            error = response.json()["error"]
            assert error["param"] == param
            assert "\n" not in error["message"]
            assert f"'{param}'" in error["message"]


def test_forced_tokens_are_drafted(cluster: Cluster) -> None:
    """A text that the grammar knows beforehand takes few rounds."""
    long = "a sentence that everybody knows by heart before it is said, word by word"
    answer = cluster.complete(
        prompt=PROMPTS[4], guided_json={"const": long}, max_tokens=MOST, temperature=1
    )
    assert answer["choices"][0]["text"] == json.dumps(long)
    assert answer["usage"]["completion_tokens"] > 15
    assert answer["usage"]["speculation"]["rounds"] <= 3


def test_cancelled_requests_leave_nothing_behind(cluster: Cluster) -> None:
    (target,) = cluster.targets
    choose = random.Random(1)
    with cluster.client() as client:
        for _ in range(20):
            number = choose.randrange(10**9)
            body = {"prompt": "a", "guided_regex": f"[a-z]+{number}", "stream": True}
            with client.stream("POST", "/v1/completions", json=body | {"max_tokens": 500}) as got:
                assert got.status_code == 200
    wait_until(
        lambda: value_of(target.admin, "specfabric_target_running_sequences") == 0, "all have ended"
    )
