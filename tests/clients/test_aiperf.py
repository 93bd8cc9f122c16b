"""NVIDIA's benchmark aiperf, unmodified: it asks for HEAD /metrics on a connection it keeps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import installed
from cluster import Cluster
from exposition import value_of

REQUESTS, OUTPUT_TOKENS, SECONDS = 4, 12, 240


@pytest.fixture(scope="module")
def aiperf() -> Path:
    program = installed.client_dir("aiperf") / "bin" / "aiperf"
    version = installed.run_client([program, "--version"], {}, program.parent, SECONDS)
    installed.met("aiperf", version.split()[-1])
    return program


@pytest.fixture(scope="module")
def artifacts(
    aiperf: Path, served: Cluster, hub: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Path, str, float]]:
    """One run's folder, what it printed, and how many chats the gateway answered."""
    folder = tmp_path_factory.mktemp("aiperf")
    name, labels = "specfabric_gateway_requests_total", {"code": "200"}
    chats = {**labels, "endpoint": "/v1/chat/completions"}
    before = value_of(served.gateway.listen, name, **chats)
    output = installed.run_client(
        [
            aiperf,
            "profile",
            f"--model={served.model}",
            f"--url={served.url}",
            "--endpoint-type=chat",
            "--streaming",
            f"--request-count={REQUESTS}",
            "--concurrency=2",
            "--isl=40",
            f"--osl={OUTPUT_TOKENS}",
            "--extra-inputs=ignore_eos:true",
            "--wait-for-model-timeout=60",
            "--wait-for-model-mode=both",
            "--ui=none",
            "--workers-max=1",
            "--record-processors=1",
            f"--artifact-dir={folder}",
        ],
        {"HF_HOME": str(hub), "HF_HUB_OFFLINE": "1"},
        folder,
        SECONDS,
    )
    yield folder, output, value_of(served.gateway.listen, name, **chats) - before


def test_a_benchmark_runs(artifacts: tuple[Path, str, float], served: Cluster) -> None:
    folder, output, answered = artifacts
    assert f"Model '{served.model}' ready" in output, output  # by GET /v1/models
    assert answered == REQUESTS + 1  # and one that asks whether the model is ready
    records = [json.loads(line) for line in (folder / "profile_export.jsonl").open()]
    assert len(records) == REQUESTS
    for record in records:
        assert record.get("error") is None
        metrics = {key: value["value"] for key, value in record["metrics"].items()}
        # Counted by the client from the text, and by the server.
        assert metrics["usage_completion_tokens"] == OUTPUT_TOKENS
        assert metrics["usage_prompt_tokens"] > metrics["input_sequence_length"]
        assert metrics["time_to_first_token"] > 0


def test_what_speculation_did_is_read_from_the_answers(
    artifacts: tuple[Path, str, float],
) -> None:
    """As vLLM's: the benchmark checks that the numbers fit together, or drops them."""
    folder, _, _ = artifacts
    for record in map(json.loads, (folder / "profile_export.jsonl").open()):
        found = record["spec_decode_acceptance"]
        histogram = {int(j): rounds for j, rounds in found["acceptance_histogram"].items()}
        assert sum(histogram.values()) == found["num_spec_steps"] > 0
        metrics = {key: value["value"] for key, value in record["metrics"].items()}
        accepted = sum(j * rounds for j, rounds in histogram.items())
        length = 1 + accepted / found["num_spec_steps"]
        assert metrics["spec_decode_acceptance_length"] == pytest.approx(length)
        # The first token is the prompt's; a round without a draft emits one.
        assert accepted + found["num_spec_steps"] <= OUTPUT_TOKENS - 1


def test_the_servers_metrics_are_found(artifacts: tuple[Path, str, float], served: Cluster) -> None:
    """By themselves, under the address that the requests go to."""
    folder, output, _ = artifacts
    assert "no Prometheus endpoints reachable" not in output, output
    exported: dict[str, Any] = json.loads((folder / "server_metrics_export.json").read_text())
    assert exported["summary"]["endpoints_successful"] == [f"{served.url}/metrics"]
    # Without _total, as Prometheus' parsers name a counter.
    assert "specfabric_gateway_requests" in exported["metrics"]
