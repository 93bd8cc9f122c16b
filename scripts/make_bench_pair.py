#!/usr/bin/env python3
"""Make the benchmark target: the demo target with MLPs so wide that reading weights bounds it.

Speculation pays where verifying five tokens costs about what decoding one does. On a GPU every
model of a useful size is like that; on a CPU the demo target is too small, as arithmetic bounds it.
This script adds columns to its MLPs: random gate and up projections whose down projection is zero.
Nothing they compute reaches the residual stream, so the widened model is the same function and the
demo draft drafts for it as well as ever; but every engine that loads Hugging Face checkpoints has
to read some 450 M parameters for each step.

A checkpoint that --out already holds, made from the same source with the same options, is kept.
Needs Python's standard library only.

    scripts/make_bench_pair.py    # models/bench, beside which models/draft is the draft
    scripts/make_bench_pair.py --intermediate_size 16384 --out /tmp/narrower
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import sys
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "models" / "target"
OUT = ROOT / "models" / "bench"
INTERMEDIATE_SIZE = 98_304
WEIGHTS = "model.safetensors"
COPIED = ("generation_config.json", "tokenizer.json", "tokenizer_config.json")
# Which axis of an MLP's matrices counts the columns of its intermediate layer.
AXES = {"mlp.gate_proj.weight": 0, "mlp.up_proj.weight": 0, "mlp.down_proj.weight": 1}
DTYPE = "BF16"
BYTES = 2
# Random rows are cut out of this many random values, at random places.
POOL = 1 << 17
ROWS_AT_ONCE = 4096


@dataclass
class Tensor:
    """A tensor of a checkpoint; `data` is of bfloat16."""

    shape: list[int]
    data: bytes


def source_tensors(checkpoint: Path) -> dict[str, Tensor]:
    """Every tensor of a checkpoint of one file, in the order of their names."""
    content = (checkpoint / WEIGHTS).read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:begin])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in sorted(header.items()):
        if entry["dtype"] != DTYPE:
            raise ValueError(f"{name} of {checkpoint} is of {entry['dtype']}: allowed is {DTYPE}")
        first, last = entry["data_offsets"]
        tensors[name] = Tensor(entry["shape"], content[begin + first : begin + last])
    return tensors


def standard_deviation(bfloat16: bytes) -> float:
    """Of weights whose mean is 0."""
    widened = bytearray(2 * len(bfloat16))
    widened[2::4], widened[3::4] = bfloat16[::2], bfloat16[1::2]
    values = array("f", bytes(widened))
    return (sum(value * value for value in values) / len(values)) ** 0.5


def normal_bfloat16(count: int, deviation: float, generator: random.Random) -> bytes:
    values = array("f", (generator.gauss(0.0, deviation) for _ in range(count))).tobytes()
    upper_halves = bytearray(BYTES * count)
    upper_halves[::2], upper_halves[1::2] = values[2::4], values[3::4]
    return bytes(upper_halves)


def added_rows(tensor: Tensor, rows: int, generator: random.Random) -> Iterator[bytes]:
    """Random rows, as spread out as the trained ones, so that activations are of the usual size."""
    width = tensor.shape[1]
    pool = normal_bfloat16(POOL + width, standard_deviation(tensor.data), generator)
    size = BYTES * width
    while rows > 0:
        count = min(rows, ROWS_AT_ONCE)
        begins = [BYTES * int(POOL * generator.random()) for _ in range(count)]
        yield b"".join([pool[begin : begin + size] for begin in begins])
        rows -= count


def widened(
    name: str, tensor: Tensor, columns: int, generator: random.Random
) -> tuple[list[int], Iterator[bytes]]:
    """Shape and content of `tensor` with `columns` columns of its MLP; as it is, if of none."""
    axis = next((axis for kind, axis in AXES.items() if name.endswith(kind)), None)
    if axis is None:
        return tensor.shape, iter([tensor.data])
    added = columns - tensor.shape[axis]
    if axis == 0:
        shape = [columns, tensor.shape[1]]

        def content() -> Iterator[bytes]:
            yield tensor.data
            yield from added_rows(tensor, added, generator)

        return shape, content()
    size = BYTES * tensor.shape[1]
    rows = (tensor.data[i : i + size] for i in range(0, len(tensor.data), size))
    return [tensor.shape[0], columns], (row + bytes(BYTES * added) for row in rows)


def header_of(shapes: dict[str, list[int]], origin: dict[str, str]) -> bytes:
    """A safetensors header for tensors of these shapes, one after the other."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"} | origin}
    end = 0
    for name, shape in shapes.items():
        begin = end
        end += BYTES * count_of(shape)
        header[name] = {"dtype": DTYPE, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def count_of(shape: list[int]) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count


def origin_of(source: Path, intermediate_size: int, seed: int) -> dict[str, str]:
    """What a checkpoint is made from, as its own metadata says it."""
    weights = hashlib.sha256((source / WEIGHTS).read_bytes()).hexdigest()
    return {
        "source_sha256": weights,
        "intermediate_size": str(intermediate_size),
        "seed": str(seed),
    }


def is_made(out: Path, origin: dict[str, str]) -> bool:
    """Whether `out` holds the checkpoint already. Its weights are put there last."""
    try:
        with (out / WEIGHTS).open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    except (OSError, ValueError):
        return False
    return origin.items() <= header.get("__metadata__", {}).items()


def make(
    source: Path,
    out: Path,
    intermediate_size: int,
    seed: int,
    progress: Callable[[float], None] = lambda _: None,
) -> int:
    """Writes the widened checkpoint and returns its number of parameters.

    `progress` is called with the share that is written, now and then.
    """
    config = json.loads((source / "config.json").read_text())
    if intermediate_size < config["intermediate_size"]:
        raise ValueError(
            f"--intermediate_size={intermediate_size}: allowed are {config['intermediate_size']} "
            f"(what {source} has) and more"
        )
    if config.get("mlp_bias"):
        raise ValueError(f"{source} has biases in its MLPs: only MLPs without are widened")
    generator = random.Random(seed)
    wide = {
        name: widened(name, tensor, intermediate_size, generator)
        for name, tensor in source_tensors(source).items()
    }
    shapes = {name: shape for name, (shape, _) in wide.items()}
    parameters = sum(count_of(shape) for shape in shapes.values())
    out.mkdir(parents=True, exist_ok=True)
    config["intermediate_size"] = intermediate_size
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    for name in COPIED:
        shutil.copy(source / name, out)
    unfinished = out / f"{WEIGHTS}.unfinished"
    with unfinished.open("wb") as file:
        file.write(header_of(shapes, origin_of(source, intermediate_size, seed)))
        written = 0
        for _, content in wide.values():
            for part in content:
                written += file.write(part)
                progress(written / (BYTES * parameters))
    os.replace(unfinished, out / WEIGHTS)
    return parameters


def make_if_missing(
    source: Path = SOURCE,
    out: Path = OUT,
    intermediate_size: int = INTERMEDIATE_SIZE,
    seed: int = 0,
) -> None:
    """As `make`, unless that has been done; says what it does on standard error."""
    if is_made(out, origin_of(source, intermediate_size, seed)):
        print(f"{out}: kept, it is there already", file=sys.stderr)
        return
    shown = -1

    def show(share: float) -> None:
        nonlocal shown
        percent = int(100 * share)
        if percent // 25 > shown // 25:
            shown = percent
            print(f"{out}: {percent} % written", file=sys.stderr)

    parameters = make(source, out, intermediate_size, seed, show)
    print(f"{out}: {parameters / 1e6:.0f} M parameters", file=sys.stderr)


def main() -> int:
    parser = argparse.ArgumentParser(description="Widen the demo target into the benchmark target.")
    parser.add_argument("--source", type=Path, default=SOURCE)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--intermediate_size", type=int, default=INTERMEDIATE_SIZE)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    try:
        make_if_missing(args.source, args.out, args.intermediate_size, args.seed)
    except (OSError, ValueError) as error:
        print(f"make_bench_pair: {error}", file=sys.stderr)
        return 2
    print(f"{args.out}; its draft: {ROOT / 'models/draft'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
