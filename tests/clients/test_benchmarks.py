"""Two more benchmarks of others, unmodified: guidellm, and the client of `vllm bench serve`.

Both read what was used from each event of a stream, and vLLM's reads from /metrics what
speculation did meanwhile. In the long tier alone: vLLM's environment is of some gigabytes.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import installed
from cluster import TARGET, Cluster

REQUESTS, INPUT_TOKENS, OUTPUT_TOKENS, SECONDS = 6, 40, 16, 240
# Longer than the targets' loads take to reach the gateway's metrics.
LASTING = 40

pytestmark = pytest.mark.skipif(
    os.environ.get("SPECFABRIC_TEST_TIER") != "long",
    reason="only in the long tier: SPECFABRIC_TEST_TIER=long",
)


def run_guidellm(served: Cluster, folder: Path, backend: Mapping[str, Any]) -> dict[str, Any]:
    """What guidellm says of its one benchmark."""
    program = installed.client_dir("guidellm") / "bin" / "guidellm"
    version = installed.run_client([program, "--version"], {}, folder, SECONDS)
    installed.met("guidellm", version.split()[-1])
    asked = {
        "backend": {"kind": "openai_http", "target": served.url, **backend},
        "profile": {"kind": "concurrent", "streams": [2]},
        "constraints": [{"kind": "max_requests", "count": REQUESTS}],
        "tokenizer": {"kind": "huggingface_auto", "model": str(TARGET)},
        "data": [
            {
                "kind": "synthetic_text",
                "prompt_tokens": INPUT_TOKENS,
                "output_tokens": OUTPUT_TOKENS,
            }
        ],
        "outputs": [{"kind": "json", "path": str(folder / "report.json")}],
    }
    (folder / "scenario.json").write_text(json.dumps({"spec": asked}))
    command = [str(program), "run", "-c", f"{folder}/scenario.json", "--disable-console"]
    installed.run_client(command, {"HF_HUB_OFFLINE": "1"}, folder, SECONDS)
    [benchmark] = json.loads((folder / "report.json").read_text())["benchmarks"]
    return benchmark


@pytest.mark.parametrize("api", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
def test_guidellm(served: Cluster, tmp_path: Path, api: str) -> None:
    """It asks each event of a stream for what was used until then."""
    found = run_guidellm(served, tmp_path, {"request_format": api})
    totals = found["metrics"]["request_totals"]
    assert (totals["successful"], totals["errored"]) == (REQUESTS, 0), found["requests"]["errored"]
    for request in found["requests"]["successful"]:
        assert request["output_metrics"]["text_tokens"] == OUTPUT_TOKENS
        assert request["input_metrics"]["text_tokens"] >= INPUT_TOKENS


def run_vllm_bench(served: Cluster, folder: Path, *arguments: str) -> dict[str, Any]:
    """What it saves. Without a model it asks /v1/models, also where the tokenizer is."""
    place = installed.client_dir("vllm", "peers")
    command = [
        f"{place}/bin/python",
        str(Path(__file__).with_name("vllm_bench_run.py")),
        f"--base-url={served.url}",
        "--dataset-name=random",
        f"--random-input-len={INPUT_TOKENS}",
        f"--random-output-len={OUTPUT_TOKENS}",
        "--max-concurrency=2",
        "--ignore-eos",
        "--temperature=0",
        "--disable-tqdm",
        "--ready-check-timeout-sec=30",
        "--save-result",
        "--save-detailed",
        "--result-filename=found.json",
        *arguments,
    ]
    output = installed.run_client(command, {"HF_HUB_OFFLINE": "1"}, folder, SECONDS)
    found = json.loads((folder / "found.json").read_text())
    [version] = re.findall(r"^version=(\S+)$", output, re.M)
    installed.met("vllm bench serve", version)
    return {**found, "output": output}


@pytest.mark.parametrize(
    ("backend", "api"),
    [
        ("openai", "/v1/completions"),
        ("openai-chat", "/v1/chat/completions"),
        ("openai-responses", "/v1/responses"),
    ],
)
def test_vllm_bench_serve(served: Cluster, tmp_path: Path, backend: str, api: str) -> None:
    asked = [f"--backend={backend}", f"--endpoint={api}", f"--num-prompts={REQUESTS}"]
    found = run_vllm_bench(served, tmp_path, *asked)
    assert (found["completed"], found["failed"]) == (REQUESTS, 0), found["output"]
    assert found["model_id"] == found["tokenizer_id"] == str(TARGET)
    assert found["output_lens"] == [OUTPUT_TOKENS] * REQUESTS
    assert not any(found["errors"])


def test_vllm_bench_serve_reads_what_speculation_did(served: Cluster, tmp_path: Path) -> None:
    asked = ["--backend=openai", "--endpoint=/v1/completions", f"--num-prompts={LASTING}"]
    found = run_vllm_bench(served, tmp_path, *asked, "--request-rate=10")
    assert found["completed"] == LASTING
    assert "Acceptance length" in found["output"], found["output"]
    assert 1 <= found["spec_decode_acceptance_length"] <= OUTPUT_TOKENS
    assert 0 < found["spec_decode_accepted_tokens"] <= found["spec_decode_draft_tokens"]
