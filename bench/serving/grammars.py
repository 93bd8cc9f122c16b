#!/usr/bin/env python3
"""What a grammar costs: tokens a second with one beside the same without, from one server.

The default cluster with one draft answers requests of --output_tokens tokens, in turn: without a
form, with one that allows every text (what masks cost by themselves), and with a JSON schema of a
record that repeats (whose names and punctuation are forced). Printed are medians over --rounds and
the ratio to no form.

    python=$(scripts/setup --print-venv)/bin/python
    scripts/build && scripts/make_bench_pair.py
    $python bench/serving/grammars.py --model models/bench
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT), str(ROOT / "tests" / "e2e")]

from bench.serving.run import number  # noqa: E402
from bench.serving.turns import ratio, turn  # noqa: E402
from cluster import DRAFT, TARGET, Cluster, start_cluster  # noqa: E402
from prompts import PROMPTS  # noqa: E402

NO_FORM = "no form"
RECORD = {
    "type": "object",
    "properties": {
        "identifier": {"type": "integer"},
        "description": {"type": "string", "maxLength": 40},
        "status": {"enum": ["open", "in progress", "closed"]},
        "is_important": {"type": "boolean"},
    },
    "required": ["identifier", "description", "status", "is_important"],
    "additionalProperties": False,
}
FORMS: dict[str, dict[str, Any]] = {
    NO_FORM: {},
    "any text": {"guided_regex": "(.|\\n)*"},
    "records": {"guided_json": {"type": "array", "items": RECORD, "minItems": 1000}},
}


def rate(cluster: Cluster, form: str, seed: int, arguments: argparse.Namespace) -> float:
    """Tokens a second of --clients at a time, each with --requests requests."""

    def ask(request: int) -> int:
        answer = cluster.complete(
            prompt=PROMPTS[request % len(PROMPTS)],
            max_tokens=arguments.output_tokens,
            temperature=arguments.temperature,
            seed=seed + request,
            ignore_eos=True,
            **FORMS[form],
        )
        return int(answer["usage"]["completion_tokens"])

    began = time.monotonic()
    with ThreadPoolExecutor(arguments.clients) as pool:
        tokens = sum(pool.map(ask, range(arguments.clients * arguments.requests)))
    return tokens / (time.monotonic() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=TARGET)
    parser.add_argument("--draft_model", type=Path, default=DRAFT)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--requests", type=int, default=2, help="of each client, in a round")
    parser.add_argument("--output_tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--temperature", type=number(0), default=0.0)
    arguments = parser.parse_args()
    rates: dict[str, list[float]] = {form: [] for form in FORMS}
    with (
        tempfile.TemporaryDirectory() as folder,
        start_cluster(
            Path(folder) / "up.log",
            arguments.model,
            arguments.draft_model,
            drafts=1,
            dtype="bfloat16",
            speculation="goodput",
            ngram_lookup=True,
        ) as cluster,
    ):
        for form in FORMS:
            rate(cluster, form, 0, arguments)  # compiled, and known to the drafts' control
        for round_number in range(arguments.rounds):
            for form in turn(list(FORMS), round_number):
                rates[form].append(rate(cluster, form, 1000 * (round_number + 1), arguments))
    print("| form | tokens/s | / no form |\n|---|---|---|")
    for form, found in rates.items():
        print(f"| {form} | {median(found):.1f} | {ratio(found, rates[NO_FORM])} |")


if __name__ == "__main__":
    main()
