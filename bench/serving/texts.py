"""The kinds of text on which servers are compared: prompts, and how long their answers are.

- code: pieces of Python files that the demo models were not trained on.
- repetitive: a few lines of such a file over and over, then the first of them once more.
- prose: sentences of words drawn at random from this project's documents. The demo models know
  code alone, and nothing follows from what stands before: drafts are wrong most often here.
- chat: a dialogue in the form of the demo models' chat template. A text of the system that all
  requests share, then a short question about a piece of code, of repeated lines or of prose;
  answers are a quarter of the mean length up to more than twice as long.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "scripts"))

from train_demo_models import read_corpus  # noqa: E402

REPEATS = 3  # of the lines of a repetitive text
# Of the mean answer of a chat, equally likely; their own mean is 1.
CHAT_LENGTHS = (0.25, 0.5, 1.0, 1.0, 2.25)
SYSTEM = (
    "# system: You review code and text. Answer in code where code is asked for, keep names "
    "as they are, and do not repeat the question.\n"
)
QUESTIONS = (
    "What does this do?",
    "Go on from here.",
    "Write a test for this.",
    "Shorten this.",
    "What is wrong here?",
)


@dataclass(frozen=True)
class Asked:
    """One request as text."""

    prompt: str
    output_tokens: int


@functools.cache
def _code() -> str:
    return "\n".join(read_corpus()[1])  # what is held out of the training


@functools.cache
def _words() -> list[str]:
    """Those of the documents, as often as they occur there."""
    documents = sorted((ROOT / "docs").glob("*.md"))
    return [w.lower() for path in documents for w in re.findall("[A-Za-z]{2,}", path.read_text())]


def code(characters: int, random: np.random.Generator) -> str:
    begin = int(random.integers(len(_code()) - characters))
    return _code()[begin : begin + characters]


def repetitive(characters: int, random: np.random.Generator) -> str:
    lines: list[str] = []
    while len(lines) < 3:
        piece = code(max(120, characters // REPEATS), random)
        # The first and the last are cut off somewhere.
        lines = [line for line in piece.split("\n")[1:-1] if line.strip()]
    block = "\n".join(lines) + "\n"
    return block * REPEATS + lines[0] + "\n"


def prose(characters: int, random: np.random.Generator) -> str:
    text = ""
    while len(text) < characters:
        drawn = random.integers(len(_words()), size=random.integers(5, 15))
        text += " ".join(_words()[i] for i in drawn).capitalize() + ". "
    return text[:characters]


def chat(characters: int, random: np.random.Generator) -> str:
    kind = (code, repetitive, prose)[random.integers(3)]
    about = kind(int(characters * random.choice([0.25, 0.5, 1.0])), random)
    question = QUESTIONS[random.integers(len(QUESTIONS))]
    return f"{SYSTEM}# user: {question}\n{about}\n"


KINDS: dict[str, Callable[[int, np.random.Generator], str]] = {
    kind.__name__: kind for kind in (code, repetitive, prose, chat)
}


def asked(
    kind: str, count: int, characters: int, mean_tokens: int, seed: Sequence[int]
) -> list[Asked]:
    """The same requests for the same seed; `characters` is about what a prompt has."""
    random = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        share = random.choice(CHAT_LENGTHS) if kind == "chat" else 1.0
        tokens = max(1, round(mean_tokens * share))
        found.append(Asked(KINDS[kind](characters, random), tokens))
    return found
