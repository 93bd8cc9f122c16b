#!/usr/bin/env python3
"""Makes small random-weight checkpoints in Hugging Face form, one for each odd shape.

The weights are large (a standard deviation of .2 or so, where training starts from .02), so that
the next-token distributions are far from flat and a wrong layer shows in the log-probabilities.
Everything follows from the shape's name, so two runs write the same bytes.

    tests/checkpoints/make.py --out DIR [NAME...]
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import string
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.utils import logging

BEGIN, END = "<|begin|>", "<|end|>"

_CLASSES: dict[str, tuple[type[PreTrainedConfig], type[PreTrainedModel]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}


@dataclass(frozen=True)
class Shape:
    """One checkpoint: its architecture, what differs from that architecture's defaults, its files.

    `settings` are fields of the transformers configuration class. `old_config` rewrites
    config.json the way versions before 5 wrote it (rope_theta, rope_scaling, torch_dtype).
    """

    architecture: str
    settings: dict[str, Any]
    dtype: torch.dtype = torch.float32
    shard_bytes: int | None = None  # None: one file
    old_config: bool = False
    spread: float = 0.2  # standard deviation of the weights
    rope: dict[str, Any] = field(default_factory=lambda: {"rope_type": "default"})
    rope_theta: float = 10000.0


SHAPES: dict[str, Shape] = {
    # Multi-head attention, nothing odd: where to look first when all fail.
    "llama-plain": Shape(
        "llama",
        {
            "vocab_size": 512,
            "hidden_size": 64,
            "intermediate_size": 160,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
        },
    ),
    # Grouped heads, tied head, several shards, hidden size not a multiple of 64.
    "llama-gqa-tied-shards": Shape(
        "llama",
        {
            "vocab_size": 640,
            "hidden_size": 96,
            "intermediate_size": 200,
            "num_hidden_layers": 3,
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "tie_word_embeddings": True,
        },
        shard_bytes=120_000,
        spread=0.15,
    ),
    # One head of keys and values for all, biases everywhere, odd vocabulary and MLP.
    "llama-mqa-bias-odd": Shape(
        "llama",
        {
            "vocab_size": 331,
            "hidden_size": 40,
            "intermediate_size": 77,
            "num_hidden_layers": 2,
            "num_attention_heads": 5,
            "num_key_value_heads": 1,
            "attention_bias": True,
            "mlp_bias": True,
        },
        rope_theta=500000.0,
    ),
    # head_dim larger than hidden / heads, rope "llama3", bfloat16, as Llama 3.2 is.
    "llama-rope3-wide-heads": Shape(
        "llama",
        {
            "vocab_size": 523,
            "hidden_size": 48,
            "intermediate_size": 136,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "tie_word_embeddings": True,
        },
        dtype=torch.bfloat16,
        rope_theta=500000.0,
        rope={
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ),
    # The same under the field names of older configurations.
    "llama-rope3-old-config": Shape(
        "llama",
        {
            "vocab_size": 384,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
        },
        old_config=True,
        rope_theta=500000.0,
        rope={
            "rope_type": "llama3",
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 96,
        },
    ),
    # Linear scaling, named "type" as the oldest configurations name it.
    "llama-rope-linear-old-config": Shape(
        "llama",
        {
            "vocab_size": 400,
            "hidden_size": 56,
            "intermediate_size": 120,
            "num_hidden_layers": 2,
            "num_attention_heads": 7,
            "num_key_value_heads": 7,
        },
        dtype=torch.bfloat16,
        shard_bytes=40_000,
        old_config=True,
        rope={"rope_type": "linear", "factor": 3.0},
    ),
    "llama-rope-yarn": Shape(
        "llama",
        {
            "vocab_size": 514,
            "hidden_size": 64,
            "intermediate_size": 104,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
        },
        rope={
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ),
    # Mistral: grouped heads, head_dim smaller than hidden / heads, no sliding window.
    "mistral-narrow-heads": Shape(
        "mistral",
        {
            "vocab_size": 450,
            "hidden_size": 80,
            "intermediate_size": 152,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 12,
            "sliding_window": None,
        },
        dtype=torch.bfloat16,
        rope_theta=1000000.0,
    ),
    "mistral-shards-old-config": Shape(
        "mistral",
        {
            "vocab_size": 768,
            "hidden_size": 64,
            "intermediate_size": 224,
            "num_hidden_layers": 3,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "sliding_window": None,
        },
        shard_bytes=90_000,
        old_config=True,
    ),
    # Qwen2: biases on q, k and v only.
    "qwen2-tied": Shape(
        "qwen2",
        {
            "vocab_size": 601,
            "hidden_size": 56,
            "intermediate_size": 108,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "tie_word_embeddings": True,
        },
        rope_theta=1000000.0,
    ),
    "qwen2-rope-yarn-old-config": Shape(
        "qwen2",
        {
            "vocab_size": 516,
            "hidden_size": 64,
            "intermediate_size": 100,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
        },
        dtype=torch.bfloat16,
        old_config=True,
        rope={
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ),
    # Qwen3: norms on q and k, head_dim apart from hidden / heads.
    "qwen3-wide-heads": Shape(
        "qwen3",
        {
            "vocab_size": 520,
            "hidden_size": 48,
            "intermediate_size": 144,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 24,
            "tie_word_embeddings": True,
        },
        rope_theta=1000000.0,
    ),
    "qwen3-mqa-bias-shards": Shape(
        "qwen3",
        {
            "vocab_size": 347,
            "hidden_size": 72,
            "intermediate_size": 90,
            "num_hidden_layers": 3,
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "head_dim": 16,
            "attention_bias": True,
        },
        dtype=torch.bfloat16,
        shard_bytes=60_000,
    ),
    # A vocabulary so small that the distribution of whole texts can be written down.
    "llama-tiny-vocabulary": Shape(
        "llama",
        {
            "vocab_size": 8,
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
        },
        spread=0.4,
    ),
}

CONTEXT = 256
# Vocabularies up to this size are of letters: too small for all bytes.
MAX_LETTERS = 2 + len(string.ascii_lowercase)


def make_tokenizer(vocabulary: int) -> Tokenizer:
    """A tokenizer with exactly `vocabulary` tokens: letters, or bytes and pairs of letters."""
    special = [AddedToken(BEGIN, special=True), AddedToken(END, special=True)]
    if vocabulary <= MAX_LETTERS:
        tokenizer = _make_letters(vocabulary)
    else:
        tokenizer = _make_byte_level(vocabulary)
    tokenizer.add_special_tokens(special)
    return tokenizer


def letters(vocabulary: int) -> list[str]:
    """The text of each token of a small vocabulary; none of BEGIN and END."""
    return ["", "", *string.ascii_lowercase[: vocabulary - 2]]


def _make_letters(vocabulary: int) -> Tokenizer:
    """Reads and writes texts of the first letters; other characters are BEGIN."""
    tokens = [BEGIN, END, *letters(vocabulary)[2:]]
    tokenizer = Tokenizer(models.WordLevel({t: i for i, t in enumerate(tokens)}, unk_token=BEGIN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def _make_byte_level(vocabulary: int) -> Tokenizer:
    """A byte-level BPE, its merges being pairs of letters."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [BEGIN, END, *alphabet]
    letters = string.ascii_lowercase
    # "Ġ" is how byte-level BPE writes a space; words begin with it.
    pairs = itertools.chain(itertools.product("Ġ", letters), itertools.product(letters, letters))
    merges = list(itertools.islice(pairs, vocabulary - len(tokens)))
    tokens += [a + b for a, b in merges]
    if len(tokens) != vocabulary:
        raise ValueError(
            f"vocabulary {vocabulary}; allowed: 3 to {MAX_LETTERS}, 258 to {258 + 26 * 27}"
        )
    tokenizer = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def save_tokenizer(vocabulary: int, folder: Path) -> None:
    make_tokenizer(vocabulary).save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BEGIN,
        "eos_token": END,
        "model_max_length": CONTEXT,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")


def _write_old_config(folder: Path) -> None:
    """Rewrites config.json with the field names that transformers used before version 5."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    if rope["rope_type"] == "linear":
        rope["type"] = rope.pop("rope_type")
    config["rope_scaling"] = None if rope.get("rope_type") == "default" else rope
    config["torch_dtype"] = config.pop("dtype")
    path.write_text(json.dumps(config, indent=2) + "\n")


def _fill(model: PreTrainedModel, generator: torch.Generator, spread: float) -> None:
    """Random weights, norms around 1 and biases around 0, all from `generator`."""
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator) * spread
            parameter.copy_(1 + noise if name.endswith("norm.weight") else noise)


def make(name: str, folder: Path, shape: Shape | None = None) -> Path:
    """Writes the checkpoint called `name` into `folder`, and returns `folder`."""
    shape = shape or SHAPES[name]
    config_class, model_class = _CLASSES[shape.architecture]
    config = config_class(
        **{"max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-5, **shape.settings},
        bos_token_id=0,
        eos_token_id=1,
        rope_parameters={**shape.rope, "rope_theta": shape.rope_theta},
    )
    model = model_class(config)
    _fill(model, torch.Generator().manual_seed(zlib.crc32(name.encode())), shape.spread)
    folder.mkdir(parents=True, exist_ok=True)
    size = shape.shard_bytes or 1 << 30
    model.to(shape.dtype).save_pretrained(folder, max_shard_size=size)
    if shape.old_config:
        _write_old_config(folder)
    save_tokenizer(shape.settings["vocab_size"], folder)
    return folder


def make_repeater(text: str, folder: Path) -> Path:
    """A model that, after any token of `text`, goes on with `text` for ever, byte by byte.

    The next token is a function of the last one: attention and MLP add nothing, and the head's
    row of each byte's successor is that byte's embedding. So no byte may occur twice in `text`.
    """
    data = text.encode()
    if len(set(data)) != len(data):
        raise ValueError(f"{text!r}: a byte occurs twice; allowed: texts of distinct bytes")
    vocabulary, hidden = 300, 256
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        bos_token_id=0,
        eos_token_id=1,
    )
    model = LlamaForCausalLM(config)
    generator = torch.Generator().manual_seed(0)
    embedding = torch.randn(vocabulary, hidden, generator=generator)
    tokens = [make_tokenizer(vocabulary).token_to_id(_letter_of(byte)) for byte in data]
    head = torch.zeros(vocabulary, hidden)
    for token, successor in zip(tokens, tokens[1:] + tokens[:1], strict=True):
        head[successor] = embedding[token]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter.zero_()
        model.model.embed_tokens.weight.copy_(embedding)
        model.lm_head.weight.copy_(head)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    save_tokenizer(vocabulary, folder)
    return folder


def make_noisy(source: Path, folder: Path, noise: float, name: str = "noise") -> Path:
    """The checkpoint `source` in `folder`, its weights mixed with noise that follows from `name`.

    `noise` is its share: with 0 nothing changes; with 1 nothing is left but noise as spread as the
    tensor was, around 1 for norms.
    """
    shutil.copytree(source, folder)
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    weights = load_file(source / "model.safetensors")
    for key, tensor in sorted(weights.items()):
        mean = 1.0 if key.endswith("norm.weight") else 0.0
        values = tensor.float()
        spread = (values - mean).square().mean().sqrt()
        drawn = mean + spread * torch.randn(tensor.shape, generator=generator)
        weights[key] = ((1 - noise) * values + noise * drawn).to(tensor.dtype)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def make_not_finite(source: Path, folder: Path, values: dict[int, float]) -> Path:
    """The checkpoint `source`, whose embeddings are tied, in `folder`, with broken embeddings.

    Those of each token of `values` are that value; the head stays as it was, so that only texts
    with such a token have logits that are no finite numbers.
    """

    def untie(weights: dict[str, torch.Tensor]) -> None:
        for token, value in values.items():
            weights["model.embed_tokens.weight"][token] = value

    return _make_untied(source, folder, untie)


def make_proposing(source: Path, folder: Path, token: int, like: int) -> Path:
    """The checkpoint `source`, whose embeddings are tied, in `folder`, as a draft that errs.

    It finds `token` as likely as the token `like`, wherever it stands.
    """

    def repeat(weights: dict[str, torch.Tensor]) -> None:
        weights["lm_head.weight"][token] = weights["lm_head.weight"][like]

    return _make_untied(source, folder, repeat)


def changed(
    source: Path,
    folder: Path,
    config: Callable[[dict[str, Any]], None] = lambda _: None,
    tensors: Callable[[dict[str, torch.Tensor]], None] = lambda _: None,
) -> Path:
    """A copy of the one-file checkpoint `source` whose config.json and tensors were changed."""
    make_broken(source, folder, config)
    weights = load_file(folder / "model.safetensors")
    tensors(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _make_untied(
    source: Path, folder: Path, change: Callable[[dict[str, torch.Tensor]], None]
) -> Path:
    def untie(config: dict[str, Any]) -> None:
        config["tie_word_embeddings"] = False

    def with_a_head(weights: dict[str, torch.Tensor]) -> None:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
        change(weights)

    return changed(source, folder, untie, with_a_head)


def _letter_of(byte: int) -> str:
    """The letter that byte-level BPE writes for `byte`."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    if byte in printable:
        return chr(byte)
    others = [b for b in range(256) if b not in printable]
    return chr(256 + others.index(byte))


def make_broken(source: Path, folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """A copy of the checkpoint `source` in `folder` whose config.json went through `change`."""
    shutil.copytree(source, folder)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config, indent=2) + "\n")
    return folder


def parse_arguments(doc: str | None, allowed: Iterable[str]) -> tuple[Path, list[str]]:
    """The folder to write to, and the names of what to make: all, where none is given."""
    allowed = list(allowed)
    parser = argparse.ArgumentParser(description=doc.split("\n")[0] if doc else None)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(allowed)}")
    args = parser.parse_args()
    unknown = sorted(set(args.names) - set(allowed))
    if unknown:
        parser.error(f"unknown name {unknown[0]}; allowed: {', '.join(allowed)}")
    return args.out, args.names or allowed


def main() -> None:
    logging.disable_progress_bar()
    out, names = parse_arguments(__doc__, SHAPES)
    for name in names:
        print(make(name, out / name))


if __name__ == "__main__":
    main()
