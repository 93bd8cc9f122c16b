#!/usr/bin/env python3
"""Makes small random-weight DFlash and DSpark drafters, one for each odd shape, and their targets.

The shapes are those of dflash_shapes.py. Weights are as in make.py.

    tests/checkpoints/make_dflash.py --out DIR [NAME...]
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import torch

import make
from dflash_shapes import DRAFTERS, Drafter
from make_drafters import draft_ids, make_target, random_tensor, write_checkpoint


def _config(drafter: Drafter) -> dict[str, Any]:
    layers = {
        "model_type": "qwen3",
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
    if "speculators_model_type" not in config:
        return {**layers, **config}
    config["draft_vocab_size"] = drafter.draft_vocabulary or drafter.vocabulary
    return {**config, "transformer_layer_config": layers}


def _layer_shapes(drafter: Drafter) -> dict[str, tuple[int, ...]]:
    """Of one layer, by name."""
    c = drafter.layers
    hidden, middle, size = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    width, kv_width = c["num_attention_heads"] * size, c["num_key_value_heads"] * size
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (width, hidden),
        "self_attn.k_proj.weight": (kv_width, hidden),
        "self_attn.v_proj.weight": (kv_width, hidden),
        "self_attn.o_proj.weight": (hidden, width),
        "self_attn.q_norm.weight": (size,),
        "self_attn.k_norm.weight": (size,),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (middle, hidden),
        "mlp.up_proj.weight": (middle, hidden),
        "mlp.down_proj.weight": (hidden, middle),
    }
    if c.get("attention_bias"):
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            shapes[f"self_attn.{name}.bias"] = shapes[f"self_attn.{name}.weight"][:1]
    return shapes


def _shapes(drafter: Drafter) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors, by name, but for d2t."""
    means, hidden, rank = drafter.means, drafter.layers["hidden_size"], drafter.means.rank
    scored = drafter.draft_vocabulary or drafter.vocabulary
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, len(means.boundaries) * drafter.target_hidden),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    for i in range(drafter.layers["num_hidden_layers"]):
        shapes |= {f"layers.{i}.{name}": shape for name, shape in _layer_shapes(drafter).items()}
    if drafter.is_whole:
        shapes["embed_tokens.weight"] = (drafter.vocabulary, hidden)
        shapes["lm_head.weight"] = (scored, hidden)
    if means.markov is not None:
        shapes["markov_head.markov_w1.weight"] = (drafter.vocabulary, rank)
        shapes["markov_head.markov_w2.weight"] = (scored, rank)
    if means.markov == "gated":
        shapes["markov_head.gate_proj.weight"] = (rank, hidden + rank)
        shapes["markov_head.gate_proj.bias"] = (rank,)
    if means.markov == "rnn":
        shapes["markov_head.joint_proj.weight"] = (3 * rank, 2 * rank + hidden)
        shapes["markov_head.joint_proj.bias"] = (3 * rank,)
    if means.confidence:
        inputs = hidden + (rank if means.confidence_with_markov else 0)
        shapes["confidence_head.proj.weight"] = (1, inputs)
        shapes["confidence_head.proj.bias"] = (1,)
    return shapes


def make_drafter(name: str, folder: Path) -> Path:
    """Writes the drafter called `name` into `folder`, and returns `folder`."""
    drafter = DRAFTERS[name]
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    tensors = {}
    for key, shape in sorted(_shapes(drafter).items()):
        # The correction of the logits is to be about as large as they are.
        spread = drafter.spread * (4 if "markov_w" in key else 1)
        tensors[key] = random_tensor(key, shape, spread, drafter.dtype, generator)
    if drafter.draft_vocabulary is not None:
        tensors |= draft_ids(drafter.vocabulary, drafter.draft_vocabulary, generator)
    return write_checkpoint(tensors, _config(drafter), folder, drafter.shard_size)


def main() -> None:
    make.logging.disable_progress_bar()
    out, names = make.parse_arguments(__doc__, DRAFTERS)
    for name in names:
        target = DRAFTERS[name].target
        print(make_drafter(name, out / name), make_target(target, out / target))


if __name__ == "__main__":
    main()
