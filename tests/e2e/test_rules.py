"""Penalties, bias, stops and lengths of the output are honoured, whatever drafts propose."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LogitsProcessor, LogitsProcessorList

from cluster import DRAFT, TARGET, Cluster, start_cluster
from prompts import PROMPTS

END = 1  # the demo models' end of text
TOKENS = 40
CHOSEN = PROMPTS[::6]

# Each has to give the same with and without drafts. The end of text counts unless it is ignored.
SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0, "frequency_penalty": 1.5, "ignore_eos": True},
    {"temperature": 0, "repetition_penalty": 1.4, "logit_bias": {"300": 3.5, "17": -100}},
    {"temperature": 0, "presence_penalty": -2, "frequency_penalty": -0.5},
    {"temperature": 0.8, "seed": 5, "presence_penalty": 1.2, "repetition_penalty": 0.9, "n": 2},
    {
        "temperature": 1,
        "seed": 6,
        "frequency_penalty": 0.7,
        "top_k": 20,
        "top_p": 0.9,
        "min_p": 0.02,
    },
    {"temperature": 1, "seed": 7, "logit_bias": {str(END): 6}, "min_tokens": 11},
    {"temperature": 1, "seed": 8, "logit_bias": {str(END): 6}, "ignore_eos": True, "n": 2},
    {"temperature": 0, "stop": [")", "self."], "min_tokens": 5, "ignore_eos": True},
    {"temperature": 0.7, "seed": 9, "presence_penalty": 0.5, "logprobs": 3},
]


def random_draft(folder: Path) -> Path:
    """The draft model's architecture and tokenizer with weights that say nothing."""
    shutil.copytree(DRAFT, folder)
    generator = torch.Generator().manual_seed(11)
    weights = {
        name: torch.randn(tensor.shape, generator=generator).mul(0.1).to(tensor.dtype)
        for name, tensor in load_file(DRAFT / "model.safetensors").items()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def all_choices(cluster: Cluster) -> tuple[list[Any], int, int]:
    """Every choice under every setting, and the tokens drafted and accepted for them."""

    def ask(case: tuple[dict[str, Any], str]) -> dict[str, Any]:
        settings, prompt = case
        return cluster.complete(prompt=prompt, max_tokens=TOKENS, return_token_ids=True, **settings)

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, [(s, p) for s in SETTINGS for p in CHOSEN]))
    speculation = [answer["usage"]["speculation"] for answer in answers]
    choices = [choice for answer in answers for choice in answer["choices"]]
    return choices, sum(s["drafted"] for s in speculation), sum(s["accepted"] for s in speculation)


@pytest.fixture(scope="module")
def plain_choices(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    with start_cluster(tmp_path_factory.mktemp("plain") / "up.log", drafts=0) as cluster:
        choices, drafted, _ = all_choices(cluster)
    assert drafted == 0
    assert {choice["finish_reason"] for choice in choices} == {"stop", "length"}
    return choices


def outcome(choice: dict[str, Any]) -> tuple[Any, ...]:
    """All of a choice but its log-probabilities."""
    return choice["index"], choice["text"], choice["token_ids"], choice["finish_reason"]


def logprobs(choices: list[Any]) -> list[float]:
    return [p for c in choices if c["logprobs"] for p in c["logprobs"]["token_logprobs"]]


@pytest.mark.parametrize(("draft", "ranks"), [("good", 1), ("good", 2), ("random", 1)])
def test_text_is_the_same_with_drafts(
    plain_choices: list[Any], draft: str, ranks: int, tmp_path: Path
) -> None:
    model = DRAFT if draft == "good" else random_draft(tmp_path / "draft")
    log = tmp_path / "up.log"
    with start_cluster(log, TARGET, model, tensor_parallel=ranks, drafts=1) as cluster:
        choices, drafted, accepted = all_choices(cluster)
    assert list(map(outcome, choices)) == list(map(outcome, plain_choices))
    # Their last bits depend on how the sums are split over ranks.
    assert logprobs(choices) == pytest.approx(logprobs(plain_choices), abs=1e-4)
    assert len(logprobs(choices)) > TOKENS
    assert drafted > 0
    if draft == "good":
        assert accepted > drafted / 20


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with start_cluster(tmp_path_factory.mktemp("rules") / "up.log", drafts=1) as running:
        yield running


def tokens_of(cluster: Cluster, prompt: str, **settings: Any) -> list[int]:
    settings = {"max_tokens": TOKENS, "ignore_eos": True, **settings}
    answer = cluster.complete(prompt=prompt, return_token_ids=True, **settings)
    return answer["choices"][0]["token_ids"]


@pytest.mark.parametrize("temperature", [0, 1, 2])
def test_the_strongest_biases_ban_and_force(cluster: Cluster, temperature: float) -> None:
    settings = {"temperature": temperature, "seed": 3}
    for prompt in CHOSEN[:4]:
        usual = tokens_of(cluster, prompt, **settings)
        banned = set(usual[::2])
        bias = {str(token): -100 for token in banned}
        without = tokens_of(cluster, prompt, logit_bias=bias, **settings)
        assert len(without) == TOKENS
        assert banned.isdisjoint(without)
        forced = tokens_of(cluster, prompt, logit_bias={"123": 100}, **settings)
        assert forced == [123] * TOKENS


def test_penalties_change_how_often_tokens_repeat(cluster: Cluster) -> None:
    def distinct(**settings: float) -> int:
        texts = (tokens_of(cluster, prompt, temperature=0, **settings) for prompt in CHOSEN)
        return sum(len(set(text)) for text in texts)

    usual = distinct()
    assert distinct(frequency_penalty=2) > usual
    assert distinct(presence_penalty=2) > usual
    assert distinct(repetition_penalty=1.5) > usual
    assert distinct(frequency_penalty=-2) < usual


def test_the_fewest_tokens(cluster: Cluster) -> None:
    """A model that would end at once, made to go on."""
    eager: dict[str, Any] = {"temperature": 1, "seed": 4, "logit_bias": {str(END): 100}}

    def ask(**settings: Any) -> tuple[list[int], str]:
        answer = cluster.complete(
            prompt=PROMPTS[3], max_tokens=20, return_token_ids=True, **eager, **settings
        )
        return answer["choices"][0]["token_ids"], answer["choices"][0]["finish_reason"]

    assert ask() == ([END], "stop")
    for fewest in (1, 7, 19):
        tokens, reason = ask(min_tokens=fewest)
        assert END not in tokens[:fewest]
        assert (tokens[fewest:], reason) == ([END], "stop")
    tokens, reason = ask(min_tokens=20)
    assert len(tokens) == 20
    assert END not in tokens
    assert reason == "length"
    # Where ends are ignored they are kept out of the first tokens all the same.
    tokens, reason = ask(min_tokens=7, ignore_eos=True)
    assert END not in tokens[:7]
    assert (tokens[7:], reason) == ([END] * 13, "length")
    # The request's own stop ids too.
    settings = {"min_tokens": 7, "logit_bias": {"123": 100}, "stop_token_ids": [123]}
    eager = {"temperature": 0}
    tokens, reason = ask(**settings)
    assert 123 not in tokens[:7]
    assert (tokens[7:], reason) == ([123], "stop")


class CountPenalties(LogitsProcessor):
    """OpenAI's two penalties, on what follows the prompt."""

    def __init__(self, prompt: int, presence: float, frequency: float) -> None:
        self.prompt, self.presence, self.frequency = prompt, presence, frequency

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        counts = torch.zeros_like(scores)
        output = input_ids[:, self.prompt :]
        counts.scatter_add_(1, output, torch.ones_like(output, dtype=scores.dtype))
        return scores - self.frequency * counts - self.presence * (counts > 0)


@torch.no_grad()
def test_greedy_text_equals_transformers(cluster: Cluster) -> None:
    model = AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32).eval()
    with cluster.client() as client:
        for prompt in CHOSEN:
            answer = client.post("/tokenize", json={"prompt": prompt}).json()
            ids = torch.tensor([answer["tokens"]])
            start = ids.shape[1]
            expected = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=TOKENS,
                min_new_tokens=12,
                repetition_penalty=1.3,
                sequence_bias={(300,): 2.5, (END,): 8.0},
                logits_processor=LogitsProcessorList([CountPenalties(start, 0.4, 0.3)]),
                pad_token_id=END,
            )[0, start:].tolist()
            choice = cluster.complete(
                prompt=prompt,
                temperature=0,
                max_tokens=TOKENS,
                min_tokens=12,
                repetition_penalty=1.3,
                logit_bias={"300": 2.5, str(END): 8.0},
                presence_penalty=0.4,
                frequency_penalty=0.3,
                logprobs=0,
                return_token_ids=True,
            )["choices"][0]
            assert choice["token_ids"] == expected
            # Reported are the probabilities before all this.
            text = torch.cat([ids, torch.tensor([expected])], dim=1)
            rows = model(text).logits[0, start - 1 : -1].log_softmax(-1)
            wanted = rows.gather(1, torch.tensor(expected)[:, None])[:, 0]
            own = torch.tensor(choice["logprobs"]["token_logprobs"])
            assert (own - wanted).abs().max() < 1e-4
