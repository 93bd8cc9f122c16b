"""Streamed text never splits a character, and its pieces make up the whole."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import make
from cluster import Cluster, start_cluster

# No byte occurs twice, so a model can be made that says this for ever, a byte a token.
TEXT = "éя漢🙂 "
BYTES = len(TEXT.encode())


@pytest.fixture(scope="module")
def repeater(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster whose target, and whose draft, repeat TEXT one byte a token."""
    folder = tmp_path_factory.mktemp("repeater")
    make.logging.disable_progress_bar()
    model = make.make_repeater(TEXT, folder / "model")
    with start_cluster(folder / "up.log", model, model, drafts=1) as cluster:
        yield cluster


@pytest.mark.parametrize("tokens", range(4 * BYTES, 5 * BYTES))
def test_characters_come_whole(repeater: Cluster, tokens: int) -> None:
    body = {"prompt": TEXT, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    whole = repeater.complete(**body)["choices"][0]["text"]
    # What the tokens spell, cut inside a character at most at the very end.
    expected = (TEXT * 5).encode()[:tokens].decode(errors="ignore")
    assert whole.rstrip("\N{REPLACEMENT CHARACTER}") == expected
    pieces = [c["text"] for e in repeater.stream(**body) for c in e["choices"]]
    assert "".join(pieces) == whole
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(pieces[:-1])


def test_a_long_text_comes_in_pieces(repeater: Cluster) -> None:
    # A gateway that is behind may join a few deltas, but never so many.
    pieces = [
        choice["text"]
        for event in repeater.stream(prompt=TEXT, max_tokens=200, temperature=0, ignore_eos=True)
        for choice in event["choices"]
    ]
    assert len([piece for piece in pieces if piece]) > 1
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(pieces[:-1])


def test_all_drafts_of_the_same_model_are_accepted(repeater: Cluster) -> None:
    answer = repeater.complete(prompt=TEXT, max_tokens=100, temperature=0, ignore_eos=True)
    speculation = answer["usage"]["speculation"]
    assert speculation["rounds"] < 60
    assert speculation["accepted"] > 40


@pytest.mark.parametrize("stop", ["🙂", "漢🙂", "я漢", " é"])
def test_stop_strings_of_many_bytes(repeater: Cluster, stop: str) -> None:
    body = {"prompt": TEXT, "max_tokens": 100, "temperature": 0, "stop": stop}
    expected = (TEXT * 3)[: (TEXT * 3).index(stop)]
    answer = repeater.complete(**body)["choices"][0]
    assert answer["text"] == expected
    assert answer["finish_reason"] == "stop"
    pieces = [c["text"] for e in repeater.stream(**body) for c in e["choices"]]
    assert "".join(pieces) == expected
