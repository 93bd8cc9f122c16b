#!/usr/bin/env python3
"""Writes rope_golden.json: rotary frequencies as transformers computes them.

tests/model/make_rope_golden.py > tests/model/rope_golden.json
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
import transformers
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

POSITIONS = [1, 17, 4095, 100000]

CASES: list[dict[str, Any]] = [
    {"head_dim": 64, "rope": {"rope_type": "default", "rope_theta": 10000.0}},
    {"head_dim": 24, "rope": {"rope_type": "default", "rope_theta": 1000000.0}},
    {"head_dim": 128, "rope": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.5}},
    {
        "head_dim": 128,
        "rope": {
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    },
    {
        "head_dim": 40,
        "rope": {
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 32.0,
            "low_freq_factor": 1.5,
            "high_freq_factor": 6.0,
            "original_max_position_embeddings": 512,
        },
    },
    {
        "head_dim": 128,
        "rope": {
            "rope_type": "yarn",
            "rope_theta": 1000000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 32768,
        },
    },
    {
        "head_dim": 64,
        "rope": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 40.0,
            "original_max_position_embeddings": 4096,
            "beta_fast": 24.0,
            "beta_slow": 2.0,
            "mscale": 0.707,
            "mscale_all_dim": 1.0,
            "truncate": False,
        },
    },
    {
        "head_dim": 32,
        "rope": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 16.0,
            "original_max_position_embeddings": 128,
            "attention_factor": 1.25,
        },
    },
]


def rounded(values: torch.Tensor) -> Any:
    """Nested lists of numbers with the nine digits that tell float32 values apart."""
    if values.dim() > 1:
        return [rounded(row) for row in values]
    return [float(f"{value:.9g}") for value in values.tolist()]


def main() -> None:
    """Prints one object: the library's version, the positions, and the cases with results."""
    cases = []
    for case in CASES:
        config = LlamaConfig(
            hidden_size=4 * case["head_dim"],
            num_attention_heads=4,
            head_dim=case["head_dim"],
            max_position_embeddings=131072,
            rope_parameters=dict(case["rope"]),
        )
        rope = LlamaRotaryEmbedding(config)
        positions = torch.tensor([POSITIONS])
        cosines, sines = rope(torch.zeros(1, dtype=torch.float32), positions)
        half = case["head_dim"] // 2
        cases.append(
            case
            | {
                "inverse_frequencies": rounded(rope.inv_freq),
                "attention_factor": float(rope.attention_scaling),
                "cosines": rounded(cosines[0, :, :half]),
                "sines": rounded(sines[0, :, :half]),
            }
        )
    result = {"transformers": transformers.__version__, "positions": POSITIONS, "cases": cases}
    json.dump(result, sys.stdout, separators=(",", ":"))
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
