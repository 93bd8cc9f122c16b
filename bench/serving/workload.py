"""What the load generator asks for: when requests arrive, their prompts and their lengths."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np


class WorkloadError(ValueError):
    """A trace or a setting that cannot be; its text is one line for the person who gave it."""


@dataclass(frozen=True)
class Arrival:
    """One request before it has a prompt."""

    seconds: float  # after the start
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class Planned:
    """One request as it will be sent."""

    seconds: float  # after the start
    prompt: list[int]
    output_tokens: int
    seed: int


def arrival_times(
    count: int, rate: float, burstiness: float, random: np.random.Generator
) -> list[float]:
    """As `vllm bench serve` draws them: gaps of a gamma distribution whose shape is `burstiness`.

    Their mean is 1 / rate; 1 makes a Poisson process, less is burstier, infinity is regular. All
    are then stretched so that the last request arrives at count / rate exactly. At an infinite rate
    all arrive at once.
    """
    if math.isinf(rate):
        return [0.0] * count
    if math.isinf(burstiness):
        gaps = np.full(count, 1 / rate)
    else:
        gaps = random.gamma(shape=burstiness, scale=1 / (rate * burstiness), size=count)
    times = np.cumsum(gaps)
    return [float(time) for time in times * (count / rate / times[-1])]


def lengths(count: int, mean: int, range_ratio: float, random: np.random.Generator) -> list[int]:
    """Uniform over mean * (1 +- range_ratio), both ends included."""
    low = max(1, math.floor(mean * (1 - range_ratio)))
    high = math.ceil(mean * (1 + range_ratio))
    return [int(n) for n in random.integers(low, high, size=count, endpoint=True)]


def read_trace(path: Path) -> list[Arrival]:
    """A CSV of seconds, prompt tokens, output tokens: what `specfabric simulate --workload_trace`
    reads.

    A first line that does not start with a number is a heading.
    """
    arrivals: list[Arrival] = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        fields = [field.strip() for field in line.split(",")]
        if fields == [""] or (number == 1 and not _is_number(fields[0])):
            continue
        try:
            seconds, (prompt, output) = float(fields[0]), (int(field) for field in fields[1:])
        except ValueError:
            seconds, prompt, output = -1.0, 0, 0
        ordered = not arrivals or seconds >= arrivals[-1].seconds
        if not (0 <= seconds < 1e9 and prompt > 0 and output > 0 and ordered):
            raise WorkloadError(
                f"{path}: line {number} is '{line}': must be seconds (not before the line above), "
                "prompt tokens and output tokens"
            )
        arrivals.append(Arrival(seconds, prompt, output))
    if not arrivals:
        raise WorkloadError(f"{path}: no line of seconds, prompt tokens, output tokens")
    return arrivals


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


@dataclass(frozen=True)
class RandomPrompts:
    """Prompts of token ids drawn evenly below `vocabulary`."""

    vocabulary: int

    def prompt(self, length: int, random: np.random.Generator) -> list[int]:
        return [int(token) for token in random.integers(self.vocabulary, size=length)]


@dataclass(frozen=True)
class TextPrompts:
    """Prompts cut at random places out of a text's tokens."""

    tokens: Sequence[int]

    def prompt(self, length: int, random: np.random.Generator) -> list[int]:
        if length > len(self.tokens):
            raise WorkloadError(
                f"a prompt of {length} tokens out of a text of {len(self.tokens)}; allowed: no "
                "longer than the text"
            )
        begin = int(random.integers(len(self.tokens) - length, endpoint=True))
        return list(self.tokens[begin : begin + length])


Prompts = RandomPrompts | TextPrompts


def plan(
    arrivals: Sequence[Arrival], prompts: Prompts, random: np.random.Generator
) -> list[Planned]:
    """The same requests, seeds included, for the same state of `random`."""
    return [
        Planned(
            arrival.seconds,
            prompts.prompt(arrival.prompt_tokens, random),
            arrival.output_tokens,
            int(random.integers(1 << 31)),
        )
        for arrival in arrivals
    ]
