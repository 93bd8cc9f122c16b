"""The HTTP interface, through the official OpenAI client where that client knows the field."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from openai import OpenAI
from prometheus_client.parser import text_string_to_metric_families

from cluster import DRAFT, Cluster, events_of, start_cluster

PROMPT = "def parse(self, "
MESSAGES = [{"role": "user", "content": "Write a function that adds two numbers."}]


@pytest.fixture
def openai(demo_cluster: Cluster) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{demo_cluster.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def http(demo_cluster: Cluster) -> Iterator[httpx.Client]:
    with demo_cluster.client() as client:
        yield client


def test_completion(openai: OpenAI, demo_cluster: Cluster) -> None:
    answer = openai.completions.create(
        model=demo_cluster.model, prompt=PROMPT, max_tokens=12, temperature=0
    )
    assert answer.object == "text_completion"
    assert answer.model == demo_cluster.model
    assert answer.id
    assert answer.created > 0
    (choice,) = answer.choices
    assert choice.text
    assert choice.finish_reason in {"stop", "length"}
    assert answer.usage is not None
    assert answer.usage.completion_tokens <= 12
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_chat(openai: OpenAI, demo_cluster: Cluster) -> None:
    answer = openai.chat.completions.create(
        model=demo_cluster.model, messages=MESSAGES, max_completion_tokens=16, temperature=0
    )
    assert answer.object == "chat.completion"
    (choice,) = answer.choices
    assert choice.message.role == "assistant"
    assert choice.message.content
    # The template puts the role and more around the content.
    plain = openai.completions.create(
        model=demo_cluster.model, prompt=MESSAGES[0]["content"], max_tokens=1
    )
    assert answer.usage.prompt_tokens > plain.usage.prompt_tokens


def test_streamed_completion_equals_the_whole(openai: OpenAI, demo_cluster: Cluster) -> None:
    body = {
        "model": demo_cluster.model,
        "prompt": PROMPT,
        "max_tokens": 40,
        "temperature": 0.9,
        "seed": 5,
    }
    whole = openai.completions.create(**body)
    chunks = list(
        openai.completions.create(**body, stream=True, stream_options={"include_usage": True})
    )
    assert "".join(c.choices[0].text for c in chunks if c.choices) == whole.choices[0].text
    reasons = [c.choices[0].finish_reason for c in chunks if c.choices]
    assert reasons[-1] == whole.choices[0].finish_reason
    assert set(reasons[:-1]) <= {None}
    assert [bool(c.choices) for c in chunks].count(False) == 1
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert all(c.usage is None for c in chunks[:-1])


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
def test_each_event_of_a_stream_says_what_its_choice_has_used(
    http: httpx.Client, path: str
) -> None:
    """Where `continuous_usage_stats` asks for it, as benchmarks do."""
    said = {"prompt": PROMPT} if path == "completions" else {"messages": MESSAGES}
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {**said, "n": 2, "max_tokens": 12, "seed": 5, "stream": True, "stream_options": options}
    answer = http.post(f"/v1/{path}", json={**body, "ignore_eos": True})
    *events, last = events_of(answer)
    used: dict[int, list[int]] = {0: [], 1: []}
    for event in events:
        usage = event["usage"]
        used[event["choices"][0]["index"]].append(usage["completion_tokens"])
        assert usage["prompt_tokens"] == last["usage"]["prompt_tokens"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    for counts in used.values():
        assert counts == sorted(counts)
        assert counts[-1] == 12
    assert last["usage"]["completion_tokens"] == 24


def test_streamed_chat_equals_the_whole(openai: OpenAI, demo_cluster: Cluster) -> None:
    body = {
        "model": demo_cluster.model,
        "messages": MESSAGES,
        "max_completion_tokens": 24,
        "temperature": 0,
    }
    whole = openai.chat.completions.create(**body)
    chunks = list(openai.chat.completions.create(**body, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[0].choices[0].delta.content == ""
    assert all(c.choices[0].delta.role is None for c in chunks[1:])
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert all(c.object == "chat.completion.chunk" for c in chunks)


def test_no_usage_in_a_stream_unless_asked_for(openai: OpenAI, demo_cluster: Cluster) -> None:
    chunks = openai.completions.create(
        model=demo_cluster.model, prompt=PROMPT, max_tokens=4, stream=True
    )
    assert all(c.choices and c.usage is None for c in chunks)


def test_seed_repeats_and_its_absence_does_not(openai: OpenAI, demo_cluster: Cluster) -> None:
    def sample(**settings: int) -> str:
        answer = openai.completions.create(
            model=demo_cluster.model, prompt=PROMPT, max_tokens=30, temperature=1.2, **settings
        )
        return answer.choices[0].text

    assert sample(seed=11) == sample(seed=11)
    assert sample(seed=11) != sample(seed=12)
    assert len({sample() for _ in range(4)}) > 1


def test_two_choices(openai: OpenAI, demo_cluster: Cluster) -> None:
    body = {
        "model": demo_cluster.model,
        "prompt": PROMPT,
        "n": 2,
        "max_tokens": 24,
        "temperature": 1.0,
        "seed": 3,
    }
    answer = openai.completions.create(**body)
    texts = {c.index: c.text for c in answer.choices}
    assert set(texts) == {0, 1}
    assert texts[0] != texts[1]
    # Choice 0 is what the same request with one choice gives; a stream interleaves the same two.
    assert openai.completions.create(**{**body, "n": 1}).choices[0].text == texts[0]
    streamed = {0: "", 1: ""}
    for chunk in openai.completions.create(**body, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.text
    assert streamed == texts


def test_list_of_prompts(openai: OpenAI, demo_cluster: Cluster) -> None:
    prompts = [PROMPT, "import ", "class Queue:\n"]
    body = {"model": demo_cluster.model, "max_tokens": 10, "temperature": 0}
    together = openai.completions.create(prompt=prompts, **body)
    alone = [openai.completions.create(prompt=p, **body).choices[0].text for p in prompts]
    assert [c.text for c in sorted(together.choices, key=lambda c: c.index)] == alone


def test_stop_strings(openai: OpenAI, demo_cluster: Cluster) -> None:
    body = {"model": demo_cluster.model, "prompt": PROMPT, "max_tokens": 60, "temperature": 0}
    whole = openai.completions.create(**body).choices[0].text
    assert len(whole) > 12
    # From the middle of the text, so that it begins and ends inside tokens.
    stop = whole[7:12]
    cut = whole[: whole.index(stop)]
    answer = openai.completions.create(**body, stop=[stop, "\0never\0"])
    assert answer.choices[0].text == cut
    assert answer.choices[0].finish_reason == "stop"
    chunks = list(openai.completions.create(**body, stop=stop, stream=True))
    assert "".join(c.choices[0].text for c in chunks) == cut
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_stops_of_an_evaluation_tool(openai: OpenAI, demo_cluster: Cluster) -> None:
    """More than OpenAI's four; and the one that comes first is shown if that is asked for."""
    body = {"model": demo_cluster.model, "prompt": PROMPT, "max_tokens": 60, "temperature": 0}
    whole = openai.completions.create(**body).choices[0].text
    stop = whole[7:12]
    stops = ["\nQ:", "</s>", "<|im_end|>", "\n\n\n\n", "Question:", stop]
    cut = whole[: whole.index(stop)]
    assert openai.completions.create(**body, stop=stops).choices[0].text == cut
    extra = {"include_stop_str_in_output": True}
    shown = openai.completions.create(**body, stop=stops, extra_body=extra)
    assert shown.choices[0].text == cut + stop
    chunks = openai.completions.create(**body, stop=stops, extra_body=extra, stream=True)
    assert "".join(c.choices[0].text for c in chunks) == cut + stop


def test_top_p_of_zero_is_greedy(demo_cluster: Cluster) -> None:
    body = {"prompt": PROMPT, "max_tokens": 40, "frequency_penalty": 0.5}
    greedy = demo_cluster.complete(**body, temperature=0)["choices"][0]["text"]
    assert demo_cluster.complete(**body, temperature=1.3, top_p=0)["choices"][0]["text"] == greedy


def test_seeds_are_64_bits(demo_cluster: Cluster) -> None:
    body = {"prompt": PROMPT, "max_tokens": 24, "temperature": 1.2}

    def sample(seed: int) -> str:
        return demo_cluster.complete(**body, seed=seed)["choices"][0]["text"]

    assert sample(-1) == sample(2**64 - 1)
    assert len({sample(seed) for seed in (2**63 - 1, 2**63, 2**64 - 1, 2**64 - 2)}) == 4


def test_a_truncated_prompt(demo_cluster: Cluster, http: httpx.Client) -> None:
    tokens = http.post("/tokenize", json={"prompt": PROMPT}).json()["tokens"]
    body = {"max_tokens": 12, "temperature": 0}
    kept = demo_cluster.complete(prompt=tokens[-3:], **body)
    for prompt in (PROMPT, tokens):
        answer = demo_cluster.complete(prompt=prompt, truncate_prompt_tokens=3, **body)
        assert answer["choices"][0]["text"] == kept["choices"][0]["text"]
        assert answer["usage"]["prompt_tokens"] == 3
    fits = demo_cluster.complete(prompt=[5] * 5000, truncate_prompt_tokens=-1, **body)
    assert fits["usage"]["prompt_tokens"] == 2048 - 12


def test_special_tokens_show_on_request(demo_cluster: Cluster) -> None:
    body = {"prompt": PROMPT, "max_tokens": 4, "temperature": 0, "ignore_eos": True}
    biased = {**body, "logit_bias": {"1": 100}}
    assert demo_cluster.complete(**biased)["choices"][0]["text"] == ""
    shown = demo_cluster.complete(**biased, skip_special_tokens=False)
    assert shown["choices"][0]["text"] == "<|end|>" * 4


def test_an_assistant_without_content(openai: OpenAI, demo_cluster: Cluster) -> None:
    def tokens_of(message: dict[str, object]) -> int:
        answer = openai.chat.completions.create(
            model=demo_cluster.model,
            messages=[*MESSAGES, message, *MESSAGES],
            max_completion_tokens=1,
        )
        assert answer.usage is not None
        return answer.usage.prompt_tokens

    empty = tokens_of({"role": "assistant", "content": ""})
    assert tokens_of({"role": "assistant", "content": None}) == empty
    assert tokens_of({"role": "assistant"}) == empty


def test_unknown_fields_are_named(demo_cluster: Cluster, http: httpx.Client) -> None:
    body = {"model": demo_cluster.model, "prompt": "x", "max_tokens": 1, "novel_option": 3}
    for extra in ({}, {"stream": True}):
        response = http.post("/v1/completions", json={**body, **extra})
        assert response.status_code == 200
        assert response.headers["specfabric-ignored-fields"] == "novel_option"
    response = http.post("/v1/completions", json={**body, "novel_option": None, "user": "u"})
    assert response.headers["specfabric-ignored-fields"] == "novel_option"


def test_sampling_defaults_of_the_checkpoint(tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(DRAFT, model)
    config = json.loads((model / "generation_config.json").read_text())
    config |= {"do_sample": True, "temperature": 0.0, "max_new_tokens": 7}
    (model / "generation_config.json").write_text(json.dumps(config))
    body = {"messages": MESSAGES, "ignore_eos": True}
    for flag, tokens, texts in ((), 7, 1), (("--use_generation_config=false",), 40, 3):
        log = tmp_path / f"up{tokens}.log"
        with start_cluster(log, model, None, drafts=0, extra=flag) as cluster:
            seen = set()
            for _ in range(3):
                with cluster.client() as client:
                    limit = {} if tokens == 7 else {"max_tokens": 40}
                    answer = client.post("/v1/chat/completions", json={**body, **limit}).json()
                assert answer["usage"]["completion_tokens"] == tokens
                seen.add(answer["choices"][0]["message"]["content"])
            assert len(seen) == texts
        said = "generation_config.json: temperature=0 max_new_tokens=7"
        assert (said in log.read_text()) == (not flag)


def test_log_probabilities_of_a_completion(openai: OpenAI, demo_cluster: Cluster) -> None:
    answer = openai.completions.create(
        model=demo_cluster.model, prompt=PROMPT, max_tokens=8, temperature=0, logprobs=3
    )
    scores = answer.choices[0].logprobs
    count = answer.usage.completion_tokens
    assert len(scores.tokens) == len(scores.token_logprobs) == len(scores.top_logprobs) == count
    assert "".join(scores.tokens) == answer.choices[0].text
    for own, top in zip(scores.token_logprobs, scores.top_logprobs, strict=True):
        assert len(top) == 3
        assert own == max(top.values())  # greedy takes the likeliest
        assert own <= 0
    offsets = [0]
    for token in scores.tokens[:-1]:
        offsets.append(offsets[-1] + len(token))
    assert [o - scores.text_offset[0] for o in scores.text_offset] == offsets


def test_log_probabilities_of_a_chat(openai: OpenAI, demo_cluster: Cluster) -> None:
    answer = openai.chat.completions.create(
        model=demo_cluster.model,
        messages=MESSAGES,
        max_completion_tokens=6,
        temperature=0,
        logprobs=True,
        top_logprobs=2,
    )
    content = answer.choices[0].logprobs.content
    assert len(content) == answer.usage.completion_tokens
    written = b"".join(bytes(token.bytes) for token in content)
    assert written.decode() == answer.choices[0].message.content
    for token in content:
        assert len(token.top_logprobs) == 2
        assert token.logprob == token.top_logprobs[0].logprob
        assert token.top_logprobs[0].logprob >= token.top_logprobs[1].logprob


def test_token_ids_in_and_out(demo_cluster: Cluster, http: httpx.Client) -> None:
    tokens = http.post("/tokenize", json={"prompt": PROMPT}).json()["tokens"]
    body = {"max_tokens": 10, "temperature": 0, "return_token_ids": True}
    by_text = demo_cluster.complete(prompt=PROMPT, **body)["choices"][0]
    by_ids = demo_cluster.complete(prompt=tokens, **body)["choices"][0]
    assert by_ids["text"] == by_text["text"]
    assert by_ids["token_ids"] == by_text["token_ids"]
    detokenized = http.post("/detokenize", json={"tokens": by_ids["token_ids"]}).json()
    assert detokenized["prompt"] == by_text["text"]
    streamed = list(demo_cluster.stream(prompt=PROMPT, **body))
    ids = [i for e in streamed for c in e["choices"] for i in c.get("token_ids") or []]
    assert ids == by_text["token_ids"]


@pytest.mark.parametrize("text", ["", " ", PROMPT, "naïve 漢字 🙂\n\ttabs", "<|begin|>x<|end|>"])
def test_tokenize_and_detokenize_are_inverse(http: httpx.Client, text: str) -> None:
    answer = http.post("/tokenize", json={"prompt": text, "add_special_tokens": False}).json()
    assert answer["count"] == len(answer["tokens"])
    assert answer["max_model_len"] == 2048
    back = http.post("/detokenize", json={"tokens": answer["tokens"]}).json()
    assert back["prompt"] == text


def test_echo_scores_a_prompt(openai: OpenAI, demo_cluster: Cluster) -> None:
    answer = openai.completions.create(
        model=demo_cluster.model, prompt=PROMPT, max_tokens=0, echo=True, logprobs=1
    )
    assert answer.choices[0].text == PROMPT
    assert answer.usage.completion_tokens == 0
    scores = answer.choices[0].logprobs.token_logprobs
    assert scores[0] is None
    assert len(scores) == answer.usage.prompt_tokens
    assert all(score < 0 for score in scores[1:])
    longer = openai.completions.create(
        model=demo_cluster.model, prompt=PROMPT, max_tokens=4, echo=True, temperature=0
    )
    assert longer.choices[0].text.startswith(PROMPT)
    assert longer.choices[0].text != PROMPT


def test_models(openai: OpenAI, demo_cluster: Cluster) -> None:
    models = openai.models.list().data
    assert [m.id for m in models] == [demo_cluster.model]
    assert models[0].object == "model"


def test_health_and_version(http: httpx.Client) -> None:
    for path in ("/health", "/livez", "/readyz"):
        assert http.get(path).status_code == 200, path
    version = http.get("/version").json()["version"]
    assert version
    assert http.get("/version").headers["content-type"].startswith("application/json")


def test_gateway_metrics_parse(http: httpx.Client) -> None:
    text = http.get("/metrics").text
    names = {family.name for family in text_string_to_metric_families(text)}
    assert "specfabric_gateway_time_to_first_token_seconds" in names


def test_speculation_is_told_in_usage(demo_cluster: Cluster) -> None:
    answer = demo_cluster.complete(prompt=PROMPT, max_tokens=64, temperature=0, ignore_eos=True)
    speculation = answer["usage"]["speculation"]
    assert answer["usage"]["completion_tokens"] == 64
    assert 0 < speculation["rounds"] <= 64
    assert 0 < speculation["accepted"] <= speculation["drafted"]
    # The prefill emits the first token; every round what it accepted and one more; the last may be
    # cut.
    assert 64 <= 1 + speculation["accepted"] + speculation["rounds"] <= 64 + 64
    assert answer["exactness"] == "token"
