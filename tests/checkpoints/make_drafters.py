#!/usr/bin/env python3
"""Makes small random-weight EAGLE-3 drafters, one for each odd shape, and their targets.

A shape says what its files look like, and apart from that what they mean (`boundaries`, `means`),
so that a reader of the files can be compared with it. Weights are as in make.py.

    tests/checkpoints/make_drafters.py --out DIR [NAME...]
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import save_torch_state_dict

import make

TARGETS = {
    "tiny": make.SHAPES["llama-tiny-vocabulary"],
    "tied": make.SHAPES["llama-gqa-tied-shards"],
    # As many layers as five boundaries need, and an output head of its own.
    "deep": make.Shape(
        "qwen3",
        {
            "vocab_size": 331,
            "hidden_size": 48,
            "intermediate_size": 90,
            "num_hidden_layers": 6,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
        },
        spread=0.15,
    ),
}


@dataclass(frozen=True)
class Means:
    """What a drafter computes, as the forward pass of tests/checkpoints/eagle3.py needs it."""

    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_before_residual: bool = False
    norm_output: bool = False


@dataclass(frozen=True)
class Drafter:
    """One checkpoint: its target, its layers, what else its config.json says, its files.

    `layers` are fields of a transformers configuration class of the family `family`. They are in
    config.json itself or, if `nested`, in `transformer_layer_config`.
    """

    target: str
    architecture: str
    family: str
    layers: dict[str, Any]
    boundaries: list[int]
    means: Means = Means()
    nested: bool = False
    config: dict[str, Any] = field(default_factory=dict)
    draft_vocabulary: int | None = None  # None: the target's, without d2t
    has_embedding: bool = False
    has_head: bool = True
    fc_bias: bool = False
    first_layer: str = "layers.0."
    dtype: torch.dtype = torch.float32
    shard_size: int = 1 << 30
    spread: float = 0.15

    @property
    def vocabulary(self) -> int:
        return TARGETS[self.target].settings["vocab_size"]

    @property
    def target_hidden(self) -> int:
        return TARGETS[self.target].settings["hidden_size"]


DRAFTERS: dict[str, Drafter] = {
    # For a target of so few tokens that the distribution of its texts can be written down.
    "tiny-vocabulary": Drafter(
        target="tiny",
        architecture="LlamaForCausalLMEagle3",
        family="llama",
        layers={
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
        },
        config={"eagle_aux_hidden_state_layer_ids": [1, 0]},
        boundaries=[1, 0],
        draft_vocabulary=6,
        spread=0.4,
    ),
    # As SafeAILab and SGLang store it; the layers are the usual ones, the embedding the target's.
    "flat-middle-layer": Drafter(
        target="tied",
        architecture="LlamaForCausalLMEagle3",
        family="llama",
        layers={
            "hidden_size": 96,
            "intermediate_size": 77,
            "num_hidden_layers": 1,
            "num_attention_heads": 5,
            "num_key_value_heads": 1,
            "head_dim": 18,
            "rope_theta": 500000.0,
        },
        boundaries=[2, 1, 0],
        draft_vocabulary=211,
        first_layer="midlayer.",
        shard_size=40_000,
    ),
    # The same with nothing of its own but its layer, biases, and full vocabulary.
    "flat-shared-head": Drafter(
        target="tied",
        architecture="LlamaForCausalLMEagle3",
        family="llama",
        layers={
            "hidden_size": 96,
            "intermediate_size": 120,
            "num_hidden_layers": 1,
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "attention_bias": True,
            "mlp_bias": True,
        },
        config={"eagle_aux_hidden_state_layer_ids": [3, 0], "bias": True},
        boundaries=[3, 0],
        has_head=False,
        fc_bias=True,
    ),
    # As NVIDIA stores them: some fields nested, layers counted from one; another hidden size.
    "flat-eagle-config": Drafter(
        target="deep",
        architecture="LlamaForCausalLMEagle3",
        family="llama",
        layers={
            "hidden_size": 40,
            "intermediate_size": 101,
            "num_hidden_layers": 2,
            "num_attention_heads": 3,
            "num_key_value_heads": 3,
            "head_dim": 22,
            "rope_theta": 10000.0,
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        },
        config={
            "target_hidden_size": 48,
            "eagle_config": {
                "eagle_aux_hidden_state_layer_ids": [1, 3, 5],
                "norm_before_fc": True,
                "return_hidden_post_norm": True,
                "use_aux_hidden_state": True,
            },
        },
        boundaries=[2, 4, 6],
        means=Means(norm_before_fc=True, norm_output=True),
        draft_vocabulary=150,
        has_embedding=True,
        dtype=torch.bfloat16,
    ),
    # As speculators stores them, with every norm of EAGLE-3.1.
    "nested-norms": Drafter(
        target="deep",
        architecture="Eagle3DraftModel",
        family="llama",
        nested=True,
        layers={
            "hidden_size": 48,
            "intermediate_size": 70,
            "num_hidden_layers": 2,
            "num_attention_heads": 6,
            "num_key_value_heads": 3,
            "head_dim": 10,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
        },
        config={
            "eagle_aux_hidden_state_layer_ids": [1, 3, 6, 0],
            "fc_norm": True,
            "norm_before_fc": False,
            "norm_before_residual": True,
            "norm_output": True,
            "target_hidden_size": None,
        },
        boundaries=[1, 3, 6, 0],
        means=Means(fc_norm=True, norm_before_residual=True, norm_output=True),
        draft_vocabulary=97,
        shard_size=30_000,
    ),
    # The same of Qwen3's layers; what is not said of the residual is as servers take it.
    "nested-qwen3": Drafter(
        target="deep",
        architecture="Eagle3Speculator",
        family="qwen3",
        nested=True,
        layers={
            "hidden_size": 48,
            "intermediate_size": 64,
            "num_hidden_layers": 1,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "head_dim": 14,
            "attention_bias": True,
        },
        config={"norm_before_fc": True},
        boundaries=[2, 3, 3],
        means=Means(norm_before_fc=True, norm_before_residual=True),
        draft_vocabulary=120,
    ),
    # DeepSpec's: five layers, everything of its own.
    "deepspec": Drafter(
        target="deep",
        architecture="Qwen3Eagle3Model",
        family="qwen3",
        layers={
            "hidden_size": 48,
            "intermediate_size": 80,
            "num_hidden_layers": 1,
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "head_dim": 12,
            "rope_theta": 1000000.0,
        },
        config={"target_layer_ids": [0, 1, 2, 4, 5], "num_target_layers": 6, "ttt_length": 7},
        boundaries=[1, 2, 3, 5, 6],
        has_embedding=True,
        dtype=torch.bfloat16,
    ),
}


def _config(drafter: Drafter) -> dict[str, Any]:
    layers = {
        "model_type": drafter.family,
        "vocab_size": drafter.vocabulary,
        "max_position_embeddings": make.CONTEXT,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        **drafter.layers,
    }
    config = {
        "architectures": [drafter.architecture],
        "dtype": str(drafter.dtype).removeprefix("torch."),
        **drafter.config,
    }
    if drafter.draft_vocabulary is not None:
        config["draft_vocab_size"] = drafter.draft_vocabulary
    if drafter.nested:
        return {**config, "speculators_model_type": "eagle3", "transformer_layer_config": layers}
    return {**layers, **config}


def _shapes(drafter: Drafter) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors, by name, but for d2t."""
    c = drafter.layers
    hidden, middle = c["hidden_size"], c["intermediate_size"]
    heads, kv_heads = c["num_attention_heads"], c["num_key_value_heads"]
    size = c.get("head_dim", hidden // heads)
    inputs = len(drafter.boundaries) * drafter.target_hidden
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (hidden, inputs), "norm.weight": (hidden,)}
    for i in range(c["num_hidden_layers"]):
        layer = drafter.first_layer if i == 0 else f"layers.{i}."
        read = 2 * hidden if i == 0 else hidden
        projections = {
            "self_attn.q_proj": (heads * size, read),
            "self_attn.k_proj": (kv_heads * size, read),
            "self_attn.v_proj": (kv_heads * size, read),
            "self_attn.o_proj": (hidden, heads * size),
            "mlp.gate_proj": (middle, hidden),
            "mlp.up_proj": (middle, hidden),
            "mlp.down_proj": (hidden, middle),
        }
        for name, shape in projections.items():
            shapes[f"{layer}{name}.weight"] = shape
            if c.get("attention_bias" if "attn" in name else "mlp_bias"):
                shapes[f"{layer}{name}.bias"] = shape[:1]
        for norm in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{layer}{norm}.weight"] = (hidden,)
        if drafter.family == "qwen3":
            shapes[f"{layer}self_attn.q_norm.weight"] = (size,)
            shapes[f"{layer}self_attn.k_norm.weight"] = (size,)
    shapes[f"{drafter.first_layer}hidden_norm.weight"] = (hidden,)
    if drafter.has_embedding:
        shapes["embed_tokens.weight"] = (drafter.vocabulary, hidden)
    if drafter.has_head:
        shapes["lm_head.weight"] = (drafter.draft_vocabulary or drafter.vocabulary, hidden)
    if drafter.fc_bias:
        shapes["fc.bias"] = (hidden,)
    if drafter.means.norm_before_fc:
        shapes["input_norm.weight"] = (inputs,)
    if drafter.means.fc_norm:
        for i in range(len(drafter.boundaries)):
            shapes[f"fc_norm.{i}.weight"] = (drafter.target_hidden,)
    return shapes


def random_tensor(
    key: str,
    shape: tuple[int, ...],
    spread: float,
    dtype: torch.dtype,
    generator: torch.Generator,
) -> torch.Tensor:
    noise = torch.randn(shape, generator=generator) * spread
    return (1 + noise if "norm" in key else noise).to(dtype)


def draft_ids(vocabulary: int, count: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """The tensors that say which ids of the target a smaller vocabulary has."""
    ids = torch.randperm(vocabulary, generator=generator)[:count].sort().values
    t2d = torch.zeros(vocabulary, dtype=torch.bool)
    t2d[ids] = True
    return {"d2t": ids - torch.arange(len(ids)), "t2d": t2d}


def write_checkpoint(
    tensors: dict[str, torch.Tensor], config: dict[str, Any], folder: Path, shard_size: int
) -> Path:
    """Returns `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    save_torch_state_dict(tensors, folder, max_shard_size=shard_size)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    return folder


def make_drafter(name: str, folder: Path) -> Path:
    """Writes the drafter called `name` into `folder`, and returns `folder`."""
    drafter = DRAFTERS[name]
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    tensors = {
        key: random_tensor(key, shape, drafter.spread, drafter.dtype, generator)
        for key, shape in sorted(_shapes(drafter).items())
    }
    if drafter.draft_vocabulary is not None:
        tensors |= draft_ids(drafter.vocabulary, drafter.draft_vocabulary, generator)
    return write_checkpoint(tensors, _config(drafter), folder, drafter.shard_size)


def make_target(name: str, folder: Path) -> Path:
    return make.make(name, folder, TARGETS[name])


def main() -> None:
    make.logging.disable_progress_bar()
    out, names = make.parse_arguments(__doc__, DRAFTERS)
    for name in names:
        target = DRAFTERS[name].target
        print(make_drafter(name, out / name), make_target(target, out / target))


if __name__ == "__main__":
    main()
