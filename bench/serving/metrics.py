"""From requests' times to the table of `vllm bench serve`, by its definitions.

They are those of `calculate_metrics` in vLLM's vllm/benchmarks/serve.py, on the times that
`async_request_openai_completions` (vllm/benchmarks/lib/endpoint_request_func.py) takes:

- TTFT: from sending a request to its first event with a choice.
- E2EL: to its last event with a choice; `usage` and [DONE] come after it.
- TPOT: (E2EL - TTFT) / (output tokens - 1), of requests with more than one token.
- ITL: the times between such events. An event counts once, however many tokens it carries: under
  speculation it carries all that a round committed, so that ITL is then the time of a round, and
  TPOT is the one to compare.
- Throughputs: over the whole run's duration, of the requests that succeeded alone.
- Goodput: requests a second that kept every objective named; TPOT is 0 for one token.
- Percentiles interpolate linearly, as NumPy's do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bench.serving.client import Outcome

OBJECTIVES = ("ttft", "tpot", "e2el")


@dataclass(frozen=True)
class Distribution:
    """Milliseconds; zeros where there was nothing to take them of."""

    mean: float
    median: float
    p99: float


@dataclass(frozen=True)
class Summary:
    """One run. Throughputs are per second."""

    successful: int
    failed: int
    duration_s: float
    input_tokens: int
    output_tokens: int
    request_throughput: float
    output_throughput: float
    total_throughput: float
    goodput: float | None  # None: no objective was named
    peak_concurrent: int
    ttft_ms: Distribution
    tpot_ms: Distribution
    itl_ms: Distribution
    e2el_ms: Distribution
    accepted_per_round: float | None  # None: the server tells nothing of speculation


def ttft(outcome: Outcome) -> float:
    return outcome.chunks[0] - outcome.start


def latency(outcome: Outcome) -> float:
    return outcome.chunks[-1] - outcome.start


def tpot(outcome: Outcome) -> float:
    if outcome.output_tokens <= 1:
        return 0.0
    return (latency(outcome) - ttft(outcome)) / (outcome.output_tokens - 1)


def peak_concurrent(outcomes: Sequence[Outcome]) -> int:
    """The most requests under way at once; one that ends makes room for one that starts then."""
    changes = [(o.start, 1) for o in outcomes] + [(o.chunks[-1], -1) for o in outcomes]
    peak = now = 0
    for _, change in sorted(changes):
        now += change
        peak = max(peak, now)
    return peak


def _distribution(seconds: Sequence[float]) -> Distribution:
    ms = 1000 * np.asarray(seconds if len(seconds) else [0.0])
    return Distribution(float(ms.mean()), float(np.median(ms)), float(np.percentile(ms, 99)))


def _good(outcome: Outcome, objectives: dict[str, float]) -> bool:
    seconds = {"ttft": ttft(outcome), "tpot": tpot(outcome), "e2el": latency(outcome)}
    return all(1000 * seconds[name] <= limit for name, limit in objectives.items())


def _accepted_per_round(outcomes: Sequence[Outcome]) -> float | None:
    told = [o.speculation for o in outcomes if o.speculation]
    rounds = sum(s["rounds"] for s in told)
    return sum(s["accepted"] for s in told) / rounds if rounds else None


def summarise(
    outcomes: Sequence[Outcome], duration_s: float, objectives: dict[str, float] | None = None
) -> Summary:
    """`objectives`: milliseconds by name, of OBJECTIVES."""
    done = [o for o in outcomes if o.succeeded]
    inputs, outputs = sum(o.prompt_tokens for o in done), sum(o.output_tokens for o in done)
    good = sum(_good(o, objectives) for o in done) / duration_s if objectives else None
    gaps = [late - early for o in done for early, late in zip(o.chunks, o.chunks[1:], strict=False)]
    return Summary(
        successful=len(done),
        failed=len(outcomes) - len(done),
        duration_s=duration_s,
        input_tokens=inputs,
        output_tokens=outputs,
        request_throughput=len(done) / duration_s,
        output_throughput=outputs / duration_s,
        total_throughput=(inputs + outputs) / duration_s,
        goodput=good,
        peak_concurrent=peak_concurrent(done),
        ttft_ms=_distribution([ttft(o) for o in done]),
        tpot_ms=_distribution([tpot(o) for o in done if o.output_tokens > 1]),
        itl_ms=_distribution(gaps),
        e2el_ms=_distribution([latency(o) for o in done]),
        accepted_per_round=_accepted_per_round(done),
    )


def table(summary: Summary) -> str:
    """In the order and by the names of `vllm bench serve`."""
    rows: list[tuple[str, str]] = [
        ("Successful requests:", f"{summary.successful}"),
        ("Failed requests:", f"{summary.failed}"),
        ("Benchmark duration (s):", f"{summary.duration_s:.2f}"),
        ("Total input tokens:", f"{summary.input_tokens}"),
        ("Total generated tokens:", f"{summary.output_tokens}"),
        ("Request throughput (req/s):", f"{summary.request_throughput:.2f}"),
    ]
    if summary.goodput is not None:
        rows.append(("Request goodput (req/s):", f"{summary.goodput:.2f}"))
    rows += [
        ("Output token throughput (tok/s):", f"{summary.output_throughput:.2f}"),
        ("Total token throughput (tok/s):", f"{summary.total_throughput:.2f}"),
        ("Peak concurrent requests:", f"{summary.peak_concurrent}"),
    ]
    if summary.accepted_per_round is not None:
        rows.append(("Draft tokens accepted per round:", f"{summary.accepted_per_round:.2f}"))
    lines = [" Serving Benchmark Result ".center(50, "=")]
    lines += [f"{name:<40}{value:<10}".rstrip() for name, value in rows]
    for heading, name, values in (
        ("Time to First Token", "TTFT", summary.ttft_ms),
        ("Time per Output Token (excl. 1st token)", "TPOT", summary.tpot_ms),
        ("Inter-token Latency (between events)", "ITL", summary.itl_ms),
        ("End-to-end Latency", "E2EL", summary.e2el_ms),
    ):
        lines.append(heading.center(50, "-"))
        lines.append(f"{f'Mean {name} (ms):':<40}{values.mean:.2f}")
        lines.append(f"{f'Median {name} (ms):':<40}{values.median:.2f}")
        lines.append(f"{f'P99 {name} (ms):':<40}{values.p99:.2f}")
    lines.append("=" * 50)
    return "\n".join(lines)
