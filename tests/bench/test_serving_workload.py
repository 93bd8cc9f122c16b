"""The load generator's arrivals, lengths and prompts."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from bench.serving import workload

COUNT = 20_000


def gaps(rate: float, burstiness: float) -> np.ndarray:
    times = workload.arrival_times(COUNT, rate, burstiness, np.random.default_rng(3))
    return np.diff([0.0, *times])


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_have_the_rate_and_the_variance_of_their_burstiness(burstiness: float) -> None:
    found = gaps(5.0, burstiness)
    assert found.min() >= 0
    assert found.sum() == pytest.approx(COUNT / 5.0)
    # Of a gamma distribution of shape k: standard deviation over mean is 1 / sqrt(k).
    assert found.std() / found.mean() == pytest.approx(1 / math.sqrt(burstiness), rel=0.05)


def test_poisson_gaps_are_exponential() -> None:
    found = gaps(2.0, 1.0)
    for seconds in (0.1, 0.5, 1.0, 2.0):
        assert (found > seconds).mean() == pytest.approx(math.exp(-2 * seconds), abs=0.015)


def test_regular_and_at_once() -> None:
    random = np.random.default_rng(0)
    assert workload.arrival_times(4, 2.0, math.inf, random) == pytest.approx([0.5, 1, 1.5, 2])
    assert workload.arrival_times(3, math.inf, 1.0, random) == [0, 0, 0]


def test_lengths_fill_their_range() -> None:
    random = np.random.default_rng(0)
    assert workload.lengths(5, 7, 0.0, random) == [7] * 5
    found = workload.lengths(2000, 10, 0.5, random)
    assert set(found) == set(range(5, 16))
    assert min(workload.lengths(100, 2, 3.0, random)) == 1


def test_trace_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("seconds,prompt,output\n0,10,5\n\n0.5, 20, 1\n0.5,3,4\n")
    assert workload.read_trace(path) == [
        workload.Arrival(0, 10, 5),
        workload.Arrival(0.5, 20, 1),
        workload.Arrival(0.5, 3, 4),
    ]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("0,10\n", "line 1"),
        ("0,10,5\n1,0,5\n", "line 2"),
        ("1,10,5\n0,10,5\n", "line 2"),
        ("0,10,5\nx,10,5\n", "line 2"),
        ("nan,10,5\n", "line 1"),
        ("0,10,5,6\n", "line 1"),
        ("a,b,c\n", "no line"),
    ],
)
def test_refused_traces(tmp_path: Path, text: str, names: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(workload.WorkloadError, match=names) as refused:
        workload.read_trace(path)
    assert "\n" not in str(refused.value)


def test_plans_repeat_and_prompts_come_from_the_text() -> None:
    arrivals = [workload.Arrival(i, 4, 2) for i in range(50)]
    prompts = workload.TextPrompts(range(100, 120))
    first, second = (workload.plan(arrivals, prompts, np.random.default_rng(5)) for _ in range(2))
    assert first == second
    assert len({request.seed for request in first}) == 50
    for request in first:
        begin = request.prompt[0]
        assert request.prompt == list(range(begin, begin + 4))
        assert 100 <= begin <= 116
    assert len({request.prompt[0] for request in first}) > 10
    with pytest.raises(workload.WorkloadError, match="21 tokens out of a text of 20"):
        prompts.prompt(21, np.random.default_rng(0))
    assert set(workload.RandomPrompts(3).prompt(100, np.random.default_rng(0))) == {0, 1, 2}
