#!/usr/bin/env python3
"""Speculative decoding at batch 1, side by side: SpecFabric, llama.cpp and transformers.

All decode the same prompts greedily with the same target, draft and number of threads. First every
system's settings are tried once each on the first prompts and only its best is kept, SpecFabric's
by trees and whether the draft runs ahead, llama.cpp's by the most draft tokens a round, their least
probability and the draft's threads, transformers' by the number of draft tokens. Then the best, and
plain decoding by SpecFabric and llama.cpp, go round after round over all prompts, each once a
repetition, so that a machine that slows down slows all.

    python=$(scripts/setup --print-venv)/bin/python
    scripts/setup --bench && scripts/build && scripts/make_bench_pair.py
    $python bench/decode/speculative.py

llama.cpp's speculative decoding is its own example, llama-speculative-simple; plain, llama-bench.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT), str(ROOT / "tests" / "e2e")]

from bench.decode import llama_cpp  # noqa: E402
from prompts import PROMPTS  # noqa: E402

BINARY = Path(os.environ.get("SPECFABRIC_BINARY", ROOT / "build" / "specfabric"))
OURS, OURS_PLAIN = "specfabric", "specfabric, plain"
LLAMA, LLAMA_PLAIN = "llama.cpp", "llama.cpp, plain"
ASSISTED = "transformers, assisted"
LLAMA_TRIES = 3


@dataclass(frozen=True)
class Answer:
    """One prompt's answer. `rounds` is 0 where nothing is told of them."""

    tokens: int
    seconds: float  # without the prompt, but for transformers
    accepted: int = 0
    rounds: int = 0


@dataclass(frozen=True)
class Setting:
    """One system in one setting; `decode(prompt)` answers once."""

    system: str
    name: str
    decode: Callable[[str], Answer]


@dataclass(frozen=True)
class Rate:
    """Of all prompts together."""

    tokens_per_second: float
    accepted_per_round: float


def rate_of(setting: Setting, prompts: list[str]) -> Rate:
    answers = [setting.decode(prompt) for prompt in prompts]
    return Rate(
        sum(a.tokens for a in answers) / sum(a.seconds for a in answers),
        sum(a.accepted for a in answers) / max(sum(a.rounds for a in answers), 1),
    )


def decode_specfabric(args: argparse.Namespace, drafts: list[str], prompt: str) -> Answer:
    command = [
        str(BINARY),
        "generate",
        f"--model={args.model}",
        f"--dtype={args.dtype}",
        f"--tensor_parallel={args.tensor_parallel}",
        f"--threads={args.threads // args.tensor_parallel}",
        f"--prompt={prompt}",
        f"--max_tokens={args.tokens}",
        "--temperature=0",
        "--ignore_eos",
        "--repeat=3",  # the first two warm up: layers try how to fetch their weights
        "--ngram_lookup=false",  # the others look nothing up
        "--json",
        "--log_level=warning",
        *drafts,
    ]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    answer = json.loads(done.stdout.splitlines()[-1])
    tokens = len(answer["token_ids"])
    assert tokens == args.tokens
    return Answer(
        tokens, tokens / answer["decode_tokens_per_second"], answer["accepted"], answer["rounds"]
    )


def decode_llama_plain(bench: Path, target: Path, args: argparse.Namespace, _: str) -> Answer:
    """Its time does not depend on the prompt."""
    done = subprocess.run(
        [str(bench), "-m", str(target), "-t", str(args.threads), "-p", "0", "-n", str(args.tokens)]
        + ["-r", "1", "-ngl", "0", "-o", "json"],
        check=True,
        capture_output=True,
    )
    (row,) = json.loads(done.stdout)
    return Answer(args.tokens, args.tokens / row["avg_ts"])


def decode_llama(
    command: list[str], args: argparse.Namespace, draft_options: list[str], prompt: str
) -> Answer:
    # Its log is written by a thread whose last lines are lost now and then.
    for _ in range(LLAMA_TRIES):
        done = subprocess.run(
            [*command, "-t", str(args.threads), "-n", str(args.tokens), "-p", prompt, "--no-escape"]
            + ["--temp", "0", "--ignore-eos", "-c", "2048", "-ngl", "0", *draft_options],
            check=True,
            capture_output=True,
            text=True,
        )
        decoded = re.search(r"decoded +(\d+) tokens in +([\d.]+) seconds", done.stderr)
        accepted = re.search(r"n_accept += (\d+)", done.stderr)
        if decoded and accepted:
            tokens, kept = int(decoded.group(1)), int(accepted.group(1))
            return Answer(tokens, float(decoded.group(2)), kept, tokens - kept)
    raise RuntimeError(f"llama-speculative-simple did not say what it decoded: {done.stderr}")


class Assisted:
    """transformers' assisted generation."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        dtype = getattr(torch, args.dtype)
        self.target, self.draft = (
            AutoModelForCausalLM.from_pretrained(checkpoint, dtype=dtype).eval()
            for checkpoint in (args.model, args.draft_model)
        )
        self.tokenizer = AutoTokenizer.from_pretrained(args.model)

    @torch.inference_mode()
    def decode(self, draft_tokens: int, prompt: str) -> Answer:
        torch.set_num_threads(self.args.threads)
        config = self.draft.generation_config
        config.num_assistant_tokens = draft_tokens
        config.num_assistant_tokens_schedule = "constant"
        config.assistant_confidence_threshold = 0.0
        inputs = self.tokenizer(prompt, return_tensors="pt")
        begin = time.perf_counter()
        output = self.target.generate(
            **inputs,
            assistant_model=self.draft,
            max_new_tokens=self.args.tokens,
            min_new_tokens=self.args.tokens,
            do_sample=False,
            pad_token_id=1,
        )
        seconds = time.perf_counter() - begin
        return Answer(output.shape[1] - inputs["input_ids"].shape[1], seconds)


def settings_of(args: argparse.Namespace) -> dict[str, list[Setting]]:
    """Every system's settings, of which the best is to be found."""
    bench, speculative = llama_cpp.build(
        args.work, args.jobs, "llama-bench", "llama-speculative-simple"
    )
    target, draft = (
        llama_cpp.convert(args.work, checkpoint, args.dtype)
        for checkpoint in (args.model, args.draft_model)
    )
    command = [str(speculative), "-m", str(target), "-md", str(draft), "-ngld", "0"]
    found = {
        OURS: [
            Setting(
                OURS,
                f"--tree={tree} --ahead={ahead}",
                partial(
                    decode_specfabric,
                    args,
                    [f"--draft_model={args.draft_model}", "--num_drafts=1", f"--tree={tree}"]
                    + [f"--ahead={ahead}"],
                ),
            )
            for tree, ahead in itertools.product(args.trees, args.ahead)
        ],
        OURS_PLAIN: [Setting(OURS_PLAIN, "", partial(decode_specfabric, args, []))],
        LLAMA: [
            Setting(
                LLAMA,
                f"{kind}, n-max {most}, p-min {least:g}, draft threads {threads}",
                partial(
                    decode_llama,
                    command,
                    args,
                    ["--spec-type", kind, "--spec-draft-n-max", str(most)]
                    + ["--spec-draft-p-min", str(least), "-td", str(threads)],
                ),
            )
            for kind, most, least, threads in itertools.product(
                args.spec_types, args.draft_max, args.p_min, range(1, args.threads + 1)
            )
        ],
        LLAMA_PLAIN: [
            Setting(LLAMA_PLAIN, "", partial(decode_llama_plain, bench, target, args)),
        ],
    }
    if not args.without_transformers:
        assisted = Assisted(args)
        found[ASSISTED] = [
            Setting(
                ASSISTED, f"{draft_tokens} draft tokens", partial(assisted.decode, draft_tokens)
            )
            for draft_tokens in args.draft_max
        ]
    return found


def best_of(settings: list[Setting], prompts: list[str]) -> Setting:
    """Tries each once; prompt by prompt, so that all meet the machine in the same moods."""
    if len(settings) == 1:
        return settings[0]
    seconds = [0.0] * len(settings)
    tokens = [0] * len(settings)
    for prompt in prompts:
        for i, setting in enumerate(settings):
            answer = setting.decode(prompt)
            seconds[i] += answer.seconds
            tokens[i] += answer.tokens
    rates = [t / s for t, s in zip(tokens, seconds, strict=True)]
    for setting, rate in zip(settings, rates, strict=True):
        print(f"  tried {setting.system}, {setting.name}: {rate:.1f} tokens/s", file=sys.stderr)
    return settings[rates.index(max(rates))]


def report(rates: dict[Setting, list[Rate]]) -> None:
    medians = {
        setting.system: statistics.median(rate.tokens_per_second for rate in values)
        for setting, values in rates.items()
    }
    print(f"{'system':24}{'tokens/s':>9}{'min':>8}{'max':>8}{'accepted':>9}{'ratio':>7}  setting")
    for setting, values in rates.items():
        speeds = [rate.tokens_per_second for rate in values]
        accepted = statistics.median(rate.accepted_per_round for rate in values)
        print(
            f"{setting.system:24}{medians[setting.system]:9.1f}{min(speeds):8.1f}"
            f"{max(speeds):8.1f}{f'{accepted:.2f}' if accepted else '':>9}"
            f"{medians[OURS] / medians[setting.system]:7.2f}  {setting.name}"
        )
    print(f"ratio: the median of {OURS} over this row's; accepted: draft tokens a round")


def parse_arguments() -> argparse.Namespace:
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=ROOT / "models" / "bench")
    parser.add_argument("--draft_model", type=Path, default=ROOT / "models" / "draft")
    parser.add_argument("--dtype", choices=llama_cpp.GGUF_TYPES, default="bfloat16")
    parser.add_argument("--threads", type=int, default=2, help="of every system")
    parser.add_argument("--tensor_parallel", type=int, default=1, help="ranks that share them")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tuning_prompts", type=int, default=2)
    parser.add_argument("--trees", nargs="+", default=["best:12:4:12", "best:24:4:12"])
    parser.add_argument(
        "--ahead",
        nargs="+",
        choices=["false", "true"],
        default=["false", "true"],
        help="the draft's; it takes turns with the target on the same cores",
    )
    parser.add_argument("--draft_max", type=int, nargs="+", default=[2, 3, 4, 6, 8, 12, 16])
    parser.add_argument("--p_min", type=float, nargs="+", default=[0.0, 0.4])
    parser.add_argument(
        "--spec_types", nargs="+", default=["draft-simple"], help="llama.cpp's --spec-type"
    )
    parser.add_argument("--without_transformers", action="store_true")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="compilers at once")
    parser.add_argument("--work", type=Path, default=cache / "specfabric" / "bench-decode")
    parser.add_argument("--json", type=Path, help="also write every measurement to this file")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    args.work.mkdir(parents=True, exist_ok=True)
    # Spread over the list, which is sorted by kind.
    prompts = PROMPTS[:: max(1, len(PROMPTS) // args.prompts)][: args.prompts]
    settings = settings_of(args)
    chosen = [best_of(some, prompts[: args.tuning_prompts]) for some in settings.values()]
    rates: dict[Setting, list[Rate]] = {setting: [] for setting in chosen}
    for repeat in range(args.repeats):
        for setting, values in rates.items():
            values.append(rate_of(setting, prompts))
        print(f"repetition {repeat + 1} of {args.repeats} done", file=sys.stderr)
    report(rates)
    if args.json:
        rows = [
            {"system": setting.system, "setting": setting.name, **vars(rate)}
            for setting, values in rates.items()
            for rate in values
        ]
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
