"""The benchmark target is the demo target's function, at another cost."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "make_bench_pair.py"
TARGET = ROOT / "models" / "target"
COLUMNS = 1024


def make(out: Path, columns: int = COLUMNS, seed: int = 0, function: str = "make") -> Path:
    runpy.run_path(str(SCRIPT))[function](TARGET, out, columns, seed)
    return out


@torch.inference_mode()
def logits(checkpoint: Path, tokens: torch.Tensor) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    return model(tokens).logits


def test_is_the_same_function(tmp_path: Path) -> None:
    tokens = torch.randint(2, 4096, (3, 40), generator=torch.Generator().manual_seed(1))
    narrow, wide = logits(TARGET, tokens), logits(make(tmp_path / "bench"), tokens)
    torch.testing.assert_close(wide, narrow, rtol=0.0, atol=2e-4)
    assert narrow.std() > 1.0  # against which 2e-4 is nothing


def test_the_new_columns_are_computed_in_vain(tmp_path: Path) -> None:
    weights = load_file(make(tmp_path) / "model.safetensors")
    narrow = load_file(TARGET / "model.safetensors")
    old = narrow["model.layers.0.mlp.gate_proj.weight"].shape[0]
    for layer in range(6):
        mlp = f"model.layers.{layer}.mlp."
        for kind in ("gate", "up"):
            weight = weights[f"{mlp}{kind}_proj.weight"]
            assert weight.shape[0] == COLUMNS
            assert weight[old:].abs().sum(1).min() > 0  # every one of them does something
        assert not weights[f"{mlp}down_proj.weight"][:, old:].any()


def test_follows_from_its_seed(tmp_path: Path) -> None:
    first = (make(tmp_path / "first") / "model.safetensors").read_bytes()
    assert (make(tmp_path / "again") / "model.safetensors").read_bytes() == first
    assert (make(tmp_path / "other", seed=1) / "model.safetensors").read_bytes() != first


def test_is_made_again_only_where_it_differs(tmp_path: Path) -> None:
    out = tmp_path / "bench"
    weights = out / "model.safetensors"

    def make_if_missing(seed: int) -> int:
        make(out, seed=seed, function="make_if_missing")
        return weights.stat().st_ino

    first = make_if_missing(seed=0)
    assert make_if_missing(seed=0) == first
    assert make_if_missing(seed=1) != first
    weights.write_bytes(weights.read_bytes()[:4])
    make_if_missing(seed=1)
    load_file(weights)


def test_cannot_narrow(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="703: allowed are 704"):
        make(tmp_path / "bench", columns=703)
    assert not (tmp_path / "bench").exists()
