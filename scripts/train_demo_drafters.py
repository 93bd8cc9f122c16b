#!/usr/bin/env python3
"""Train drafters for the demo target in published layouts, into models/.

They are distilled from models/target and described in models/README.md. Run it again after
scripts/train_demo_models.py has trained another target.

    python=$(scripts/setup --print-venv)/bin/python
    $python scripts/train_demo_drafters.py
    $python scripts/train_demo_drafters.py --train pard --steps 3000
    $python scripts/train_demo_drafters.py --train dspark --steps 1000 --go_on  # from what is there

Its time goes to many small tensors, so that one thread is nearly as fast as two. glibc's malloc
should keep the large ones: MALLOC_MMAP_THRESHOLD_=4000000000 MALLOC_TRIM_THRESHOLD_=8000000000.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from demo_drafters.distill import HeldOut, Text, held_out_of, write_text
from demo_drafters.dspark import make_dspark, save_dspark, train_dspark
from demo_drafters.eagle3 import make_eagle3, save_eagle3, train_eagle3
from demo_drafters.pard import train_pard
from train_demo_models import read_corpus, save, to_ids, write_record

KINDS = {"pard": 2000, "eagle3": 1500, "dspark": 2500}  # and their steps
STATE_DRAFTERS: dict[str, tuple[Callable[..., dict[str, Any]], Callable[..., None]]] = {
    "eagle3": (train_eagle3, save_eagle3),
    "dspark": (train_dspark, save_dspark),
}


def load_trained(drafter: torch.nn.Module, folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    drafter.load_state_dict(
        {k: t.float() if t.is_floating_point() else t for k, t in tensors.items()}
    )


def train_one(
    kind: str,
    out: Path,
    steps: int,
    go_on: bool,
    target: LlamaForCausalLM,
    text: Text,
    held_out: HeldOut,
    tokenizer: Tokenizer,
) -> dict[str, object]:
    """Writes models/<kind>; what training.json keeps of it. `go_on`: begins as it is there."""
    drafter: torch.nn.Module
    if kind == "pard":
        begin = out / (kind if go_on else "draft")
        drafter = LlamaForCausalLM.from_pretrained(begin, dtype=torch.float32).train()
        figures = train_pard(target, drafter, text, held_out, steps)
        save(drafter, tokenizer, out / kind)
    else:
        drafter = make_eagle3(target, text) if kind == "eagle3" else make_dspark(target)
        if go_on:
            load_trained(drafter, out / kind)
        train_state_drafter, save_state_drafter = STATE_DRAFTERS[kind]
        figures = train_state_drafter(target, drafter, text, held_out, steps)
        save_state_drafter(drafter, target, out / kind)
    parameters = sum(p.numel() for p in drafter.parameters())
    return {"steps": steps, "parameters": parameters} | figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--train", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--steps", type=int, help="default: " + str(KINDS))
    parser.add_argument("--go_on", action="store_true", help="train what is there for more steps")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "models")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    tokenizer = Tokenizer.from_file(str(args.out / "target" / "tokenizer.json"))
    train_texts, held_out_texts = read_corpus()
    ids, held_out_ids = to_ids(tokenizer, train_texts), to_ids(tokenizer, held_out_texts)
    target = LlamaForCausalLM.from_pretrained(args.out / "target", dtype=torch.float32).eval()
    target.requires_grad_(False)
    held_out = held_out_of(target, held_out_ids)
    text = write_text(target, ids, 2048)
    print(f"{len(ids)} tokens, and {text.written.numel()} that the target wrote", flush=True)
    for kind in args.train:
        steps = args.steps or KINDS[kind]
        result = train_one(kind, args.out, steps, args.go_on, target, text, held_out, tokenizer)
        # Read here, as another run may have trained another drafter in the meantime.
        record = json.loads((args.out / "training.json").read_text())
        drafters = record.setdefault("drafters", {})
        if args.go_on:
            result["steps"] = steps + drafters[kind]["steps"]
        drafters[kind] = result
        write_record(args.out, record)
        print(json.dumps({kind: result}, indent=2))


if __name__ == "__main__":
    main()
