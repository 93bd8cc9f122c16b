#!/usr/bin/env python3
"""Make the benchmark target: the demo target with MLPs so wide that reading weights bounds it.

Speculation pays where verifying five tokens costs about what decoding one does. On a GPU every
model of a useful size is like that; on a CPU the demo target is too small, as arithmetic bounds it.
This script adds columns to its MLPs: random gate and up projections whose down projection is zero.
Nothing they compute reaches the residual stream, so the widened model is the same function and the
demo draft drafts for it as well as ever; but every engine that loads Hugging Face checkpoints has
to read some 450 M parameters for each step.

    python=$(scripts/setup --print-venv)/bin/python
    $python scripts/make_bench_pair.py    # models/bench, beside which models/draft is the draft
    $python scripts/make_bench_pair.py --intermediate_size 16384 --out /tmp/narrower
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

ROOT = Path(__file__).resolve().parents[1]
WEIGHTS = "model.safetensors"
COPIED = ("generation_config.json", "tokenizer.json", "tokenizer_config.json")
# Which axis of an MLP's matrices counts the columns of its intermediate layer.
AXES = {"mlp.gate_proj.weight": 0, "mlp.up_proj.weight": 0, "mlp.down_proj.weight": 1}
RANDOM = ("mlp.gate_proj.weight", "mlp.up_proj.weight")


def widened(name: str, weight: torch.Tensor, columns: int, random: torch.Generator) -> torch.Tensor:
    """`weight` with `columns` columns of its MLP; as it is, where it belongs to none."""
    kind = next((k for k in AXES if name.endswith(k)), None)
    if kind is None:
        return weight
    shape = list(weight.shape)
    shape[AXES[kind]] = columns
    wide = torch.zeros(shape, dtype=weight.dtype)
    if kind in RANDOM:
        # As spread out as the trained columns, so that activations are of the usual size.
        wide.normal_(0.0, float(weight.float().std()), generator=random)
    wide.narrow(AXES[kind], 0, weight.shape[AXES[kind]]).copy_(weight)
    return wide


def tensors_of(checkpoint: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of a checkpoint of one file, in the order of their names."""
    with safe_open(checkpoint / WEIGHTS, framework="pt") as file:
        for name in sorted(file.keys()):
            yield name, file.get_tensor(name)


def make(source: Path, out: Path, intermediate_size: int, seed: int) -> int:
    """Writes the widened checkpoint and returns its number of parameters."""
    config = json.loads((source / "config.json").read_text())
    if intermediate_size < config["intermediate_size"]:
        raise ValueError(
            f"--intermediate_size={intermediate_size}: allowed are {config['intermediate_size']} "
            f"(what {source} has) and more"
        )
    if config.get("mlp_bias"):
        raise ValueError(f"{source} has biases in its MLPs: only MLPs without are widened")
    random = torch.Generator().manual_seed(seed)
    weights = {
        name: widened(name, weight, intermediate_size, random)
        for name, weight in tensors_of(source)
    }
    out.mkdir(parents=True, exist_ok=True)
    save_file(weights, out / WEIGHTS, metadata={"format": "pt"})
    (out / WEIGHTS).chmod(0o644)  # safetensors makes it readable by its owner alone
    config["intermediate_size"] = intermediate_size
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    for name in COPIED:
        shutil.copy(source / name, out)
    return sum(weight.numel() for weight in weights.values())


def main() -> int:
    parser = argparse.ArgumentParser(description="Widen the demo target into the benchmark target.")
    parser.add_argument("--source", type=Path, default=ROOT / "models" / "target")
    parser.add_argument("--out", type=Path, default=ROOT / "models" / "bench")
    parser.add_argument("--intermediate_size", type=int, default=98_304)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    try:
        parameters = make(args.source, args.out, args.intermediate_size, args.seed)
    except (OSError, ValueError) as error:
        print(f"make_bench_pair: {error}", file=sys.stderr)
        return 2
    print(f"{args.out}: {parameters / 1e6:.0f} M parameters; its draft: {ROOT / 'models/draft'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
