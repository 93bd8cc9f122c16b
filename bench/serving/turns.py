"""Servers that answer the same requests in turn, and what their rates say of each other.

In every round each server answers all requests of that round, one server after the other, in an
order that rotates from round to round, so that a machine that slows down slows all. Ratios are of
medians over rounds. Their intervals hold 95 % of the ratios of rounds drawn with replacement, those
of two servers together because they met the machine in the same mood: with few rounds they are
rough, and with one there is nothing to draw. Where rounds differ in what they ask, such as texts
that drafts foresee more or less of, two medians may be of different rounds; the median of each
round's own ratio is not. What a process meets for as long as it lives, such as the memory that it
was given, is the same in all its rounds, and no interval of them shows it: other processes do.

The best of several is the one whose median is highest, found by the same rounds that it is then
compared by. Noise makes that the luckier one: a ratio to the best is rather too low than too high.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from bench.serving.metrics import Summary

DRAWS = 2000
WARM_UP = -1  # the round that is not counted


@dataclass(frozen=True)
class Interval:
    """A ratio and the interval that holds 95 % of it."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


def turn(names: Sequence[str], number: int) -> list[str]:
    """The order of round `number`."""
    first = number % len(names)
    return [*names[first:], *names[:first]]


def draw(ours: Sequence[float], theirs: Sequence[float], seed: int) -> np.ndarray:
    """Rounds, with replacement, `DRAWS` times."""
    if len(ours) != len(theirs) or not ours:
        raise ValueError(f"{len(ours)} rounds beside {len(theirs)}; allowed: as many, from 1")
    return np.random.default_rng(seed).integers(len(ours), size=(DRAWS, len(ours)))


def interval(value: float, drawn: np.ndarray) -> Interval:
    low, high = np.percentile(drawn, [2.5, 97.5])
    return Interval(value, float(low), float(high))


def ratio(ours: Sequence[float], theirs: Sequence[float], seed: int = 0) -> Interval:
    """Of medians over the same rounds."""
    drawn = draw(ours, theirs, seed)
    above, below = (np.median(np.asarray(rates)[drawn], axis=1) for rates in (ours, theirs))
    return interval(median(ours) / median(theirs), above / below)


def ratio_by_round(ours: Sequence[float], theirs: Sequence[float], seed: int = 0) -> Interval:
    """The median of each round's own ratio."""
    drawn = draw(ours, theirs, seed)
    ratios = np.asarray(ours) / np.asarray(theirs)
    return interval(float(np.median(ratios)), np.median(ratios[drawn], axis=1))


def complete(rates: Mapping[str, Sequence[float]]) -> list[str]:
    """Who took part in every round."""
    rounds = max(len(values) for values in rates.values())
    return [name for name, values in rates.items() if len(values) == rounds]


def best(rates: Mapping[str, Sequence[float]], among: Collection[str]) -> str:
    """The one with the highest median, of those that took part in every round."""
    return max(complete({name: rates[name] for name in among}), key=lambda n: median(rates[n]))


def remaining(
    rates: Mapping[str, Sequence[float]], always: Collection[str], share: float
) -> list[str]:
    """Who goes on: those in `always`, and those of whom a round reached `share` of the best median.

    Who stopped before has fewer rounds and stays out.
    """
    at_work = complete(rates)
    if not rates[at_work[0]]:
        return at_work
    level = share * max(median(rates[name]) for name in at_work)
    return [name for name in at_work if name in always or max(rates[name]) >= level]


async def take_turns(
    names: Sequence[str],
    measure: Callable[[str, int], Awaitable[Summary]],
    rounds: int,
    always: Collection[str],
    share: float,
    first: int = 0,
) -> dict[str, list[Summary]]:
    """The summaries of each by round; `measure(name, number)` answers the requests of one.

    `first` is the number of the first that counts.
    """
    found: dict[str, list[Summary]] = {name: [] for name in names}
    going = list(names)
    for number in [WARM_UP, *range(first, first + rounds)]:
        for name in turn(going, number):
            summary = await measure(name, number)
            if number != WARM_UP:
                found[name].append(summary)
        going = remaining(rates_of(found), always, share)
        if sys.stderr.isatty():
            print(f"round {number + 1} of {first + rounds} done", file=sys.stderr)
    return found


def rates_of(found: Mapping[str, Sequence[Summary]]) -> dict[str, list[float]]:
    """Tokens a second by round."""
    return {name: [s.output_throughput for s in summaries] for name, summaries in found.items()}
