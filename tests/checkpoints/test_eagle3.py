"""Drafters that read hidden states compute what a plain implementation computes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Protocol

import pytest
import torch

import make
from eagle3 import Eagle3, Target
from make_drafters import DRAFTERS, make_drafter, make_target

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("SPECFABRIC_BINARY", ROOT / "build" / "specfabric")).parent
PROGRAM = BUILD / "tests" / "model" / "drafter_logits"

TOLERANCE = 1e-4
PREFIX, CHAIN = 14, 3
PARENTS = [-1, 0, 0, 2, 1, 3, 3]


def run(target: Path, drafter: Path, **tokens: list[int]) -> dict[str, torch.Tensor]:
    """What drafter_logits prints: all rows of each kind."""
    assert PROGRAM.is_file(), f"{PROGRAM} is not built: run scripts/build"
    flags = [f"--{name}={','.join(map(str, values))}" for name, values in tokens.items()]
    result = subprocess.run(
        [PROGRAM, f"--target={target}", f"--drafter={drafter}", *flags],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    rows: dict[str, list[list[float]]] = {}
    for line in result.stdout.splitlines():
        kind, *values = line.split()
        rows.setdefault(kind, []).append([float(value) for value in values])
    return {kind: torch.tensor(values) for kind, values in rows.items()}


class Model(Protocol):
    def forward(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        states: torch.Tensor,
        visible: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits of each row, and what it hands to the next."""


class Rows:
    """The rows of one sequence as it is drafted. A row sees itself and what its parent sees."""

    def __init__(self, model: Model, tokens: list[int], states: torch.Tensor) -> None:
        self.model = model
        self.tokens = torch.tensor(tokens)
        self.positions = torch.arange(len(tokens))
        self.states = states
        self.visible = torch.ones(len(tokens), len(tokens), dtype=torch.bool).tril()
        self.logits, self.next = self._run()

    def _run(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.model.forward(self.tokens, self.positions, self.states, self.visible)

    def add(self, token: int, parent: int) -> int:
        """A token drafted after the row `parent`; returns its row."""
        row = len(self.tokens)
        self.tokens = torch.cat([self.tokens, torch.tensor([token])])
        self.positions = torch.cat([self.positions, self.positions[parent : parent + 1] + 1])
        self.states = torch.cat([self.states, self.next[parent : parent + 1]])
        self.visible = torch.nn.functional.pad(self.visible, (0, 1, 0, 1))
        self.visible[row] = self.visible[parent]
        self.visible[row, row] = True
        self.logits, self.next = self._run()
        return row


@pytest.mark.parametrize("name", DRAFTERS)
def test_logits_and_states_equal_the_plain_implementation(name: str, tmp_path: Path) -> None:
    make.logging.disable_progress_bar()
    drafter = DRAFTERS[name]
    target_folder = make_target(drafter.target, tmp_path / "target")
    folder = make_drafter(name, tmp_path / "drafter")
    assert (len(list(folder.glob("*.safetensors"))) > 1) == (drafter.shard_size < 1 << 30)
    generator = torch.Generator().manual_seed(len(name))
    tokens = torch.randint(2, drafter.vocabulary, (40,), generator=generator).tolist()
    ids, chain = tokens[: PREFIX + 1], tokens[PREFIX + 1 : PREFIX + 1 + CHAIN]
    tree = tokens[-len(PARENTS) :]
    found = run(target_folder, folder, ids=ids, chain=chain, tree=tree, parents=PARENTS)
    assert found["layers"][0].tolist() == drafter.boundaries

    target = Target(target_folder)
    model = Eagle3(folder, drafter, target)
    states = model.fuse(target.states(ids[:-1], drafter.boundaries))
    check_passes(found, model, states, ids, chain, tree)


def check_passes(
    found: dict[str, torch.Tensor],
    model: Model,
    states: torch.Tensor,
    ids: list[int],
    chain: list[int],
    tree: list[int],
) -> None:
    """states: the fused ones of all ids but the last."""
    prefix = Rows(model, ids[1:], states)
    logits, handed_on = [prefix.logits], [prefix.next]
    last = parent = PREFIX - 1
    for token in chain:
        parent = prefix.add(token, parent)
    logits.append(prefix.logits[PREFIX:])
    handed_on.append(prefix.next[PREFIX:])
    grown = Rows(model, ids[1:], states)
    for token, node in zip(tree, PARENTS, strict=True):
        grown.add(token, last if node < 0 else PREFIX + node)
    logits.append(grown.logits[PREFIX:])
    handed_on.append(grown.next[PREFIX:])
    check(found["logits"], torch.cat(logits))
    # States grow with the layers: what matters is their error beside their size.
    wanted = torch.cat(handed_on)
    assert (found["state"] - wanted).abs().max() < TOLERANCE * wanted.abs().max()


def check(found: torch.Tensor, wanted: torch.Tensor) -> None:
    scored = wanted.isfinite()
    assert torch.equal(found.isneginf(), ~scored)
    print(
        "largest logit",
        wanted[scored].abs().max(),
        "largest difference",
        (found[scored] - wanted[scored]).abs().max(),
    )
    assert (found[scored] - wanted[scored]).abs().max() < TOLERANCE
