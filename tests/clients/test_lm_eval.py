"""EleutherAI's lm-evaluation-harness, unmodified, with tasks of our own on a data set of our own.

Its log-likelihoods are held against transformers', its generated texts against the server's own
without stop strings.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

import installed
from cluster import TARGET, Cluster

PROMPTS = ["def parse(self, ", "import os\n", "class Error(Exception):\n    def ", "for i in"]
CHOICES = ["text", "sys", "__init__", " range"]
# With the end token, which lm-eval adds, these are six. Only the fifth is in what the model says.
UNTIL = ["Question:", "</s>", "<|im_end|>", "\n\n\n\n", ", "]
TOKENS = 24
TOLERANCE = 1e-3  # of a sum over a few tokens, each to 1e-4 (tests/e2e/test_logits.py)


def task(name: str, data: Path, **settings: Any) -> dict[str, Any]:
    return {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "test_split": "test",
        "doc_to_text": "{{prompt}}",
        "target_delimiter": "",
        **settings,
    }


def write_tasks(folder: Path) -> None:
    data = folder / "data.jsonl"
    lines = [{"prompt": p, "choices": CHOICES, "label": i} for i, p in enumerate(PROMPTS)]
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    tasks = [
        task(
            "generate",
            data,
            output_type="generate_until",
            doc_to_target="label",
            generation_kwargs={"until": UNTIL, "max_gen_toks": TOKENS, "do_sample": False},
            metric_list=[{"metric": "bypass"}],
        ),
        task(
            "choose",
            data,
            output_type="multiple_choice",
            doc_to_target="label",
            doc_to_choice="choices",
            metric_list=[{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
        ),
        task(
            "roll",
            data,
            output_type="loglikelihood_rolling",
            doc_to_text="",
            doc_to_target="{{prompt}}",
            metric_list=[{"metric": "bits_per_byte"}],
        ),
    ]
    for settings in tasks:
        (folder / f"{settings['task']}.yaml").write_text(yaml.safe_dump(settings))


@pytest.fixture(scope="module")
def found(served: Cluster, hub: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What lm-eval says, by the way in which it was told to send requests."""
    python = installed.client_dir("lm-eval") / "bin" / "python"
    folder = tmp_path_factory.mktemp("lm-eval")
    (folder / "tasks").mkdir()
    write_tasks(folder / "tasks")
    model = {"model": served.model, "max_retries": 1}
    completions = {
        **model,
        "base_url": f"{served.url}/v1/completions",
        # With the server's own tokenizer, which it asks for, it takes one of id 0 for none.
        "custom_prefix_token_id": AutoTokenizer.from_pretrained(TARGET).bos_token_id,
    }
    every_task = {"model": "local-completions", "tasks": ["generate", "choose", "roll"]}
    runs: dict[str, Any] = {
        "one by one": {**every_task, "model_args": completions},
        "batches": {**every_task, "model_args": {**completions, "batch_size": 3}},
        "at once, as text": {
            **every_task,
            "model_args": {**completions, "num_concurrent": 4, "tokenized_requests": False},
        },
        "chat": {
            "model": "local-chat-completions",
            "tasks": ["generate"],
            "model_args": {**model, "base_url": f"{served.url}/v1/chat/completions"},
            "apply_chat_template": True,
        },
    }
    request, answer = folder / "request.json", folder / "answer.json"
    request.write_text(json.dumps({"tasks": str(folder / "tasks"), "runs": runs}))
    installed.run_client(
        [python, Path(__file__).with_name("lm_eval_run.py"), request, answer],
        {"HF_HOME": str(hub), "HF_HUB_OFFLINE": "1"},
        folder,
        400,
    )
    told = json.loads(answer.read_text())
    installed.met("lm-eval", told["version"])
    return told["runs"]


COMPLETIONS = ["one by one", "batches", "at once, as text"]


@pytest.mark.parametrize("way", COMPLETIONS)
def test_five_stops_cut_a_generated_text(found: dict[str, Any], served: Cluster, way: str) -> None:
    ended = 0
    for prompt, (text,) in zip(PROMPTS, found[way]["answers"]["generate"], strict=True):
        (whole,) = served.complete(prompt=prompt, max_tokens=TOKENS, temperature=0)["choices"]
        cuts = [whole["text"].find(stop) for stop in UNTIL]
        at = min((cut for cut in cuts if cut >= 0), default=None)
        ended += at is not None
        assert text == whole["text"][:at]
    assert ended > 0, "none of the stops was met"


def test_a_chat_generates(found: dict[str, Any], served: Cluster) -> None:
    for prompt, (text,) in zip(PROMPTS, found["chat"]["answers"]["generate"], strict=True):
        with served.client() as client:
            body = {"messages": [{"role": "user", "content": prompt}], "temperature": 0}
            response = client.post("/v1/chat/completions", json={**body, "max_tokens": TOKENS})
        whole = response.json()["choices"][0]["message"]["content"]
        cuts = [whole.find(stop) for stop in UNTIL[:4]]  # no more are sent to a chat
        assert text == whole[: min((cut for cut in cuts if cut >= 0), default=None)]


@functools.cache
def reference() -> Any:
    return AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32).eval()


@torch.no_grad()
def expected_scores(context: list[int], rest: list[int]) -> tuple[float, bool]:
    """The log-likelihood of `rest` after `context`, and whether each of it is the likeliest."""
    logits = reference()(torch.tensor([context + rest])).logits[0, len(context) - 1 : -1]
    scores = logits.log_softmax(-1).gather(1, torch.tensor(rest)[:, None])[:, 0]
    return scores.sum().item(), logits.argmax(-1).tolist() == rest


@pytest.mark.parametrize("way", COMPLETIONS)
def test_log_likelihoods_are_those_of_transformers(found: dict[str, Any], way: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(TARGET)
    greedy = 0
    for prompt, scores in zip(PROMPTS, found[way]["answers"]["choose"], strict=True):
        assert len(scores) == len(CHOICES)
        for choice, (own, own_greedy) in zip(CHOICES, scores, strict=True):
            # As lm-eval splits them: white space at a context's end belongs to what follows.
            both = tokenizer.encode(prompt + choice)
            context = tokenizer.encode(prompt.rstrip())
            value, is_greedy = expected_scores(context, both[len(context) :])
            assert own == pytest.approx(value, abs=TOLERANCE)
            assert own_greedy == is_greedy
            greedy += is_greedy
    assert greedy > 0, "no choice is what the model would say"


@pytest.mark.parametrize("way", COMPLETIONS)
def test_rolling_log_likelihoods_are_those_of_transformers(found: dict[str, Any], way: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(TARGET)
    for prompt, (own,) in zip(PROMPTS, found[way]["answers"]["roll"], strict=True):
        value, _ = expected_scores([tokenizer.bos_token_id], tokenizer.encode(prompt))
        assert own == pytest.approx(value, abs=TOLERANCE)
