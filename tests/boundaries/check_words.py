#!/usr/bin/env python3
"""Checks that the project speaks in the field's words (docs/glossary.md).

WORDS lists expressions that this project no longer uses, each with what is said instead. They are
looked for in every tracked text file, in identifiers as well as in prose. Prints one line for
each use that is left and exits 1 if there is any; --table prints each old word, the new one and how
often the old one is left.

    tests/boundaries/check_words.py [--table] [REPOSITORY_ROOT]
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Word:
    """An expression that is not used, what is said instead, and the files that may still use it."""

    old: str
    new: str
    expression: re.Pattern[str]
    # Files or folders in which the expression means something else, and why that is so.
    exempt: dict[str, str] = field(default_factory=dict)


def _word(old: str, new: str, expression: str, exempt: dict[str, str] | None = None) -> Word:
    return Word(old, new, re.compile(expression), exempt or {})


def _part(name: str) -> str:
    """A word by itself, or a part of a CamelCase or snake_case identifier."""
    capital = name[0].upper() + name[1:]
    return (
        rf"(?<![A-Za-z]){name}(?![a-z])|(?<![A-Z]){capital}(?![a-z])"
        rf"|(?<![A-Za-z]){name.upper()}(?![A-Za-z])"
    )


WORDS = [
    _word("guess", "draft token, proposed token", _part("guess(?:es|ed|er|ers|ing)?")),
    _word(
        "weights (of a draft)",
        "draft probabilities (q)",
        r"(?i)drafts?'?s? weights\b|rows? of weights|DraftWeights|gpu_weights|weight_row"
        r"|weights_(?:rows|entries|pools?|slots)|ExpWeight|TotalWeight|MakeWeights",
    ),
    _word("law", "distribution", _part("laws?")),
    _word("coupling", "verification method", r"(?i)(?<!Gumbel )coupling"),
    _word("the lookup", "n-gram lookup", r"(?i)\bthe lookup\b|--lookup\b|by_lookup|\bkLookup\b"),
    _word("weigh", "verify, compare", _part("weigh(?:s|ed|ing|er|ty|tless)?")),
    _word("judge", "validate, check", _part("judg(?:e|es|ed|ing|ement|ment)")),
    _word("verdict", "verify result", _part("verdicts?")),
    _word("worth", "expected gain", _part("worth(?:s|while|less)?")),
    _word(
        "price",
        "cost per second, cost per row",
        _part("pric(?:e|es|ed|ing)"),
        {"requirements/clients-": "a package's name"},
    ),
    _word("rank (in a queue)", "queue order, priority", r"InsertByRank|admitted, by rank\b"),
    _word("beat, sign of life", "heartbeat", r"(?i)\bsigns? of life\b|\bBeats?\b|kBeat|next_beat"),
    _word("stranger", "unauthenticated peer", _part("strangers?")),
    _word("twin", "duplicate", _part("twins?")),
    _word("request memory", "request replay", r"(?i)request[_ ]?memory"),
    _word("DeviceTransformer", "CudaTransformer", r"DeviceTransformer|device_transformer"),
    _word(
        "Transformer", "CpuTransformer, CudaTransformer", r"(?<![A-Za-z])Transformer(?![A-Za-z])"
    ),
    _word("holding", "resource usage", _part("holdings?")),
    _word("barred", "suppressed token ids", _part("barred")),
    _word("broken on purpose", "fault injection", r"(?i)br[eo]+ak\w* on purpose|mistreat|befell"),
    _word("luck", "fault tolerance, chance", _part("(?:un)?luck(?:y|ily)?")),
    _word("sight", "observability", r"(?i)\bsight\b"),
    _word("features (of a target)", "hidden states", r"(?i)\btarget(?:'s)? features\b"),
    _word("fate", "fault decision", _part("fates?")),
    _word("knock", "connect", _part("knocks?")),
]

# A piece of every expression: most files have none of them, which one quick search tells.
_ANY = re.compile(
    r"guess|weigh|law|coupling|lookup|judg|verdict|worth|pric|rank|sign|beat|stranger|twin"
    r"|request.?memory|transformer|holding|barred|on purpose|mistreat|befell|luck|sight|features"
    r"|fate|knock",
    re.IGNORECASE,
)

# Binary files, other people's names, and data that is read as it is.
_SKIPPED = (
    "CHANGELOG.md",
    "LICENSE",
    "docs/third_party.md",
    "models/",
    "tests/boundaries/check_words.py",
    "tests/boundaries/test_words.py",
    "tests/fuzz/corpus/",
)


def _texts(root: Path) -> Iterator[tuple[str, str]]:
    """Path and text of every tracked file that is text."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    for name in sorted(set(listed.split("\0"))):
        path = root / name
        if not name or name.startswith(_SKIPPED) or path.is_symlink() or not path.is_file():
            continue
        try:
            yield name, path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


@dataclass(frozen=True)
class Use:
    path: str
    line: int
    found: str
    word: Word

    def __str__(self) -> str:
        return f'{self.path}:{self.line}: "{self.found}": say {self.word.new}'


def uses(root: Path) -> list[Use]:
    """Every use of an expression of WORDS, outside the files that are exempt."""
    found = []
    for path, text in _texts(root):
        if not _ANY.search(text):
            continue
        for word in WORDS:
            if any(path.startswith(exempt) for exempt in word.exempt):
                continue
            for match in word.expression.finditer(text):
                line = text.count("\n", 0, match.start()) + 1
                found.append(Use(path, line, match[0], word))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Checks that the project uses the field's words.")
    parser.add_argument("--table", action="store_true", help="print old word, new word, uses left")
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).resolve().parents[2])
    options = parser.parse_args()
    left = uses(options.root)
    if options.table:
        for word in WORDS:
            print(f"{word.old} | {word.new} | {sum(use.word is word for use in left)}")
    else:
        for use in left:
            print(use)
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
