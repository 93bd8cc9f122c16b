"""The check of words passes on the project, and sees the words that it is for."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import check_words

ROOT = Path(__file__).resolve().parents[2]


def test_the_project_uses_the_words_of_the_glossary() -> None:
    assert [str(use) for use in check_words.uses(ROOT)] == []


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("the draft's guesses", "guess"),
        ("class GuessCache;", "guess"),
        ("struct RowLaw {", "law"),
        ("int row_law = 0;", "law"),
        ("the coupling that a request asks for", "coupling"),
        ("its expected worth", "worth"),
        ("DeviceTransformer model;", "DeviceTransformer"),
    ],
)
def test_an_old_word_is_seen(tmp_path: Path, text: str, seen: str) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / "planted.h").write_text(text)
    assert seen in {use.word.old for use in check_words.uses(tmp_path)}


@pytest.mark.parametrize(
    "text", ["the Gumbel coupling", "model weights", "a flaw in the claws", "std::lawn", "worthy"]
)
def test_other_words_are_left_alone(tmp_path: Path, text: str) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / "planted.h").write_text(text)
    assert check_words.uses(tmp_path) == []
