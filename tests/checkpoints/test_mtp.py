"""MTP drafters compute what a plain implementation computes, and their targets what they compute
without them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import make
from eagle3 import Target
from make_mtp import DRAFTERS, make_mtp
from mtp import Mtp
from test_eagle3 import CHAIN, PARENTS, PREFIX, check_passes, run


@pytest.mark.parametrize("name", DRAFTERS)
def test_logits_and_states_equal_the_plain_implementation(name: str, tmp_path: Path) -> None:
    make.logging.disable_progress_bar()
    drafter = DRAFTERS[name]
    folders = make_mtp(name, tmp_path)
    shards = len(list(folders.drafter.glob("*.safetensors")))
    assert (shards > 1) == (drafter.shard_size < 1 << 30)
    generator = torch.Generator().manual_seed(len(name))
    tokens = torch.randint(2, drafter.vocabulary, (40,), generator=generator).tolist()
    ids, chain = tokens[: PREFIX + 1], tokens[PREFIX + 1 : PREFIX + 1 + CHAIN]
    tree = tokens[-len(PARENTS) :]
    found = run(folders.target, folders.drafter, ids=ids, chain=chain, tree=tree, parents=PARENTS)
    last = drafter.target.settings["num_hidden_layers"]
    assert found["layers"][0].tolist() == [last]

    target = Target(folders.plain)
    model = Mtp(folders, drafter, target)
    states = model.fuse(target.states(ids[:-1], [last]))
    check_passes(found, model, states, ids, chain, tree)
