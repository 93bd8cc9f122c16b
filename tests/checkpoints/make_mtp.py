#!/usr/bin/env python3
"""Makes small random-weight MTP drafters, one for each odd shape, and their targets.

Where a drafter is part of its target's checkpoint, that is one folder; `plain` has the target
without it. Weights are as in make.py.

    tests/checkpoints/make_mtp.py --out DIR [NAME...]
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

import make
from make_drafters import TARGETS, random_tensor, write_checkpoint


@dataclass(frozen=True)
class Drafter:
    """`layers` None: part of the target. Else fields of a transformers configuration class."""

    target: make.Shape
    layers: dict[str, Any] | None = None
    family: str = "qwen2"
    further_layers: int = 0  # which nothing reads
    dtype: torch.dtype = torch.float32
    shard_size: int = 1 << 30
    spread: float = 0.15

    @property
    def in_target(self) -> bool:
        return self.layers is None

    @property
    def prefix(self) -> str:
        return "model.mtp_layers." if self.in_target else "mtp_layers."

    @property
    def vocabulary(self) -> int:
        return self.target.settings["vocab_size"]

    @property
    def settings(self) -> dict[str, Any]:
        """Of its layers."""
        return self.target.settings if self.layers is None else self.layers


@dataclass(frozen=True)
class Folders:
    plain: Path  # of the target, as transformers reads it
    target: Path
    drafter: Path


_MIMO: dict[str, Any] = {
    "vocab_size": 331,
    "hidden_size": 56,
    "intermediate_size": 90,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}

DRAFTERS: dict[str, Drafter] = {
    # As MiMo-7B, in shards.
    "mimo-shards": Drafter(
        target=make.Shape("qwen2", _MIMO, rope_theta=640000.0, spread=0.15),
        shard_size=40_000,
    ),
    # The same with a tied embedding, a head of keys and values for all, and layers for two tokens.
    "mimo-tied-two": Drafter(
        target=make.Shape(
            "qwen2",
            {
                **_MIMO,
                "hidden_size": 40,
                "num_hidden_layers": 2,
                "num_attention_heads": 5,
                "num_key_value_heads": 1,
                "tie_word_embeddings": True,
            },
            dtype=torch.bfloat16,
            spread=0.15,
        ),
        further_layers=1,
        dtype=torch.bfloat16,
    ),
    # As speculators stores them, with biases.
    "nested-qwen3": Drafter(
        target=TARGETS["deep"],
        family="qwen3",
        layers={
            "hidden_size": 48,
            "intermediate_size": 77,
            "num_hidden_layers": 6,
            "num_attention_heads": 6,
            "num_key_value_heads": 3,
            "head_dim": 14,
            "attention_bias": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
        },
        shard_size=30_000,
    ),
    # For a target of so few tokens that the distribution of its texts can be written down.
    "tiny-vocabulary": Drafter(
        target=TARGETS["tiny"],
        family="llama",
        layers={
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
        },
        spread=0.4,
    ),
    # The same of a Llama's layer, for a target with a tied embedding.
    "nested-llama": Drafter(
        target=TARGETS["tied"],
        family="llama",
        layers={
            "hidden_size": 96,
            "intermediate_size": 101,
            "num_hidden_layers": 3,
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "head_dim": 22,
        },
        dtype=torch.bfloat16,
    ),
}


def layer_fields(drafter: Drafter) -> dict[str, Any]:
    """Of the configuration class of a drafter outside its target."""
    assert drafter.layers is not None
    return {
        "vocab_size": drafter.vocabulary,
        "max_position_embeddings": make.CONTEXT,
        "rms_norm_eps": 1e-5,
        **drafter.layers,
    }


def _layer_shapes(drafter: Drafter) -> dict[str, tuple[int, ...]]:
    c = drafter.settings
    hidden, middle = c["hidden_size"], c["intermediate_size"]
    size = c.get("head_dim", hidden // c["num_attention_heads"])
    width, kv_width = c["num_attention_heads"] * size, c["num_key_value_heads"] * size
    shapes: dict[str, tuple[int, ...]] = {
        "input_proj.weight": (hidden, 2 * hidden),
        "self_attn.q_proj.weight": (width, hidden),
        "self_attn.k_proj.weight": (kv_width, hidden),
        "self_attn.v_proj.weight": (kv_width, hidden),
        "self_attn.o_proj.weight": (hidden, width),
        "mlp.gate_proj.weight": (middle, hidden),
        "mlp.up_proj.weight": (middle, hidden),
        "mlp.down_proj.weight": (hidden, middle),
    }
    norms = ("token_layernorm", "hidden_layernorm", "input_layernorm", "post_attention_layernorm")
    shapes |= {f"{name}.weight": (hidden,) for name in (*norms, "final_layernorm")}
    if drafter.family == "qwen3":
        shapes |= {"self_attn.q_norm.weight": (size,), "self_attn.k_norm.weight": (size,)}
    biased = ["q_proj", "k_proj", "v_proj"] if drafter.family == "qwen2" else []
    if c.get("attention_bias"):
        biased = ["q_proj", "k_proj", "v_proj", "o_proj"]
    for name in biased:
        shapes[f"self_attn.{name}.bias"] = shapes[f"self_attn.{name}.weight"][:1]
    return shapes


def _tensors(name: str) -> dict[str, torch.Tensor]:
    drafter = DRAFTERS[name]
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    tensors = {}
    for i in range(1 + drafter.further_layers):
        for key, shape in sorted(_layer_shapes(drafter).items()):
            tensors[f"{drafter.prefix}{i}.{key}"] = random_tensor(
                key, shape, drafter.spread, drafter.dtype, generator
            )
    return tensors


def make_mtp(name: str, folder: Path) -> Folders:
    """Writes the drafter called `name` and its target into folders below `folder`."""
    drafter = DRAFTERS[name]
    plain = make.make(name, folder / "plain", drafter.target)
    if drafter.in_target:
        whole = folder / "whole"
        tensors = {k: t for file in plain.glob("*.safetensors") for k, t in load_file(file).items()}
        config = json.loads((plain / "config.json").read_text())
        config |= {
            "architectures": ["MiMoForCausalLM"],
            "model_type": "mimo",
            "num_nextn_predict_layers": 1 + drafter.further_layers,
        }
        write_checkpoint(tensors | _tensors(name), config, whole, drafter.shard_size)
        make.save_tokenizer(drafter.vocabulary, whole)
        return Folders(plain, whole, whole)
    config = {
        "architectures": ["MTPDraftModel"],
        "speculators_model_type": "mtp",
        "num_nextn_predict_layers": 1,
        "dtype": str(drafter.dtype).removeprefix("torch."),
        "transformer_layer_config": {"model_type": drafter.family, **layer_fields(drafter)},
    }
    write_checkpoint(_tensors(name), config, folder / "drafter", drafter.shard_size)
    return Folders(plain, plain, folder / "drafter")


def main() -> None:
    make.logging.disable_progress_bar()
    out, names = make.parse_arguments(__doc__, DRAFTERS)
    for name in names:
        folders = make_mtp(name, out / name)
        print(folders.drafter, folders.target)


if __name__ == "__main__":
    main()
