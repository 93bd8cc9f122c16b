"""What browsers, proxies and routers meet at the gateway's port: TLS, keys, CORS, metrics."""

from __future__ import annotations

import json
import re
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from cluster import TARGET, Cluster, Process, free_address, start_target, started, wait_until
from exposition import families_of, value_of

PAGE = "https://page.example"
KEY = "sk-of-a-page"


@dataclass
class Edge:
    """A gateway with TLS, keys, CORS and an access log, and the cluster behind it."""

    cluster: Cluster
    process: Process
    listen: str
    trust: ssl.SSLContext

    def client(self, **headers: str) -> httpx.Client:
        return httpx.Client(
            base_url=f"https://{self.listen}",
            timeout=120,
            verify=self.trust,
            trust_env=False,
            headers=headers,
        )


def make_certificate(folder: Path) -> tuple[Path, Path]:
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1"
    names = ["-subj", "/CN=gateway", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(
        [*command.split(), *names, "-keyout", str(key), "-out", str(cert)],
        check=True,
        capture_output=True,
    )
    return cert, key


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edge]:
    folder = tmp_path_factory.mktemp("edge")
    cert, key = make_certificate(folder)
    keys = folder / "keys"
    keys.write_text(f"# of the page\n{KEY}\n")
    target_flags = ["--dtype=float32", "--speculation=always"]
    with start_target(folder, "", TARGET, [], target_flags) as cluster:
        listen = free_address()
        arguments = [
            "gateway",
            f"--model={TARGET}",
            f"--listen={listen}",
            f"--targets={cluster.targets[0].listen}",
            f"--tls_cert={cert}",
            f"--tls_key={key}",
            f"--api_key_file={keys}",
            f"--cors_origins={PAGE}",
            "--served_model_name=first, second",
            "--access_log",
            "--log_level=warning",
        ]
        with started(folder / "edge.log", arguments) as process:
            trust = ssl.create_default_context(cafile=str(cert))
            edge = Edge(cluster, process, listen, trust)

            def ready() -> bool:
                try:
                    with edge.client() as client:
                        return client.get("/readyz").status_code == 200
                except httpx.TransportError:
                    return False

            wait_until(ready, "the gateway is ready")
            yield edge


def body(**more: object) -> dict[str, object]:
    return {"model": "second", "prompt": "a b a b a b", "max_tokens": 24, "seed": 1, **more}


def test_a_page_streams_a_completion(edge: Edge) -> None:
    """What a browser does for fetch() of another origin: a preflight, then the request."""
    asked = {
        "Origin": PAGE,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,x-request-id",
    }
    with edge.client() as client:
        preflight = client.options("/v1/completions", headers=asked)
    assert preflight.status_code == 204
    assert preflight.headers["access-control-allow-origin"] == PAGE
    allowed = preflight.headers["access-control-allow-headers"].split(",")
    assert {"authorization", "content-type", "x-request-id"} <= set(allowed)

    headers = {"Origin": PAGE, "Authorization": f"Bearer {KEY}", "X-Request-Id": "page-1"}
    with (
        edge.client(**headers) as client,
        client.stream("POST", "/v1/completions", json=body(stream=True)) as response,
    ):
        assert response.status_code == 200
        assert response.headers["access-control-allow-origin"] == PAGE
        assert response.headers["x-request-id"] == "page-1"
        assert response.headers["x-accel-buffering"] == "no"
        assert response.headers["cache-control"] == "no-cache"
        events = [line for line in response.iter_lines() if line.startswith("data: ")]
    assert events[-1] == "data: [DONE]"
    assert json.loads(events[0].removeprefix("data: "))["model"] == "first"


def test_keys(edge: Edge) -> None:
    with edge.client() as client:
        for headers in ({}, {"Authorization": "Bearer sk-other"}, {"x-api-key": "sk"}):
            refused = client.post("/v1/completions", json=body(), headers=headers)
            assert refused.status_code == 401
            assert refused.json()["error"]["code"] == "invalid_api_key"
        assert client.get("/metrics").status_code == 200
        for headers in ({"Authorization": f"Bearer {KEY}"}, {"x-api-key": KEY}):
            names = client.get("/v1/models", headers=headers).json()["data"]
            assert [model["id"] for model in names] == ["first", "second"]


def test_the_access_log(edge: Edge) -> None:
    with edge.client(**{"x-api-key": KEY, "X-Request-Id": "in-the-log"}) as client:
        assert client.post("/v1/completions", json=body()).status_code == 200
    wait_until(lambda: "in-the-log" in edge.process.log_text(), "the request is logged")
    [line] = [line for line in edge.process.log_text().splitlines() if "in-the-log" in line]
    form = r"access method=POST path=/v1/completions status=200 bytes=\d+ ms=[\d.]+ request_id=\S+ "
    assert re.search(form + "tenant=[0-9a-f]{16}$", line), line
    assert KEY not in edge.process.log_text()


def test_routers_read_the_targets_load_at_the_gateway(edge: Edge) -> None:
    cluster = edge.cluster
    (target,) = cluster.targets
    gateway = cluster.gateway.listen
    cluster.complete(prompt="a b a b a b a b", max_tokens=40, temperature=0, ignore_eos=True)
    names = ["num_drafts", "num_draft_tokens", "num_accepted_tokens"]
    for name in [f"vllm:spec_decode_{name}_total" for name in names]:
        counted = value_of(target.admin, name)
        assert counted > 0, name
        wait_until(lambda: value_of(gateway, name) == counted, f"{name} is {counted}")  # noqa: B023
    by_position = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    assert value_of(gateway, by_position) == value_of(target.admin, by_position)
    labels = {"engine": "0", "model_name": cluster.model}
    gauges = ["num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"]
    wait_until(
        lambda: all(value_of(gateway, f"vllm:{name}", **labels) == 0 for name in gauges),
        "the target is idle again",
    )
    [info] = [
        sample.labels
        for family in families_of(gateway)
        for sample in family.samples
        if sample.name == "vllm:cache_config_info"
    ]
    tokens = int(info["block_size"]) * int(info["num_gpu_blocks"])
    assert tokens == value_of(target.admin, "specfabric_target_kv_tokens")


def test_the_load_of_a_running_request(edge: Edge) -> None:
    gateway = edge.cluster.gateway.listen
    stream = edge.cluster.stream(prompt="a", max_tokens=1500, seed=1, ignore_eos=True)
    next(stream)
    wait_until(lambda: value_of(gateway, "vllm:num_requests_running") == 1, "it is counted")
    assert 0 < value_of(gateway, "vllm:kv_cache_usage_perc") < 1
    stream.close()
    wait_until(lambda: value_of(gateway, "vllm:num_requests_running") == 0, "it is gone")
