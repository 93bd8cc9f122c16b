"""Draft and target with one tokenizer whose ids are padded to different numbers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from cluster import DRAFT, TARGET, run, start_cluster
from exposition import value_of
from prompts import PROMPTS

ROWS = 64  # of padding


def padded(model: Path, out: Path) -> Path:
    """The same model with more ids, which score as high as any: their rows are another token's."""
    shutil.copytree(model, out)
    weights = load_file(model / "model.safetensors")
    embedding = weights["model.embed_tokens.weight"]
    weights["model.embed_tokens.weight"] = torch.cat([embedding, embedding[100 : 100 + ROWS]])
    save_file(weights, out / "model.safetensors", {"format": "pt"})
    config = json.loads((model / "config.json").read_text())
    (out / "config.json").write_text(json.dumps(config | {"vocab_size": len(embedding) + ROWS}))
    return out


@pytest.mark.parametrize("verification", ["coupled", "traversal"])
def test_a_draft_of_more_ids_proposes_none_of_them(verification: str, tmp_path: Path) -> None:
    draft = padded(DRAFT, tmp_path / "draft")
    body: dict[str, Any] = {"max_tokens": 60, "temperature": 0.8, "seed": 3, "ignore_eos": True}
    extra = [f"--verification={verification}"]
    with start_cluster(tmp_path / "up.log", draft_model=draft, drafts=1, extra=extra) as cluster:
        accepted = 0
        for prompt in PROMPTS[:8]:
            answer = cluster.complete(prompt=prompt, **body)
            accepted += answer["usage"]["speculation"]["accepted"]
        (target,) = cluster.targets
        for reason in ("sampling", "invalid", "no_slot"):
            assert value_of(target.admin, "specfabric_refused_drafts_total", reason=reason) == 0
    assert accepted > 60


def test_text_is_that_of_the_pair_without_padding(tmp_path: Path) -> None:
    pairs = {"same": DRAFT, "padded": padded(DRAFT, tmp_path / "draft")}
    texts = {}
    for name, draft in pairs.items():
        with start_cluster(tmp_path / f"{name}.log", draft_model=draft, drafts=1) as cluster:
            texts[name] = [
                cluster.complete(prompt=prompt, max_tokens=40, temperature=0.7, seed=5)["choices"]
                for prompt in PROMPTS[:6]
            ]
    assert texts["same"] == texts["padded"]


def test_a_target_of_more_ids_is_drafted_for(tmp_path: Path) -> None:
    """What it says beyond the draft's ids is not drafted on; the rest is."""
    target = padded(TARGET, tmp_path / "target")
    with start_cluster(tmp_path / "up.log", model=target, drafts=1) as cluster:
        answers = [
            cluster.complete(prompt=prompt, max_tokens=60, temperature=0, ignore_eos=True)
            for prompt in PROMPTS[:4]
        ]
    assert sum(answer["usage"]["speculation"]["accepted"] for answer in answers) > 40


def test_another_tokenizer_is_refused_in_one_line(tmp_path: Path) -> None:
    draft = tmp_path / "draft"
    shutil.copytree(DRAFT, draft)
    tokenizer = draft / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text() + "\n")
    ended = run(["generate", f"--model={TARGET}", f"--draft_model={draft}", "--prompt=def"])
    assert ended.returncode == 2
    line = ended.stderr.strip().splitlines()[-1]
    assert "the draft's tokenizer.json differs from the target's" in line
