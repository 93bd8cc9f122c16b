"""Servers in turn: the order, who goes on, which is the best, and the intervals of ratios."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from bench.serving.metrics import Summary, summarise
from bench.serving.turns import (
    WARM_UP,
    Interval,
    best,
    complete,
    rates_of,
    ratio,
    ratio_by_round,
    remaining,
    take_turns,
    turn,
)


def test_everyone_is_once_in_every_place() -> None:
    names = ["a", "b", "c"]
    orders = [turn(names, number) for number in range(3)]
    assert all(sorted(order) == names for order in orders)
    assert [sorted(place) for place in zip(*orders, strict=True)] == [names] * 3
    assert turn(names, 3) == turn(names, 0)


def test_a_ratio_is_of_medians() -> None:
    assert ratio([2, 30, 4], [1, 1, 100]).value == 4.0


def test_a_ratio_by_round_does_not_see_what_rounds_differ_by() -> None:
    ours, theirs = [8, 20, 6], [10, 16, 5]
    assert ratio(ours, theirs).value == 0.8, "8 and 10 are of one round, but not of a typical one"
    found = ratio_by_round(ours, theirs)
    assert (found.low, found.value, found.high) == (0.8, 1.2, 1.25)
    assert ratio_by_round([2.0, 20.0], [1.0, 10.0]) == Interval(2.0, 2.0, 2.0)


def test_a_machine_that_slows_down_both_leaves_the_interval_narrow() -> None:
    mood = [1.0, 0.3, 0.8, 0.5, 0.9]
    together = ratio([2 * m for m in mood], mood)
    assert (together.low, together.value, together.high) == (2.0, 2.0, 2.0)
    apart = ratio([2 * m for m in mood], mood[::-1])
    assert apart.low < apart.value < apart.high


def test_the_interval_holds_the_ratio_about_as_often_as_it_says() -> None:
    random = np.random.default_rng(5)
    held = 0
    for _ in range(300):
        theirs = 10 * random.lognormal(sigma=0.05, size=9)
        ours = 15 * random.lognormal(sigma=0.05, size=9)
        found = ratio(list(ours), list(theirs))
        held += found.low <= 1.5 <= found.high
    assert 0.88 <= held / 300 <= 1.0


def test_one_round_has_no_interval() -> None:
    assert ratio([3.0], [2.0]) == Interval(1.5, 1.5, 1.5)


def test_a_ratio_wants_the_same_rounds() -> None:
    with pytest.raises(ValueError, match="2 rounds beside 1"):
        ratio([1.0, 2.0], [1.0])


def test_the_best_took_part_in_every_round() -> None:
    rates = {"early": [9.0], "slow": [1.0, 2.0], "fast": [2.0, 3.0], "ours": [8.0, 8.0]}
    assert best(rates, ["early", "slow", "fast"]) == "fast"


def test_who_never_came_near_the_best_stops() -> None:
    rates = {"ours": [1.0, 1.0], "best": [10.0, 10.0], "near": [2.0, 8.5], "far": [7.9, 7.0]}
    assert remaining(rates, ["ours"], 0.8) == ["ours", "best", "near"]
    assert remaining(rates, [], 0.0) == list(rates)


def test_who_stopped_stays_out_and_sets_no_level() -> None:
    rates = {"a": [1.0, 1.0], "b": [0.9, 0.9], "stopped": [100.0]}
    assert remaining(rates, [], 0.8) == complete(rates) == ["a", "b"]


def summary(rate: float) -> Summary:
    empty = vars(summarise([], 1.0))
    return Summary(**{**empty, "output_throughput": rate})


def test_turns_warm_up_first_and_leave_out_who_is_too_slow() -> None:
    calls: list[tuple[str, int]] = []

    async def measure(name: str, number: int) -> Summary:
        calls.append((name, number))
        # The round that warms up is not counted, or `slow` would be the best.
        return summary({"ours": 5.0, "fast": 10.0, "slow": 1.0}[name] + 99 * (number == WARM_UP))

    found = asyncio.run(take_turns(["ours", "fast", "slow"], measure, 3, ["ours"], 0.8))
    assert rates_of(found) == {"ours": [5.0] * 3, "fast": [10.0] * 3, "slow": [1.0]}
    assert [name for name, number in calls if number == WARM_UP] == ["slow", "ours", "fast"]
    assert [name for name, number in calls if number == 1] == ["fast", "ours"]


def test_rounds_of_other_servers_go_on_where_those_before_ended() -> None:
    calls: list[tuple[str, int]] = []

    async def measure(name: str, number: int) -> Summary:
        calls.append((name, number))
        return summary(1.0)

    asyncio.run(take_turns(["a", "b"], measure, 2, [], 0.0, first=3))
    assert [number for _, number in calls] == [WARM_UP, WARM_UP, 3, 3, 4, 4]
