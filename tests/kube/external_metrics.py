"""A stand-in for a metrics adapter: the API external.metrics.k8s.io with one value of one's choice.

It is no adapter: it reads no Prometheus, it answers what the test tells it. What it shows is that
the autoscaler asks for the metric that the chart names, by the labels that the chart gives, and
does with the answer what the chart wants.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from kube import ControlPlane, wait_until

GROUP = "external.metrics.k8s.io/v1beta1"
MILLI = 1000


class ExternalMetrics:
    """Serves `value()` under any name; `asked` are the paths and selectors of the questions."""

    def __init__(self, value: Callable[[], float]) -> None:
        self.value = value
        self.asked: set[tuple[str, str]] = set()

    def answer(self, url: str) -> dict[str, object]:
        parts = urlsplit(url)
        path = parts.path.removeprefix(f"/apis/{GROUP}").strip("/")
        if not path:
            resource = {"name": "*", "namespaced": True, "kind": "ExternalMetricValueList"}
            return {
                "kind": "APIResourceList",
                "apiVersion": "v1",
                "groupVersion": GROUP,
                "resources": [{**resource, "singularName": "", "verbs": ["get"]}],
            }
        self.asked.add((path, parse_qs(parts.query).get("labelSelector", [""])[0]))
        item = {
            "metricName": path.split("/")[-1],
            "metricLabels": {},
            "timestamp": "2026-01-01T00:00:00Z",
            "value": f"{round(self.value() * MILLI)}m",
        }
        return {
            "kind": "ExternalMetricValueList",
            "apiVersion": GROUP,
            "metadata": {},
            "items": [item],
        }


def handler(metrics: ExternalMetrics) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(metrics.answer(self.path)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


@contextlib.contextmanager
def external_metrics(
    plane: ControlPlane, folder: Path, value: Callable[[], float]
) -> Iterator[ExternalMetrics]:
    """Serves on loopback, and makes the API server pass the API's questions on to it."""
    metrics = ExternalMetrics(value)
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"]
        + ["-days", "2", "-keyout", str(key), "-out", str(certificate)],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler(metrics)) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            with registered(plane, server.server_port):
                yield metrics
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def registered(plane: ControlPlane, port: int) -> Iterator[None]:
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "external-metrics", "namespace": "default"},
        "spec": {
            "type": "ExternalName",
            "externalName": "localhost",
            "ports": [{"port": port}],
        },
    }
    api = {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": "v1beta1.external.metrics.k8s.io"},
        "spec": {
            "group": "external.metrics.k8s.io",
            "version": "v1beta1",
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "insecureSkipTLSVerify": True,
            "service": {"name": "external-metrics", "namespace": "default", "port": port},
        },
    }
    plane.apply(service, api)
    try:
        wait_until(
            lambda: plane.run("kubectl", "get", "--raw", f"/apis/{GROUP}").returncode == 0,
            "the API is served",
        )
        yield
    finally:
        plane.kubectl("delete", "apiservice", "v1beta1.external.metrics.k8s.io")
        plane.kubectl("delete", "service", "-n", "default", "external-metrics")
