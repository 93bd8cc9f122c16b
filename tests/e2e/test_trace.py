"""A request's spans in all the processes it went through: one trace, one clock, one tree."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cluster import Cluster, start_cluster, wait_until
from exposition import value_of

TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = "b7ad6b7169203331"


@dataclass
class Collector:
    """Takes OTLP over HTTP as a collector does, and keeps the spans by service."""

    port: int = 0
    spans: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    # Process id and address of each service.instance.id.
    instances: dict[str, set[tuple[str, str]]] = field(default_factory=dict)


@contextlib.contextmanager
def collector() -> Iterator[Collector]:
    found = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            assert self.headers["Content-Type"] == "application/json"
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            for resource in body["resourceSpans"]:
                attributes = {a["key"]: a["value"] for a in resource["resource"]["attributes"]}
                service = attributes["service.name"]["stringValue"]
                instance = attributes["service.instance.id"]["stringValue"]
                about = (
                    attributes["process.pid"]["intValue"],
                    attributes["specfabric.listen"]["stringValue"],
                )
                found.instances.setdefault(instance, set()).add(about)
                for scope in resource["scopeSpans"]:
                    found.spans += [(service, span) for span in scope["spans"]]
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def events_in(file: Path) -> list[dict[str, Any]]:
    """Of a list whose closing bracket is missing, as the format allows."""
    return list(json.loads(file.read_text().rstrip().removesuffix(",") + "]"))


def ask(cluster: Cluster, traceparent: str | None) -> None:
    headers = {"x-request-id": "asked"}
    if traceparent is not None:
        headers["traceparent"] = traceparent
    body = {"model": cluster.model, "prompt": "def main", "max_tokens": 24, "ignore_eos": True}
    with cluster.client() as client:
        answer = client.post("/v1/completions", json=body, headers=headers)
    assert answer.status_code == 200, answer.text


def test_one_request_is_one_trace(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    with collector() as found:
        flags = [f"--span_file={file}", f"--otlp_endpoint=http://127.0.0.1:{found.port}"]
        with start_cluster(tmp_path / "up.log", drafts=1, extra=flags) as cluster:
            ask(cluster, f"00-{TRACE}-{CALLER}-01")
            ask(cluster, f"00-{TRACE[::-1]}-{CALLER}-00")  # the caller does not record it

            def complete() -> bool:
                names = {span["name"] for _, span in found.spans}
                return names == {"request", "sequence", "draft_wait", "draft"}

            wait_until(complete, "the collector has every kind of span")
            for member in cluster.members:
                assert value_of(member.admin, "specfabric_trace_spans_total") > 0
                assert value_of(member.admin, "specfabric_trace_lost_spans_total") == 0

    assert {span["traceId"] for _, span in found.spans} == {TRACE}
    [request] = [s for service, s in found.spans if service == "specfabric-gateway"]
    assert request["parentSpanId"] == CALLER
    [sequence] = [s for _, s in found.spans if s["name"] == "sequence"]
    assert sequence["parentSpanId"] == request["spanId"]
    within = [s for _, s in found.spans if s["name"] in ("draft", "draft_wait")]
    assert {s["parentSpanId"] for s in within} == {sequence["spanId"]}

    def times(span: dict[str, Any]) -> tuple[int, int]:
        return int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])

    slack = 5_000_000  # the wall clock may be adjusted meanwhile
    for inner, outer in [(sequence, request), *((s, sequence) for s in within)]:
        (begin, end), (outer_begin, outer_end) = times(inner), times(outer)
        assert outer_begin - slack <= begin <= end <= outer_end + slack

    events = events_in(file)
    processes = {e["args"]["name"].split()[0] for e in events if e["ph"] == "M"}
    assert processes == {"gateway", "target", "draft"}
    traced = [e for e in events if e["ph"] == "b"]
    assert len(traced) == len(found.spans) == sum(e["ph"] == "e" for e in events)
    assert {e["id"] for e in traced} == {TRACE}
    steps = {e["name"] for e in events if e["ph"] == "X"}
    assert steps == {"step", "plan", "forward", "verify", "commit"}


def test_every_process_is_an_instance_of_its_own(tmp_path: Path) -> None:
    with collector() as found:
        flags = [f"--otlp_endpoint=http://127.0.0.1:{found.port}"]
        with start_cluster(tmp_path / "up.log", targets=2, drafts=2, extra=flags) as cluster:
            expected = {(str(member.pid), member.listen) for member in cluster.members}

            def all_seen() -> bool:
                ask(cluster, f"00-{TRACE}-{CALLER}-01")
                return len(found.instances) == len(expected)

            wait_until(all_seen, "the collector has heard of every process")
    assert all(len(abouts) == 1 for abouts in found.instances.values()), found.instances
    assert {about for abouts in found.instances.values() for about in abouts} == expected


def test_no_more_requests_are_traced_than_the_sample_says(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    flags = [f"--span_file={file}", "--trace_sample=0"]
    with start_cluster(tmp_path / "up.log", drafts=1, extra=flags) as cluster:
        ask(cluster, None)
    assert not [e for e in events_in(file) if e["ph"] == "b"]


def test_slow_requests_are_logged_with_their_trace(tmp_path: Path) -> None:
    flags = ["--slow_request=1us"]
    with start_cluster(tmp_path / "up.log", drafts=0, extra=flags) as cluster:
        ask(cluster, f"00-{TRACE}-{CALLER}-01")
        log = tmp_path / "up.log"
        wait_until(lambda: f"trace={TRACE}" in log.read_text(), "the request is logged")
    [line] = [line for line in log.read_text().splitlines() if "trace=" in line]
    assert "output_tokens=24" in line and "code=200" in line
    assert line.endswith("request_id=asked")
