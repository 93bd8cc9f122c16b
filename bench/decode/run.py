#!/usr/bin/env python3
"""Plain decoding at batch 1, side by side: SpecFabric, transformers and llama.cpp.

All decode the same weights (random ones by default) with the same number of threads, in one
interleaved run: every repetition times every contender once, in turn, so a machine that slows down
slows all of them. Prints each one's median tokens/s and the ratios of medians. Beside them stands
the bound that memory sets, measured in the same turns: how often a second this many threads can
read as many bytes as there are weights.

    scripts/build && scripts/setup --bench
    $(scripts/setup --print-venv)/bin/python bench/decode/run.py

and another checkpoint with --checkpoint, for instance the one of scripts/make_bench_pair.py:

    .../python bench/decode/run.py --checkpoint models/bench --dtypes bfloat16 --tokens 64

llama.cpp is built from the source distribution of llama-cpp-python, once, under --work.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))

from bench.decode import llama_cpp  # noqa: E402

DTYPES = list(llama_cpp.GGUF_TYPES)
BINARY = ROOT / "build" / "specfabric"
READ_BENCH = ROOT / "build" / "bench" / "decode" / "read_bench"
OURS = "specfabric"  # with as many ranks as threads, one thread each
PROMPT_TOKENS = 8


@dataclass(frozen=True)
class Contender:
    """One program in one setting; `measure()` decodes once and returns tokens/s."""

    name: str
    dtype: str
    threads: int
    measure: Callable[[], float]


def make_model(folder: Path, dtype: str) -> Path:
    """An 11 M parameter Llama of random weights with the demo models' tokenizer."""
    if (folder / "config.json").exists():
        return folder
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=4096,
        hidden_size=384,
        intermediate_size=1024,
        num_hidden_layers=6,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=1,
    )
    model = LlamaForCausalLM(config)
    folder.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(ROOT / "models" / "target" / name, folder)
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    return folder


def measure_specfabric(
    checkpoint: Path, dtype: str, ranks: int, threads_of_rank: int, tokens: int
) -> float:
    result = subprocess.run(
        [
            str(BINARY),
            "generate",
            f"--model={checkpoint}",
            f"--dtype={dtype}",
            f"--tensor_parallel={ranks}",
            f"--threads={threads_of_rank}",
            "--prompt=import os",
            f"--max_tokens={tokens}",
            "--temperature=0",
            "--ignore_eos",
            "--ngram_lookup=false",
            "--json",
        ],
        check=True,
        stdout=subprocess.PIPE,
    )
    answer = json.loads(result.stdout)
    assert len(answer["token_ids"]) == tokens
    return answer["decode_tokens_per_second"]


@torch.inference_mode()
def measure_transformers(model: LlamaForCausalLM, threads: int, tokens: int) -> float:
    torch.set_num_threads(threads)
    prompt = torch.arange(2, 2 + PROMPT_TOKENS)[None]
    begin = time.perf_counter()
    output = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=tokens,
        min_new_tokens=tokens,
        do_sample=False,
        pad_token_id=1,
    )
    seconds = time.perf_counter() - begin
    assert output.shape[1] == PROMPT_TOKENS + tokens
    return tokens / seconds


def measure_llama_cpp(bench: Path, gguf: Path, threads: int, tokens: int) -> float:
    result = subprocess.run(
        [str(bench), "-m", str(gguf), "-t", str(threads), "-p", "0", "-n", str(tokens)]
        + ["-r", "1", "-ngl", "0", "-o", "json"],
        check=True,
        capture_output=True,
    )
    (row,) = json.loads(result.stdout)
    return row["avg_ts"]


def weight_bytes(model: LlamaForCausalLM) -> int:
    """What a token reads: every weight but an embedding that is not the head too, which is
    looked up in."""
    total = sum(p.numel() * p.element_size() for p in model.parameters())
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    looked_up = 0 if embedding is head else embedding.numel() * embedding.element_size()
    return total - looked_up


def measure_read(weights: int, threads: int) -> float:
    result = subprocess.run(
        [str(READ_BENCH), str(weights), str(threads)], check=True, stdout=subprocess.PIPE
    )
    return float(result.stdout) * 1e9 / weights


def contenders(args: argparse.Namespace) -> list[Contender]:
    (bench,) = llama_cpp.build(args.work, args.jobs, "llama-bench")
    found = []
    for dtype, threads in itertools.product(args.dtypes, args.threads):
        made = args.work / f"random-11m-{dtype}"
        checkpoint = args.checkpoint.resolve() if args.checkpoint else make_model(made, dtype)
        gguf = llama_cpp.convert(args.work, checkpoint, dtype)
        model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=getattr(torch, dtype)).eval()
        measures: dict[str, Callable[[], float]] = {
            OURS: partial(measure_specfabric, checkpoint, dtype, threads, 1, args.tokens),
            "transformers": partial(measure_transformers, model, threads, args.tokens),
            "llama.cpp": partial(measure_llama_cpp, bench, gguf, threads, args.tokens),
            "weights read": partial(measure_read, weight_bytes(model), threads),
        }
        if threads > 1:
            measures[f"{OURS}, 1 rank"] = partial(
                measure_specfabric, checkpoint, dtype, 1, threads, args.tokens
            )
        found += [Contender(name, dtype, threads, run) for name, run in measures.items()]
    return found


def report(rates: dict[Contender, list[float]]) -> None:
    medians = {c: statistics.median(values) for c, values in rates.items()}
    print(f"{'dtype':10} {'threads':7} {'program':18} {'tokens/s':>9} {'min':>8} {'max':>8}  ratio")
    for contender, median in medians.items():
        ours = next(
            m
            for c, m in medians.items()
            if c.name == OURS and (c.dtype, c.threads) == (contender.dtype, contender.threads)
        )
        values = rates[contender]
        print(
            f"{contender.dtype:10} {contender.threads:<7} {contender.name:18} {median:9.1f} "
            f"{min(values):8.1f} {max(values):8.1f}  {ours / median:.2f}"
        )
    print(f"ratio: the median of {OURS} over this row's")


def main() -> None:
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    parser = argparse.ArgumentParser(description="Plain decoding at batch 1, side by side.")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="compilers at once")
    parser.add_argument("--work", type=Path, default=cache / "specfabric" / "bench-decode")
    parser.add_argument("--checkpoint", type=Path, help="a Hugging Face checkpoint's folder")
    parser.add_argument("--json", type=Path, help="also write every measurement to this file")
    args = parser.parse_args()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    args.work.mkdir(parents=True, exist_ok=True)

    rates: dict[Contender, list[float]] = {c: [] for c in contenders(args)}
    for contender in rates:
        contender.measure()  # warms caches up; not counted
    for repeat in range(args.repeats):
        for contender, values in rates.items():
            values.append(contender.measure())
        print(f"repetition {repeat + 1} of {args.repeats} done", file=sys.stderr)
    report(rates)
    if args.json:
        rows = [
            {"program": c.name, "dtype": c.dtype, "threads": c.threads, "tokens_per_second": v}
            for c, v in rates.items()
        ]
        args.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
