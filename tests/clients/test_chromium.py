"""A page of another origin in a real browser: it streams a chat and reads an error."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import installed
from cluster import start_cluster

PAGE = """<!doctype html><script>
async function ask(path, body) {
  return fetch("%(url)s" + path, {
    method: "POST",
    headers: {"Content-Type": "application/json", "Authorization": "Bearer sk-page",
              "X-Request-Id": "from-a-page"},
    body: JSON.stringify(body),
  });
}
async function run() {
  const messages = [{role: "user", content: "def main"}];
  const asked = {messages, max_tokens: 12, temperature: 0, stream: true, ignore_eos: true};
  const answer = await ask("/v1/chat/completions", asked);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "", reads = 0;
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    text += part.value;
    ++reads;
  }
  const refused = await ask("/v1/chat/completions", {messages: "none"});
  return {status: answer.status, id: answer.headers.get("x-request-id"), text, reads,
          refused: refused.status, why: (await refused.json()).error.message};
}
run().catch(error => ({failed: String(error)})).then(
    found => fetch("/found", {method: "POST", body: JSON.stringify(found)}));
</script>"""


class Site:
    """Serves the page at an origin of its own, and takes what its script has found."""

    def __init__(self) -> None:
        self.found: queue.Queue[dict[str, Any]] = queue.Queue()
        self.page = ""
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200 if self.path == "/" else 404)
                self.send_header("Content-Type", "text/html")
                self.end_headers()
                self.wfile.write(site.page.encode() if self.path == "/" else b"")

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(204)
                self.end_headers()
                site.found.put(json.loads(body))

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.origin = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def visit(self, folder: Path) -> dict[str, Any]:
        """What the page's script finds in the browser."""
        command = [installed.program("chromium"), "--headless=new", "--no-sandbox"]
        command += ["--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={folder}"]
        folder.mkdir()
        with (folder / "chromium.log").open("wb") as log:
            browser = subprocess.Popen(
                [*command, f"{self.origin}/"], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
            try:
                return self.found.get(timeout=60)
            finally:
                browser.send_signal(signal.SIGTERM)
                browser.wait(30)


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    yield site
    site.server.shutdown()
    site.server.server_close()


def test_a_page_streams_a_chat_where_it_may(site: Site, tmp_path: Path) -> None:
    installed.program("chromium")
    flags = [f"--cors_origins={site.origin}"]
    with start_cluster(tmp_path / "up.log", drafts=0, extra=flags) as cluster:
        site.page = PAGE % {"url": cluster.url}
        found = site.visit(tmp_path / "allowed")
        assert found["status"] == 200, found
        assert found["id"] == "from-a-page"
        events = [line for line in found["text"].splitlines() if line.startswith("data: ")]
        assert events[-1] == "data: [DONE]"
        assert len(events) > 2
        assert found["refused"] == 400 and "messages" in found["why"]


def test_a_page_of_another_origin_reads_nothing(site: Site, tmp_path: Path) -> None:
    installed.program("chromium")
    flags = ["--cors_origins=https://another.example"]
    with start_cluster(tmp_path / "up.log", drafts=0, extra=flags) as cluster:
        site.page = PAGE % {"url": cluster.url}
        assert "Failed to fetch" in site.visit(tmp_path / "refused")["failed"]
