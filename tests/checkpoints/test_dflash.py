"""Drafters that propose a block in one pass compute what a plain implementation computes.

Of such a drafter the program runs a block for each of --anchors, one after the other:

    drafter_logits --target=DIR --drafter=DIR --ids=1,2,3,4,5,6 --anchors=2,5 --chain=7,8,9

The anchor is the token of --ids at that position. The drafter reads the target's states of the
tokens before it, those since the anchor before in one pass, and drafts a block, of which nothing
may remain. --chain are the tokens that are drafted in all levels of a block but its last.

A line for the layers that are read; then for each block a line `logits` for each level, and if the
drafter has a confidence head a line `confidence` of all levels, as probabilities.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import make
from dflash import Dflash
from dflash_shapes import DRAFTERS
from eagle3 import Target
from make_dflash import make_drafter
from make_drafters import TARGETS, make_target
from test_eagle3 import TOLERANCE, check, run

ANCHORS = [1, 11, 14]


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    make.logging.disable_progress_bar()
    folder = tmp_path_factory.mktemp("targets")
    return {name: make_target(name, folder / name) for name in TARGETS}


@pytest.mark.parametrize("name", DRAFTERS)
def test_blocks_equal_the_plain_implementation(
    name: str, targets: dict[str, Path], tmp_path: Path
) -> None:
    drafter, means = DRAFTERS[name], DRAFTERS[name].means
    folder = make_drafter(name, tmp_path / "drafter")
    assert (len(list(folder.glob("*.safetensors"))) > 1) == (drafter.shard_size < 1 << 30)
    generator = torch.Generator().manual_seed(len(name))
    tokens = torch.randint(0, drafter.vocabulary, (40,), generator=generator).tolist()
    ids, path = tokens[: ANCHORS[-1] + 1], tokens[-means.levels + 1 :]
    found = run(targets[drafter.target], folder, ids=ids, anchors=ANCHORS, chain=path)
    assert found["layers"][0].tolist() == means.boundaries

    target = Target(targets[drafter.target])
    model = Dflash(folder, drafter, target)
    states = target.states(ids[:-1], means.boundaries)
    blocks = [model.draft(states[:anchor], ids[anchor], path) for anchor in ANCHORS]
    check(found["logits"], torch.cat([block.logits for block in blocks]))
    confidences = [block.confidences for block in blocks if block.confidences is not None]
    assert ("confidence" in found) == bool(confidences)
    if confidences:
        wanted = torch.stack(confidences)
        print("confidences", wanted.min(), "to", wanted.max())
        assert (found["confidence"] - wanted).abs().max() < TOLERANCE
