"""Log-probabilities over HTTP equal those that transformers computes from the same checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

import make
from cluster import Cluster, run, start_cluster, up_arguments

TOLERANCE = 1e-4
TOP = 5
PROMPT_LENGTHS = [2, 3, 17, 64, 131, 200]


def divides(shape: make.Shape, ranks: int) -> bool:
    """Whether every head can live whole on one of `ranks` ranks."""
    heads = shape.settings["num_attention_heads"]
    kv_heads = shape.settings["num_key_value_heads"]
    return heads % ranks == 0 and kv_heads % ranks == 0


def random_prompts(name: str, vocabulary: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(len(name))
    return [
        torch.randint(2, vocabulary, (length,), generator=generator).tolist()
        for length in PROMPT_LENGTHS
    ]


@torch.no_grad()
def reference(checkpoint: Path, prompts: list[list[int]]) -> list[torch.Tensor]:
    """Per prompt, log-probabilities [position][token] of the token after each position."""
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    return [model(torch.tensor([prompt])).logits[0].log_softmax(-1) for prompt in prompts]


def check_scores(scores: dict, prompt: list[int], expected: torch.Tensor) -> None:
    """Compares one answer's `logprobs` with the reference of its prompt."""
    assert len(scores["token_logprobs"]) == len(prompt)
    assert scores["token_logprobs"][0] is None
    own = torch.tensor(scores["token_logprobs"][1:])
    wanted = expected[:-1].gather(1, torch.tensor(prompt[1:])[:, None])[:, 0]
    assert (own - wanted).abs().max() < TOLERANCE
    for position, top in enumerate(scores["top_logprobs"][1:]):
        likeliest = expected[position].topk(TOP).values
        # The token of the prompt is listed too where it is not among the likeliest.
        found = torch.tensor(sorted(top.values(), reverse=True)[:TOP])
        assert (found - likeliest[: len(found)]).abs().max() < TOLERANCE
        assert len(top) >= TOP


def scores(cluster: Cluster, prompts: list[list[int]]) -> list[dict[str, Any]]:
    """The `logprobs` of every prompt, in order."""
    answer = cluster.complete(prompt=prompts, echo=True, logprobs=TOP, max_tokens=0, temperature=0)
    choices = sorted(answer["choices"], key=lambda choice: choice["index"])
    assert len(choices) == len(prompts)
    return [choice["logprobs"] for choice in choices]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", make.SHAPES)
def test_log_probabilities_equal_transformers(
    name: str, ranks: int, checkpoints: Path, tmp_path: Path
) -> None:
    shape = make.SHAPES[name]
    checkpoint = checkpoints / name
    if not divides(shape, ranks):
        check_refusal(checkpoint, ranks)
        return
    prompts = random_prompts(name, shape.settings["vocab_size"])
    expected = reference(checkpoint, prompts)
    with start_cluster(
        tmp_path / "up.log", checkpoint, None, tensor_parallel=ranks, drafts=0
    ) as cluster:
        for found, prompt, wanted in zip(scores(cluster, prompts), prompts, expected, strict=True):
            check_scores(found, prompt, wanted)


def check_refusal(checkpoint: Path, ranks: int) -> None:
    """Heads that cannot be shared out are refused at start, in one line that says so."""
    arguments = up_arguments(
        checkpoint,
        None,
        "127.0.0.1:0",
        tensor_parallel=ranks,
        targets=1,
        drafts=0,
        dtype="float32",
    )
    result = run(arguments)
    assert result.returncode == 2, result.stderr
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    assert "tensor-parallel" in lines[0]
    assert str(ranks) in lines[0]


def test_generated_log_probabilities_equal_transformers(checkpoints: Path, tmp_path: Path) -> None:
    """The same for generated tokens: decode steps over a filled cache, not one prefill."""
    name = "qwen3-wide-heads"
    prompt = random_prompts(name, make.SHAPES[name].settings["vocab_size"])[2]
    with start_cluster(tmp_path / "up.log", checkpoints / name, None, drafts=0) as cluster:
        answer = cluster.complete(
            prompt=prompt,
            logprobs=TOP,
            max_tokens=48,
            temperature=1.0,
            seed=7,
            ignore_eos=True,
            return_token_ids=True,
        )
    choice = answer["choices"][0]
    generated = choice["token_ids"]
    assert len(generated) == 48
    expected = reference(checkpoints / name, [prompt + generated])[0]
    rows = expected[len(prompt) - 1 : -1]
    wanted = rows.gather(1, torch.tensor(generated)[:, None])[:, 0]
    own = torch.tensor(choice["logprobs"]["token_logprobs"])
    assert (own - wanted).abs().max() < TOLERANCE
