"""The load generator's figures, against the definitions written out and against known numbers."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest

from bench.serving.client import Outcome
from bench.serving.metrics import Summary, summarise, table

# Start, then the times of its events, tokens it was asked with, tokens it answered with.
RECORDED = [
    (0.0, [0.5, 1.0, 1.5], 10, 5),
    (0.25, [0.75], 20, 1),
    (1.5, [1.75, 2.0, 2.75, 3.0], 7, 9),
    (1.75, [4.0, 4.25], 3, 2),
]
DURATION = 5.0


def outcomes() -> list[Outcome]:
    good = [
        Outcome(start, list(chunks), inputs, outputs) for start, chunks, inputs, outputs in RECORDED
    ]
    failed = Outcome(0.0, [0.1, 4.9], 100, 100, error="the stream ended without [DONE]")
    return [*good[:2], failed, *good[2:]]


def summary(**objectives: float) -> Summary:
    return summarise(outcomes(), DURATION, objectives)


def percentile(values: list[float], percent: float) -> float:
    """By linear interpolation between the closest ranks."""
    ordered = sorted(values)
    rank = percent / 100 * (len(ordered) - 1)
    below, above = ordered[math.floor(rank)], ordered[math.ceil(rank)]
    return below + (above - below) * (rank - math.floor(rank))


def test_counts_and_throughputs_leave_failures_out() -> None:
    got = summary()
    assert (got.successful, got.failed) == (4, 1)
    assert (got.input_tokens, got.output_tokens) == (40, 17)
    assert got.request_throughput == pytest.approx(4 / 5)
    assert got.output_throughput == pytest.approx(17 / 5)
    assert got.total_throughput == pytest.approx(57 / 5)
    assert got.goodput is None


def test_latencies_by_the_definition() -> None:
    got = summary()
    ttfts = [chunks[0] - start for start, chunks, _, _ in RECORDED]
    latencies = [chunks[-1] - start for start, chunks, _, _ in RECORDED]
    tpots = [
        (latency - ttft) / (output - 1)
        for ttft, latency, (_, _, _, output) in zip(ttfts, latencies, RECORDED, strict=True)
        if output > 1
    ]
    gaps = [
        chunks[i] - chunks[i - 1] for _, chunks, _, _ in RECORDED for i in range(1, len(chunks))
    ]
    for values, seconds in (
        (got.ttft_ms, ttfts),
        (got.tpot_ms, tpots),
        (got.itl_ms, gaps),
        (got.e2el_ms, latencies),
    ):
        assert values.mean == pytest.approx(1000 * statistics.mean(seconds))
        assert values.median == pytest.approx(1000 * statistics.median(seconds))
        assert values.p99 == pytest.approx(1000 * percentile(seconds, 99))


def test_known_numbers() -> None:
    got = summary()
    # 1 s for 4 tokens; 1.25 s for 8; 0.25 s for 1. The one-token request has none.
    assert got.tpot_ms.median == pytest.approx(250)
    assert got.tpot_ms.mean == pytest.approx((250 + 156.25 + 250) / 3)
    # An event counts once, however many tokens it carries.
    assert got.itl_ms.mean == pytest.approx(1000 * (0.5 + 0.5 + 0.25 + 0.75 + 0.25 + 0.25) / 6)
    assert got.ttft_ms.mean == pytest.approx((500 + 500 + 250 + 2250) / 4)


def test_goodput_wants_every_objective() -> None:
    assert summary(ttft=500).goodput == pytest.approx(3 / 5)
    assert summary(tpot=200).goodput == pytest.approx(2 / 5)  # a single token takes 0
    assert summary(ttft=400, tpot=200).goodput == pytest.approx(1 / 5)
    assert summary(e2el=1).goodput == 0


def test_peak_is_what_counting_at_every_moment_finds() -> None:
    random = np.random.default_rng(1)
    spans = [(float(s), float(s + d)) for s, d in random.integers(1, 30, size=(60, 2))]
    found = summarise([Outcome(start, [end], 1, 1) for start, end in spans], 60.0)
    # Half-open: one that ends at a moment is not under way then.
    at_once = max(sum(start <= t < end for start, end in spans) for t, _ in spans)
    assert found.peak_concurrent == at_once


def test_nothing_succeeded() -> None:
    got = summarise([Outcome(0.0, error="refused")], 1.0, {"ttft": 1})
    assert (got.successful, got.failed, got.output_throughput, got.goodput) == (0, 1, 0, 0)
    assert got.ttft_ms.p99 == 0
    assert "Failed requests:                        1" in table(got)


def test_acceptance_is_over_all_rounds() -> None:
    told = [
        Outcome(0.0, [1.0], 1, 4, {"rounds": 2, "accepted": 2}),
        Outcome(0.0, [1.0], 1, 9, {"rounds": 6, "accepted": 3}),
    ]
    assert summarise(told, 1.0).accepted_per_round == pytest.approx(5 / 8)
    assert summary().accepted_per_round is None
