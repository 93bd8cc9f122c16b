#!/usr/bin/env python3
"""Plain decoding at batch 1, side by side: SpecFabric, transformers and llama.cpp.

All decode the same weights (random ones by default) with the same number of threads, in one
interleaved run: every repetition times every contender once, in turn, so a machine that slows down
slows all of them. Prints each one's median tokens/s and the ratios of medians.

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
import tarfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

ROOT = Path(__file__).resolve().parents[2]
BINARY = ROOT / "build" / "specfabric"
OURS = "specfabric"  # with as many ranks as threads, one thread each
GGUF_TYPES = {"float32": "f32", "bfloat16": "bf16"}
PROMPT_TOKENS = 8


@dataclass(frozen=True)
class Contender:
    """One program in one setting; `measure()` decodes once and returns tokens/s."""

    name: str
    dtype: str
    threads: int
    measure: Callable[[], float]


def pinned_version(name: str) -> str:
    """A pin of scripts/versions.env."""
    for line in (ROOT / "scripts" / "versions.env").read_text().splitlines():
        key, _, value = line.partition("=")
        if key == name:
            return value
    raise KeyError(name)


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


def fetch_llama_cpp(work: Path) -> Path:
    """The source tree of llama.cpp that the pinned llama-cpp-python carries."""
    version = pinned_version("LLAMA_CPP_PYTHON_VERSION")
    tree = work / f"llama_cpp_python-{version}" / "vendor" / "llama.cpp"
    if tree.is_dir():
        return tree
    package = f"llama-cpp-python=={version}"
    print(f"fetching the source distribution of {package} ...", file=sys.stderr)
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "-q", "--no-deps"]
        + ["--no-binary", "llama-cpp-python", "-d", str(work), package],
        check=True,
    )
    (archive,) = work.glob("llama_cpp_python-*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(work, filter="data")
    archive.unlink()
    return tree


def build_llama_bench(work: Path, jobs: int) -> tuple[Path, Path]:
    """llama.cpp's source tree and its built llama-bench."""
    tree, build = fetch_llama_cpp(work), work / "llama.cpp-build"
    bench = build / "bin" / "llama-bench"
    if not bench.exists():
        print("building llama-bench (minutes) ...", file=sys.stderr)
        options = {
            "CMAKE_BUILD_TYPE": "Release",
            "BUILD_SHARED_LIBS": "OFF",
            "GGML_NATIVE": "ON",
            "LLAMA_BUILD_APP": "OFF",
            "LLAMA_BUILD_EXAMPLES": "OFF",
            "LLAMA_BUILD_SERVER": "OFF",
            "LLAMA_BUILD_TESTS": "OFF",
            "LLAMA_OPENSSL": "OFF",
        }
        if shutil.which("ccache"):
            options |= {f"CMAKE_{c}_COMPILER_LAUNCHER": "ccache" for c in ("C", "CXX")}
        definitions = [f"-D{name}={value}" for name, value in options.items()]
        configure = ["cmake", "-S", str(tree), "-B", str(build), "-G", "Ninja", *definitions]
        subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
        subprocess.run(
            ["cmake", "--build", str(build), f"-j{jobs}", "--target", "llama-bench"], check=True
        )
    return tree, bench


# Runs llama.cpp's converter on a tokenizer whose pre-tokenizer it has no name for: ours splits as
# GPT-2's does. Arguments: the tree, then the converter's own.
_CONVERT = """
import runpy, sys
tree = sys.argv.pop(1)
sys.path[:0] = [tree, tree + "/gguf-py"]
from conversion.base import TextModel
TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
runpy.run_path(tree + "/convert_hf_to_gguf.py", run_name="__main__")
"""


def convert(tree: Path, checkpoint: Path, dtype: str, gguf: Path) -> Path:
    """The checkpoint as llama.cpp reads it, made again when its weights are newer."""
    weights = max(path.stat().st_mtime for path in checkpoint.glob("*.safetensors"))
    if not gguf.exists() or gguf.stat().st_mtime < weights:
        subprocess.run(
            [sys.executable, "-c", _CONVERT, str(tree), str(checkpoint)]
            + ["--outfile", str(gguf), "--outtype", GGUF_TYPES[dtype]],
            check=True,
            capture_output=True,
        )
    return gguf


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


def contenders(args: argparse.Namespace) -> list[Contender]:
    tree, bench = build_llama_bench(args.work, args.jobs)
    found = []
    for dtype, threads in itertools.product(args.dtypes, args.threads):
        made = args.work / f"random-11m-{dtype}"
        checkpoint = args.checkpoint.resolve() if args.checkpoint else make_model(made, dtype)
        name = "-".join(checkpoint.parts[1:]) if args.checkpoint else made.name
        gguf = convert(tree, checkpoint, dtype, args.work / f"{name}-{dtype}.gguf")
        model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=getattr(torch, dtype)).eval()
        measures: dict[str, Callable[[], float]] = {
            OURS: partial(measure_specfabric, checkpoint, dtype, threads, 1, args.tokens),
            "transformers": partial(measure_transformers, model, threads, args.tokens),
            "llama.cpp": partial(measure_llama_cpp, bench, gguf, threads, args.tokens),
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
    parser.add_argument("--dtypes", nargs="+", choices=GGUF_TYPES, default=list(GGUF_TYPES))
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
