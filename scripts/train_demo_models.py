#!/usr/bin/env python3
"""Train the demo pair: a Llama-shaped target, and a small draft distilled from it.

Data is the Python standard library's own source (PSF licence), so every machine has it. Both
models are written in Hugging Face form (config.json, model.safetensors, tokenizer.json) under
models/target and models/draft, and what was done is recorded in models/README.md. Drafters in
other layouts (PARD, EAGLE-3, DSpark) are made from the target by scripts/train_demo_drafters.py.

The learning-rate schedule follows elapsed time, not steps: training shares its machine with
other work, and a run that is slowed down still ends when it said it would.

    python=$(scripts/setup --print-venv)/bin/python
    $python scripts/train_demo_models.py --target_minutes 60 --draft_minutes 25
    $python scripts/train_demo_models.py --keep_target --draft_minutes 25  # same target, new draft
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import platform
import sysconfig
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY = 4096
CONTEXT = 2048  # what the config promises
BEGIN, END = "<|begin|>", "<|end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{{ message['content'] }}\n"
    "{% else %}# {{ message['role'] }}: {{ message['content'] }}\n{% endif %}"
    "{% endfor %}"
)


@dataclasses.dataclass
class Shape:
    """The size of one model and how long its training sequences are."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int


TARGET = Shape(hidden=256, intermediate=704, layers=6, heads=4, kv_heads=2)
DRAFT = dataclasses.replace(TARGET, layers=2)


def read_corpus() -> tuple[list[str], list[str]]:
    """Training and held-out files of the standard library; every 25th file is held out."""
    root = Path(sysconfig.get_paths()["stdlib"])
    skip = {"test", "tests", "site-packages", "dist-packages", "idle_test", "lib2to3", "encodings"}
    train: list[str] = []
    held_out: list[str] = []
    for i, path in enumerate(sorted(root.rglob("*.py"))):
        if skip.intersection(path.relative_to(root).parts):
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        (held_out if i % 25 == 0 else train).append(text)
    return train, held_out


def train_tokenizer(texts: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[BEGIN, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def to_ids(tokenizer: Tokenizer, texts: list[str]) -> torch.Tensor:
    """One long stream: begin, file, end, begin, file, ..."""
    vocabulary = tokenizer.get_vocab()
    begin, end = vocabulary[BEGIN], vocabulary[END]
    ids: list[int] = []
    for encoding in tokenizer.encode_batch(texts):
        ids += [begin, *encoding.ids, end]
    return torch.from_numpy(np.asarray(ids, dtype=np.int64))


def make_model(shape: Shape) -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=shape.hidden,
            intermediate_size=shape.intermediate,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            max_position_embeddings=CONTEXT,
            rms_norm_eps=1e-5,
            tie_word_embeddings=True,
            bos_token_id=0,
            eos_token_id=1,
        )
    )


def make_draft(target: LlamaForCausalLM) -> LlamaForCausalLM:
    """The target without its middle layers: distilling goes on from what it knows already."""
    draft = make_model(DRAFT)
    kept = {0: 0, DRAFT.layers - 1: TARGET.layers - 1}
    draft.model.embed_tokens.load_state_dict(target.model.embed_tokens.state_dict())
    draft.model.norm.load_state_dict(target.model.norm.state_dict())
    for of_draft, of_target in kept.items():
        draft.model.layers[of_draft].load_state_dict(target.model.layers[of_target].state_dict())
    return draft


def batch_of(ids: torch.Tensor, rows: int, length: int) -> torch.Tensor:
    starts = torch.randint(0, len(ids) - length - 1, (rows,))
    return torch.stack([ids[s : s + length + 1] for s in starts])


@torch.no_grad()
def held_out_loss(model: LlamaForCausalLM, ids: torch.Tensor) -> float:
    """Mean cross-entropy in nats a token over the first 64 windows of the held-out stream."""
    model.eval()
    windows = ids[: 64 * 256 + 1]
    losses = []
    for start in range(0, len(windows) - 256, 256 * 8):
        rows = [windows[s : s + 257] for s in range(start, start + 256 * 8, 256)]
        rows = torch.stack([r for r in rows if len(r) == 257])
        logits = model(rows[:, :-1]).logits
        losses.append(
            torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()).item()
        )
    model.train()
    return sum(losses) / len(losses)


@torch.no_grad()
def agreement(
    target: LlamaForCausalLM, draft: LlamaForCausalLM, ids: torch.Tensor
) -> dict[str, float]:
    """How alike the pair is on held-out text: arg-max agreement and 1 - TV at T = 1."""
    target.eval()
    draft.eval()
    rows = torch.stack([ids[s : s + 256] for s in range(0, 32 * 256, 256)])
    p = target(rows).logits.softmax(-1)
    q = draft(rows).logits.softmax(-1)
    return {
        "argmax_agreement": (p.argmax(-1) == q.argmax(-1)).float().mean().item(),
        "one_minus_tv": torch.minimum(p, q).sum(-1).mean().item(),
    }


def train(
    model: LlamaForCausalLM,
    ids: torch.Tensor,
    held_out: torch.Tensor,
    minutes: float,
    peak_lr: float,
    rows: int,
    teacher: LlamaForCausalLM | None,
    name: str,
) -> dict[str, float]:
    """Trains in place for `minutes`; with a teacher the loss is .2 cross-entropy + KL to it."""
    decay = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=peak_lr, betas=(0.9, 0.95))
    begin, step, tokens, report = time.monotonic(), 0, 0, 0.0
    while (progress := (time.monotonic() - begin) / (60 * minutes)) < 1:
        lr = (
            peak_lr
            * min(1.0, (step + 1) / 100)
            * (0.05 + 0.95 * (1 + math.cos(math.pi * progress)) / 2)
        )
        for group in optimizer.param_groups:
            group["lr"] = lr
        # Short sequences first: most of what is learned early is local, and attention is dear.
        length = 128 if progress < 0.5 else 256
        batch = batch_of(ids, rows * 256 // length, length)
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(batch[:, :-1]).logits
            if teacher is not None:
                with torch.no_grad():
                    wanted = teacher(batch[:, :-1]).logits
        logits = logits.float().flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits, batch[:, 1:].flatten())
        if teacher is not None:
            kl = torch.nn.functional.kl_div(
                logits.log_softmax(-1),
                wanted.float().flatten(0, 1).log_softmax(-1),
                reduction="batchmean",
                log_target=True,
            )
            loss = 0.2 * loss + kl
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step, tokens = step + 1, tokens + rows * 256
        if time.monotonic() - report > 60:
            report = time.monotonic()
            print(
                f"{name}: {100 * progress:.0f} % step {step} loss {loss.item():.3f} "
                f"held-out {held_out_loss(model, held_out):.3f} lr {lr:.2e}",
                flush=True,
            )
    return {"steps": step, "tokens": tokens, "held_out_loss": held_out_loss(model, held_out)}


def save(model: LlamaForCausalLM, tokenizer: Tokenizer, folder: Path) -> None:
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BEGIN,
        "eos_token": END,
        "model_max_length": CONTEXT,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")


def describe(shape: Shape, parameters: int, result: dict[str, float]) -> str:
    return (
        f"hidden {shape.hidden}, {shape.layers} layers, {shape.heads} heads over {shape.kv_heads}, "
        f"MLP {shape.intermediate}; {parameters / 1e6:.2f} M parameters; "
        f"{result['steps']} steps, {result['tokens'] / 1e6:.1f} M tokens; "
        f"held-out loss {result['held_out_loss']:.3f} nats a token"
    )


DRAFTERS_TEXT = """
## Drafters in other layouts

Made by `scripts/train_demo_drafters.py`: distilled from `target`, half of each batch from the same
files and half what the target generates from their fragments.

{drafters}

By depth, the n-th draft token of a round, greedy, on held-out files:
- *agreement*: how often it is what the target finds likeliest, given the file up to there.
- *accepted*: how often the target, generating greedily, accepts it and all before it. The sum is
  the mean number of draft tokens that a round gives.

{figures}
"""


def describe_drafters(drafters: dict[str, Any]) -> str:
    """What scripts/train_demo_drafters.py made, if it ran: one line each, and figures by depth."""
    if not drafters:
        return ""
    depths = range(1, 1 + max(len(d["accepted"]) for d in drafters.values()))
    lines = [
        f"- `{name}`: {d['about']}; {d['parameters'] / 1e6:.2f} M parameters; {d['steps']} steps."
        for name, d in drafters.items()
    ]
    table = [
        "| drafter | figure | " + " | ".join(f"{depth}" for depth in depths) + " | sum |",
        "|---|---|" + "---|" * (len(depths) + 1),
    ]
    for name, d in drafters.items():
        for figure in ("agreement", "accepted"):
            cells = [f"{value:.2f}" for value in d[figure]]
            cells += [""] * (len(depths) - len(cells))
            cells.append(f"{d['accepted_tokens']:.2f}" if figure == "accepted" else "")
            table.append(f"| `{name}` | {figure} | " + " | ".join(cells) + " |")
    return DRAFTERS_TEXT.format(drafters="\n".join(lines), figures="\n".join(table))


def write_record(out: Path, record: dict[str, dict[str, Any]]) -> None:
    """training.json, for the next run, and README.md, for people."""
    (out / "training.json").write_text(json.dumps(record, indent=2) + "\n")
    target = describe(TARGET, int(record["target"]["parameters"]), record["target"])
    draft = describe(DRAFT, int(record["draft"]["parameters"]), record["draft"])
    data, pair = record["data"], record["pair"]
    (out / "README.md").write_text(
        f"""# The demo models

Made by `scripts/train_demo_models.py`, nothing else; random initial weights, seed 0.

- Data: the source of CPython {platform.python_version()}'s standard library (PSF licence) without
  its tests: {data["files"]} files, {data["tokens"] / 1e6:.2f} M tokens; every 25th file held out.
- Tokenizer: byte-level BPE of {VOCABULARY} tokens, trained on the same files.
- `target`: {target}.
- `draft`: {draft};
  begun as the target's first and last layer,
  distilled from the target with .2 cross-entropy + KL(target || draft).
- The pair on held-out text: arg-max agreement {pair["argmax_agreement"]:.3f}, 1 - TV at T = 1
  {pair["one_minus_tv"]:.3f}.

Both are stored in bfloat16. They know the look of Python code and little else: they exist so that
the demo and the tests run real checkpoints with a realistic draft.
"""
        + describe_drafters(record.get("drafters", {}))
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--target_minutes", type=float, default=60)
    parser.add_argument("--draft_minutes", type=float, default=25)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "models")
    parser.add_argument("--keep_target", action="store_true", help="only train a new draft")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)

    train_texts, held_out_texts = read_corpus()
    if args.keep_target:
        tokenizer = Tokenizer.from_file(str(args.out / "target" / "tokenizer.json"))
    else:
        tokenizer = train_tokenizer(train_texts)
    ids, held_out = to_ids(tokenizer, train_texts), to_ids(tokenizer, held_out_texts)
    print(f"{len(train_texts)} files, {len(ids)} tokens; held out {len(held_out)}", flush=True)

    if args.keep_target:
        target = LlamaForCausalLM.from_pretrained(args.out / "target", dtype=torch.float32)
        record = json.loads((args.out / "training.json").read_text())
    else:
        target = make_model(TARGET)
        result = train(target, ids, held_out, args.target_minutes, 3e-3, 16, None, "target")
        record = {"target": result | {"parameters": target.num_parameters()}}
        save(target, tokenizer, args.out / "target")
        target.float()
    target.eval()
    draft = make_draft(target)
    result = train(draft, ids, held_out, args.draft_minutes, 2e-3, 16, target, "draft")
    record["draft"] = result | {"parameters": draft.num_parameters()}
    record["data"] = {"files": len(train_texts), "tokens": len(ids)}
    record["pair"] = agreement(target, draft, held_out)
    save(draft, tokenizer, args.out / "draft")
    write_record(args.out, record)
    print(json.dumps(record, indent=2))


if __name__ == "__main__":
    main()
