"""config.json means to SpecFabric what it means to transformers, whatever it leaves out."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedConfig

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("SPECFABRIC_BINARY", ROOT / "build" / "specfabric")).parent
PRINTER = BUILD / "tests" / "model" / "model_config"

FAMILIES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}

# What SpecFabric assumes no default of. 32 heads divide by every family's default of KV heads.
REQUIRED = {
    "vocab_size": 320,
    "hidden_size": 256,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 32,
}

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}

# Beside the required ones.
VARIANTS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "kv-heads": {"num_key_value_heads": 4},
    "kv-heads-null": {"num_key_value_heads": None},
    "positions": {"max_position_embeddings": 1234},
    "epsilon": {"rms_norm_eps": 1e-5},
    "head-dim": {"head_dim": 16},
    "tied": {"tie_word_embeddings": True},
    "attention-bias": {"attention_bias": True},
    "mlp-bias": {"mlp_bias": True},
    "swish": {"hidden_act": "swish"},
    "eos": {"eos_token_id": 7},
    "eos-list": {"eos_token_id": [7, 9]},
    "eos-null": {"eos_token_id": None},
    "theta": {"rope_theta": 5e5},
    "theta-in-rope": {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
    "theta-twice": {"rope_theta": 1e4, "rope_parameters": {"rope_theta": 5e5}},
    "rope-null": {"rope_scaling": None},
    "rope-empty": {"rope_scaling": {}},
    "rope-both": {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": YARN},
    "linear": {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}},
    "yarn": {"rope_scaling": YARN},
    "yarn-without-original": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
    "yarn-original-beside": {"rope_scaling": YARN, "original_max_position_embeddings": 256},
    "llama3": {"rope_scaling": LLAMA3},
    "window": {"sliding_window": 64},
    "window-null": {"sliding_window": None},
    "window-used": {"use_sliding_window": True, "max_window_layers": 2},
    "window-used-null": {
        "use_sliding_window": True,
        "max_window_layers": 2,
        "sliding_window": None,
    },
    "window-all": {"use_sliding_window": True, "max_window_layers": 0, "sliding_window": 64},
    "window-no-layer": {"use_sliding_window": True, "max_window_layers": 3},
    "window-by-default-layers": {"use_sliding_window": True},
    "window-unused": {"use_sliding_window": False, "sliding_window": 64},
    "window-layer-types": {
        "use_sliding_window": True,
        "sliding_window": 64,
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    },
    "window-full-layer-types": {
        "use_sliding_window": True,
        "sliding_window": 64,
        "layer_types": ["full_attention"] * 3,
    },
}


def write(folder: Path, family: str, fields: dict[str, Any]) -> Path:
    folder.mkdir(parents=True)
    config = {"architectures": [FAMILIES[family]], "model_type": family, **REQUIRED, **fields}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def printed(folders: list[Path]) -> list[dict[str, Any]]:
    assert PRINTER.is_file(), f"{PRINTER} is not built: run scripts/build"
    result = subprocess.run([PRINTER, *folders], capture_output=True, text=True, check=True)
    return [json.loads(line) for line in result.stdout.splitlines()]


def window_of(config: PreTrainedConfig) -> int:
    """The window that some layer attends within, 0 where all attend to everything."""
    if config.model_type == "mistral":
        return config.sliding_window or 0
    if config.model_type == "llama" or "sliding_attention" not in config.layer_types:
        return 0
    return config.sliding_window or 0


def context_of(config: PreTrainedConfig) -> int:
    """transformers has no opinion on this: vLLM's rule, and never less than what is stated."""
    rope = config.rope_parameters
    positions = config.max_position_embeddings
    extended = {
        "yarn": lambda: rope["factor"] * rope["original_max_position_embeddings"],
        "linear": lambda: rope["factor"] * positions,
    }.get(rope["rope_type"], lambda: positions)()
    return max(positions, int(extended))


def expected(folder: Path) -> dict[str, Any]:
    """The same as `printed`, from transformers' configuration, modules and rotary embedding."""
    config = AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        shell = AutoModelForCausalLM.from_config(config)
    with torch.device("cpu"):
        rotary = type(shell.model.rotary_emb)(config)
    layer = shell.model.layers[0]
    attention, mlp = layer.self_attn, layer.mlp
    eos = GenerationConfig.from_model_config(config).eos_token_id
    return {
        "architecture": type(shell).__name__,
        "vocab_size": shell.model.embed_tokens.weight.shape[0],
        "hidden_size": shell.model.embed_tokens.weight.shape[1],
        "intermediate_size": mlp.up_proj.weight.shape[0],
        "num_hidden_layers": len(shell.model.layers),
        "num_attention_heads": attention.q_proj.weight.shape[0] // attention.head_dim,
        "num_key_value_heads": attention.k_proj.weight.shape[0] // attention.head_dim,
        "head_dim": attention.head_dim,
        "context": context_of(config),
        "rms_norm_eps": pytest.approx(layer.input_layernorm.variance_epsilon),
        "tie_word_embeddings": config.tie_word_embeddings,
        "qkv_bias": attention.q_proj.bias is not None,
        "output_bias": attention.o_proj.bias is not None,
        "mlp_bias": mlp.up_proj.bias is not None,
        "qk_norm": hasattr(attention, "q_norm"),
        "sliding_window": window_of(config),
        "eos_ids": [] if eos is None else eos if isinstance(eos, list) else [eos],
        "inverse_frequencies": pytest.approx(rotary.inv_freq.tolist(), rel=1e-5),
        "attention_factor": pytest.approx(rotary.attention_scaling),
    }


def is_config(family: str, fields: dict[str, Any]) -> bool:
    """Whether transformers takes it as this family's.

    The class of Mistral no longer takes null as its number of KV heads, and with `layer_types` the
    model that is made of it is a Ministral.
    """
    if family != "mistral":
        return True
    return fields.get("num_key_value_heads", 1) is not None and "layer_types" not in fields


@pytest.mark.parametrize("family", FAMILIES)
def test_fields_and_defaults_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    folders = [
        write(tmp_path / name, family, fields)
        for name, fields in VARIANTS.items()
        if is_config(family, fields)
    ]
    for folder, found in zip(folders, printed(folders), strict=True):
        assert found == expected(folder), folder.name


@pytest.mark.parametrize("name", REQUIRED)
def test_missing_sizes_are_errors(name: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "model", "llama", {})
    config = json.loads((folder / "config.json").read_text())
    del config[name]
    (folder / "config.json").write_text(json.dumps(config))
    assert f"{name} is missing" in printed([folder])[0]["error"]
