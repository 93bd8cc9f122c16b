#!/usr/bin/env python3
"""What a pass of a model must take on a GPU, kernel by kernel, from its shape. Needs no GPU.

A kernel's time is that of the bytes it moves at the speed of memory, or the time that any kernel
takes, if that is more. Products begin while the kernel before them ends (their first weights are on
their way by then), so only the others have a least time. The sum is a bound to hold measurements
against, not a promise: kernels that reach less of the memory's speed take longer.

    bench/cuda/predict_pass.py [--shape=llama-8b] [--rows=1] [--context=200] [--bandwidth=4.3e12]
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

ELEMENT, FLOAT = 2, 4  # bytes of a bfloat16 and of a float32


@dataclass(frozen=True)
class Shape:
    layers: int
    hidden: int
    features: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int


SHAPES = {
    "llama-1b": Shape(16, 2048, 8192, 32, 8, 64, 128_256),
    "llama-8b": Shape(32, 4096, 14_336, 32, 8, 128, 128_256),
    "qwen3-8b": Shape(36, 4096, 12_288, 32, 8, 128, 151_936),
}


@dataclass(frozen=True)
class Kernel:
    name: str
    launches: int  # of a pass
    moved: float  # bytes a launch
    floor: float  # seconds at least


def product(name: str, launches: int, outputs: int, inputs: int, rows: int, out: float) -> Kernel:
    """`out`: bytes written of a row."""
    read = ELEMENT * (outputs * inputs + rows * inputs)
    return Kernel(name, launches, read + rows * out, 0)


def kernels(shape: Shape, rows: int, context: int, floor: float) -> list[Kernel]:
    """Of a pass of `rows` rows of one sequence each, all of whose logits are wanted."""
    s = shape
    queries, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
    qkv = queries + 2 * kv
    cached = 2 * ELEMENT * kv * context  # keys and values of a sequence
    norm = rows * s.hidden * (3 * FLOAT + ELEMENT) + FLOAT * s.hidden
    return [
        Kernel("embedding", 1, rows * s.hidden * (ELEMENT + FLOAT), floor),
        product("qkv product", s.layers, qkv, s.hidden, rows, FLOAT * qkv),
        Kernel("rotary, q/k norm, KV write", s.layers, rows * qkv * (FLOAT + ELEMENT), floor),
        Kernel("attention", s.layers, rows * (cached + 2 * ELEMENT * queries), floor),
        product("output product", s.layers, s.hidden, queries, rows, FLOAT * s.hidden),
        product(
            "gate and up product, gated",
            s.layers,
            2 * s.features,
            s.hidden,
            rows,
            ELEMENT * s.features,
        ),
        product("down product", s.layers, s.hidden, s.features, rows, FLOAT * s.hidden),
        Kernel("residual and norm", 2 * s.layers + 1, norm, floor),
        product("head", 1, s.vocabulary, s.hidden, rows, FLOAT * s.vocabulary),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="What a pass must take, kernel by kernel.")
    parser.add_argument("--shape", choices=SHAPES, default="llama-8b")
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--context", type=int, default=200, help="tokens of each row's sequence")
    parser.add_argument("--bandwidth", type=float, default=4.3e12, help="bytes a second")
    parser.add_argument("--floor", type=float, default=2e-6, help="seconds of the least kernel")
    args = parser.parse_args()
    found = kernels(SHAPES[args.shape], args.rows, args.context, args.floor)
    print(f"{args.shape}, {args.rows} rows, context {args.context}, {args.bandwidth / 1e12} TB/s")
    print(
        f"{'kernel':28} {'launches':>8} {'MB a launch':>12} {'us a launch':>12} {'ms a pass':>10}"
    )
    total = weights = 0.0
    for kernel in found:
        bound = kernel.moved / args.bandwidth
        seconds = max(bound, kernel.floor)
        total += seconds * kernel.launches
        if kernel.name.endswith(("product", "gated")) or kernel.name == "head":
            weights += bound * kernel.launches
        print(
            f"{kernel.name:28} {kernel.launches:8} {kernel.moved / 1e6:12.2f} "
            f"{seconds * 1e6:12.2f} {seconds * kernel.launches * 1e3:10.3f}"
        )
    print(f"{'a pass':28} {sum(k.launches for k in found):8} {'':12} {'':12} {total * 1e3:10.3f}")
    print(f"products alone: {weights * 1e3:.3f} ms; a pass is {total / weights:.2f} times that")


if __name__ == "__main__":
    main()
