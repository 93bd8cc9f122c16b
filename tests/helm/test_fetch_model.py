"""The init container's download, against a hub on loopback that misbehaves as told."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rendered_chart import CHART, find, pod_spec, render

WEIGHTS = os.urandom(300_000)
FILES = {
    "config.json": b"{}",
    "tokenizer.json": b'{"a": 1}',
    "model.safetensors": WEIGHTS,
    "README.md": b"not wanted",
    "pytorch_model.bin": b"not wanted either",
    "onnx/config.json": b"nor this",
}


@dataclass
class FakeHub:
    """A hub's answers, and what it was asked."""

    url: str = ""
    cut: int = 0  # answers of the weights that end too early
    spoil: int = 0  # answers of the weights with other bytes
    token: str | None = None  # what it wants to be shown
    asked: list[str] = field(default_factory=list)
    ranges: list[str] = field(default_factory=list)


def handler(hub: FakeHub) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            hub.asked.append(self.path)
            if hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
                self.send_error(401)
                return
            if self.path == "/api/models/org/model/tree/v1?recursive=true":
                self.answer(200, json.dumps(self.tree()).encode())
                return
            name = self.path.removeprefix("/org/model/resolve/v1/")
            if name not in FILES:
                self.send_error(404)
                return
            self.file(FILES[name], name.endswith("safetensors"))

        def tree(self) -> list[dict[str, object]]:
            listed: list[dict[str, object]] = [{"type": "directory", "path": "onnx", "size": 0}]
            for path, content in FILES.items():
                entry: dict[str, object] = {"type": "file", "path": path, "size": len(content)}
                if path.endswith("safetensors"):
                    entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest()}
                listed.append(entry)
            return listed

        def file(self, content: bytes, weights: bool) -> None:
            begin = 0
            if wanted := self.headers.get("Range"):
                hub.ranges.append(wanted)
                begin = int(wanted.removeprefix("bytes=").rstrip("-"))
            body = content[begin:]
            if weights and hub.spoil:
                hub.spoil -= 1
                body = bytes(len(body))
            if weights and hub.cut:
                hub.cut -= 1
                self.answer(206 if begin else 200, body[: len(body) // 2], len(body))
                self.close_connection = True
                return
            self.answer(206 if begin else 200, body)

        def answer(self, status: int, body: bytes, length: int | None = None) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body) if length is None else length))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    fake = FakeHub()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler(fake)) as server:
        fake.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield fake
        finally:
            server.shutdown()
            thread.join()


def fetch(
    hub: FakeHub, folder: Path, *more: str, token: str = ""
) -> subprocess.CompletedProcess[str]:
    """Runs it as the rendered init container does."""
    source = {"endpoint": hub.url, "repository": "org/model", "revision": "v1"}
    model = {"hostPath": None, "name": "model", "hub": source}
    documents = render("laptop", {"target": {"model": model}})
    [init] = pod_spec(find(documents, "StatefulSet", "-target"))["initContainers"]
    assert init["command"] == ["python3", "/opt/scripts/fetch_model.py"]
    arguments = [a.replace("/models/model", str(folder)) for a in init["args"]]
    return subprocess.run(
        [sys.executable, str(CHART / "files/fetch_model.py"), *arguments, "--pause=0.01", *more],
        env={**os.environ, "HUB_TOKEN": token, "no_proxy": "*"},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_checkpoint_is_brought(hub: FakeHub, tmp_path: Path) -> None:
    done = fetch(hub, tmp_path / "m")
    assert done.returncode == 0, done.stderr
    assert {f.name for f in (tmp_path / "m").iterdir()} == {
        "config.json",
        "tokenizer.json",
        "model.safetensors",
    }
    assert (tmp_path / "m/model.safetensors").read_bytes() == WEIGHTS


def test_a_gateway_gets_no_weights(hub: FakeHub, tmp_path: Path) -> None:
    done = fetch(hub, tmp_path, "--without_weights")
    assert done.returncode == 0, done.stderr
    assert {f.name for f in tmp_path.iterdir()} == {"config.json", "tokenizer.json"}


def test_what_is_there_is_not_brought_again(hub: FakeHub, tmp_path: Path) -> None:
    assert fetch(hub, tmp_path).returncode == 0
    hub.asked.clear()
    assert fetch(hub, tmp_path).returncode == 0
    assert hub.asked == ["/api/models/org/model/tree/v1?recursive=true"]


def test_a_cut_download_goes_on_where_it_was(hub: FakeHub, tmp_path: Path) -> None:
    hub.cut = 2
    done = fetch(hub, tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "model.safetensors").read_bytes() == WEIGHTS
    assert hub.ranges == ["bytes=150000-", "bytes=225000-"]


def test_wrong_bytes_are_brought_again(hub: FakeHub, tmp_path: Path) -> None:
    hub.spoil = 1
    done = fetch(hub, tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "model.safetensors").read_bytes() == WEIGHTS


def test_wrong_bytes_every_time_end_it(hub: FakeHub, tmp_path: Path) -> None:
    hub.spoil = 100
    done = fetch(hub, tmp_path)
    assert done.returncode == 1
    assert "model.safetensors" in done.stderr
    assert not (tmp_path / "model.safetensors").exists(), "a wrong file has the right name"


def test_the_token_is_shown_to_the_hub(hub: FakeHub, tmp_path: Path) -> None:
    hub.token = "secret"
    refused = fetch(hub, tmp_path)
    assert refused.returncode == 1
    assert "401" in refused.stderr
    assert fetch(hub, tmp_path, token="secret").returncode == 0


def test_an_unknown_repository_is_one_line(hub: FakeHub, tmp_path: Path) -> None:
    done = fetch(hub, tmp_path, "--repository=org/other")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "org/other" in done.stderr
