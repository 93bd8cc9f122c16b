#!/usr/bin/env python3
"""The GPU's peaks, and passes of a model's shape as torch operations in one CUDA graph.

What an engine made of torch operations would take for the same work: random weights, one sequence,
`--context` tokens in the cache and some rows after them. Prints one JSON object a line.

    torch_pass.py --peaks
    torch_pass.py --model llama-8b --rows 1,8,64
    torch_pass.py --shared 4104192     # bytes that another process copies out of this one's memory
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

try:
    import torch
    import torch.nn.functional as F
except ImportError:
    print("torch_pass: this Python has no torch", file=sys.stderr)
    sys.exit(3)


@dataclass(frozen=True)
class Shape:
    """As bench/model/random_model.cc has them."""

    vocabulary: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int


SHAPES = {
    "llama-1b": Shape(128256, 2048, 8192, 16, 32, 8, 64),
    "llama-8b": Shape(128256, 4096, 14336, 32, 32, 8, 128),
    "qwen3-8b": Shape(151936, 4096, 12288, 36, 32, 8, 128),
    "tiny": Shape(500, 128, 256, 2, 4, 2, 64),
}


class Model:
    """Weights, cache and buffers on the device, and a pass over them."""

    def __init__(self, shape: Shape, context: int, rows: int, device: str) -> None:
        self.shape = shape
        self.context = context
        self.options: dict[str, Any] = {"device": device, "dtype": torch.bfloat16}
        queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.layers = [
            {
                "qkv": self.weights(queries + 2 * keys, shape.hidden),
                "output": self.weights(shape.hidden, queries),
                "gate_up": self.weights(2 * shape.intermediate, shape.hidden),
                "down": self.weights(shape.hidden, shape.intermediate),
                "norms": torch.ones(2, shape.hidden, **self.options),
                "cache": self.weights(2, shape.kv_heads, context + rows, shape.head_dim),
            }
            for _ in range(shape.layers)
        ]
        self.norm = torch.ones(shape.hidden, **self.options)
        self.head = self.weights(shape.vocabulary, shape.hidden)
        self.angles = torch.ones(2, context + rows, shape.head_dim, **self.options)

    def weights(self, *extents: int) -> torch.Tensor:
        return torch.empty(*extents, **self.options).uniform_(-0.03, 0.03)

    def rotate(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.shape[1]
        half = self.shape.head_dim // 2
        turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
        return x * self.angles[0, :rows] + turned * self.angles[1, :rows]

    def attend(self, layer: dict[str, torch.Tensor], normed: torch.Tensor) -> torch.Tensor:
        shape, rows = self.shape, normed.shape[0]
        heads = F.linear(normed, layer["qkv"]).view(rows, -1, shape.head_dim).transpose(0, 1)
        queries, keys, values = heads.split((shape.heads, shape.kv_heads, shape.kv_heads))
        end = self.context + rows
        layer["cache"][0, :, self.context : end] = self.rotate(keys)
        layer["cache"][1, :, self.context : end] = values
        attended = F.scaled_dot_product_attention(
            self.rotate(queries)[None],
            layer["cache"][0:1, :, :end],
            layer["cache"][1:2, :, :end],
            enable_gqa=True,
        )
        return F.linear(attended[0].transpose(0, 1).reshape(rows, -1), layer["output"])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        width = (self.shape.hidden,)
        for layer in self.layers:
            x = x + self.attend(layer, F.rms_norm(x, width, layer["norms"][0]))
            normed = F.rms_norm(x, width, layer["norms"][1])
            gate, up = F.linear(normed, layer["gate_up"]).chunk(2, dim=-1)
            x = x + F.linear(F.silu(gate) * up, layer["down"])
        return F.linear(F.rms_norm(x, width, self.norm), self.head).float()


def milliseconds(run: Callable[[], object], device: str, repeats: int = 15) -> float:
    """The median, after a few that do not count."""
    times = []
    for repeat in range(repeats + 3):
        begin = time.perf_counter()
        run()
        if device == "cuda":
            torch.cuda.synchronize()
        if repeat >= 3:
            times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times)


def captured(run: Callable[[], object]) -> Callable[[], object]:
    """The operations of `run` as one CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def show(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


def measure_copy(device: str, name: str, copied: int) -> None:
    source = torch.ones(copied, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    ms = milliseconds(lambda: target.copy_(source), device)
    show(bench="copy", device=name, gb_per_s=2 * copied / ms / 1e6)
    # Weights are read, not copied: a sum of them comes nearest.
    words = source.view(torch.int32)
    ms = milliseconds(lambda: torch.max(words), device)
    show(bench="read", device=name, gb_per_s=copied / ms / 1e6)


def measure_product(device: str, name: str, width: int) -> None:
    a = torch.ones(width, width, dtype=torch.bfloat16, device=device).uniform_(-1, 1)
    b = torch.empty_like(a).uniform_(-1, 1)
    ms = milliseconds(lambda: a @ b, device)
    show(bench="product", device=name, tflops=2 * width**3 / ms / 1e9)


def measure_passes(name: str, rows: list[int], context: int, device: str) -> None:
    model = Model(SHAPES[name], context, max(rows), device)
    for count in rows:
        x = model.weights(count, model.shape.hidden)

        def run(x: torch.Tensor = x) -> torch.Tensor:
            return model.forward(x)

        ms = milliseconds(captured(run) if device == "cuda" else run, device)
        show(bench="torch", model=f"random:{name}", rows=count, context=context, median_ms=ms)


def copy_shared(shared: torch.Tensor, answers: Any) -> None:
    """In another process: copies out of memory that CUDA has mapped from this one."""
    target = torch.empty_like(shared)
    answers.put(milliseconds(lambda: target.copy_(shared), "cuda"))


def measure_shared(size: int) -> None:
    context = torch.multiprocessing.get_context("spawn")
    answers = context.Queue()
    memory = torch.ones(size, dtype=torch.uint8, device="cuda")
    child = context.Process(target=copy_shared, args=(memory, answers))
    child.start()
    child.join()
    if child.exitcode != 0:
        raise SystemExit("torch_pass: another process cannot use this one's GPU memory")
    show(bench="shared", bytes=size, median_ms=answers.get())


def main() -> int:
    parser = argparse.ArgumentParser(description="Peaks, and passes as torch operations.")
    parser.add_argument("--peaks", action="store_true")
    parser.add_argument("--shared", type=int, default=0, help="bytes copied from another process")
    parser.add_argument("--model", choices=sorted(SHAPES))
    parser.add_argument("--rows", default="1,8,64")
    parser.add_argument("--context", type=int, default=200)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--copied", type=int, default=1 << 30, help="bytes of the copy")
    parser.add_argument("--width", type=int, default=8192, help="of the large product")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        print("torch_pass: torch finds no GPU", file=sys.stderr)
        return 3
    if args.shared:
        measure_shared(args.shared)
    with torch.inference_mode():
        if args.peaks:
            name = torch.cuda.get_device_name() if args.device == "cuda" else "cpu"
            measure_copy(args.device, name, args.copied)
            measure_product(args.device, name, args.width)
        if args.model:
            measure_passes(
                args.model, [int(n) for n in args.rows.split(",")], args.context, args.device
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
