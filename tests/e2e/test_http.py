"""HTTP through raw sockets: HEAD, request targets, half-closed connections, ambiguous requests."""

from __future__ import annotations

import http.client
import json
import socket
import urllib.parse

import pytest

from cluster import Cluster


def connect(cluster: Cluster) -> socket.socket:
    host, _, port = cluster.gateway.listen.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=60)


def exchange(cluster: Cluster, request: bytes, *, half_close: bool = False) -> bytes:
    """All that is answered until the gateway closes."""
    with connect(cluster) as connection:
        connection.sendall(request)
        if half_close:
            connection.shutdown(socket.SHUT_WR)
        answer = b""
        while block := connection.recv(1 << 16):
            answer += block
        return answer


def get(target: str, headers: str = "Host: x\r\n") -> bytes:
    return f"GET {target} HTTP/1.1\r\n{headers}Connection: close\r\n\r\n".encode()


def post(body: dict[str, object], headers: str = "Host: x\r\n") -> bytes:
    text = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\n{headers}Content-Length: {len(text)}\r\n\r\n"
    return head.encode() + text


def test_head_keeps_the_connection_in_step(demo_cluster: Cluster) -> None:
    """http.client, like most, takes a body behind HEAD for the next answer."""
    host, _, port = demo_cluster.gateway.listen.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    paths = ["/health", "/livez", "/readyz", "/metrics", "/v1/models", "/version", "/nothing"]
    for path in [*paths, "/v1/completions"]:
        connection.request("HEAD", path)
        head = connection.getresponse()
        assert head.read() == b""
        expected = {"/nothing": 404, "/v1/completions": 405}.get(path, 200)
        assert head.status == expected, path
    connection.request("GET", "/livez")
    assert connection.getresponse().read() == b"ok\n"


def test_paths_are_decoded(demo_cluster: Cluster) -> None:
    escaped = "".join(f"%{byte:02X}" for byte in demo_cluster.model.encode())
    quoted = urllib.parse.quote(demo_cluster.model)
    for target in (f"/v1/models/{escaped}", f"/v1/models/{quoted}", "http://host/v1/models"):
        assert exchange(demo_cluster, get(target)).startswith(b"HTTP/1.1 200"), target
    for target in ("/%zz", "/livez%00", "*", "host:443"):
        assert exchange(demo_cluster, get(target)).startswith(b"HTTP/1.1 400"), target


@pytest.mark.parametrize("headers", ["", "Host: x\r\nHost: x\r\n"])
def test_one_host(demo_cluster: Cluster, headers: str) -> None:
    assert exchange(demo_cluster, get("/livez", headers)).startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize("stream", [False, True])
def test_half_closed_clients_are_answered(demo_cluster: Cluster, stream: bool) -> None:
    body: dict[str, object] = {"prompt": "def f(", "max_tokens": 8, "stream": stream}
    answer = exchange(demo_cluster, post(body), half_close=True)
    assert answer.startswith(b"HTTP/1.1 200")
    assert (b"data: [DONE]" if stream else b'"finish_reason":"length"') in answer


def test_compressed_bodies_are_refused(demo_cluster: Cluster) -> None:
    answer = exchange(demo_cluster, post({}, "Host: x\r\nContent-Encoding: gzip\r\n"))
    assert answer.startswith(b"HTTP/1.1 415")
    assert b"identity" in answer


@pytest.mark.parametrize("rubbish", [b"\0rubbish", b"\0", b" x", b"{}", b"\0\r\n"])
def test_nothing_may_follow_the_json(demo_cluster: Cluster, rubbish: bytes) -> None:
    text = json.dumps({"prompt": "a", "max_tokens": 1}).encode() + rubbish
    head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    answer = exchange(demo_cluster, f"{head}Content-Length: {len(text)}\r\n\r\n".encode() + text)
    assert answer.startswith(b"HTTP/1.1 400")
