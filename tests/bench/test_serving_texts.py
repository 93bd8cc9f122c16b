"""The kinds of text on which servers are compared."""

from __future__ import annotations

from statistics import mean

import pytest

from bench.serving.texts import KINDS, REPEATS, SYSTEM, asked, read_corpus


@pytest.mark.parametrize("kind", list(KINDS))
def test_requests_follow_from_the_seed(kind: str) -> None:
    assert asked(kind, 8, 300, 64, [1, 2]) == asked(kind, 8, 300, 64, [1, 2])
    others = asked(kind, 8, 300, 64, [1, 3])
    assert {one.prompt for one in asked(kind, 8, 300, 64, [1, 2])}.isdisjoint(
        one.prompt for one in others
    )


@pytest.mark.parametrize("kind", ["code", "prose"])
def test_prompts_have_the_length_asked_for(kind: str) -> None:
    assert {len(one.prompt) for one in asked(kind, 8, 300, 64, [7])} == {300}


def test_code_is_held_out_of_the_training() -> None:
    held_out = read_corpus()[1]
    for one in asked("code", 8, 300, 64, [7]):
        assert any(one.prompt[:140] in text or one.prompt[-140:] in text for text in held_out)


def test_repetitive_texts_go_on_as_they_began() -> None:
    for one in asked("repetitive", 8, 400, 64, [7]):
        lines = one.prompt.splitlines()
        size = (len(lines) - 1) // REPEATS
        assert lines == lines[:size] * REPEATS + lines[:1]


def test_chats_share_a_system_text_and_differ_in_length() -> None:
    chats = asked("chat", 200, 300, 64, [7])
    assert all(one.prompt.startswith(SYSTEM) for one in chats)
    assert {one.output_tokens for one in chats} == {16, 32, 64, 144}
    assert mean(one.output_tokens for one in chats) == pytest.approx(64, rel=0.15)
    assert {one.output_tokens for one in asked("code", 20, 300, 64, [7])} == {64}
