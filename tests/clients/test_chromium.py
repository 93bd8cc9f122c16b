"""A page of another origin in a real browser: it streams chats, calls a tool, reads an error."""

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

import fastjsonschema
import pytest

import installed
from client_cases import CALL
from cluster import start_cluster
from tools_template import serve_with_tools

TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": CALL}}]

PAGE = """<!doctype html><script>
async function ask(path, body) {
  return fetch("%(url)s" + path, {
    method: "POST",
    headers: {"Content-Type": "application/json", "Authorization": "Bearer sk-page",
              "X-Request-Id": "from-a-page"},
    body: JSON.stringify(body),
  });
}
async function stream(body) {
  const answer = await ask("/v1/chat/completions", {...body, stream: true});
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (let part = await reader.read(); !part.done; part = await reader.read()) text += part.value;
  const data = text.split("\\n").filter(line => line.startsWith("data: ")).map(l => l.slice(6));
  const ended = data.pop() == "[DONE]";
  const choices = data.map(event => JSON.parse(event).choices[0]);
  return {status: answer.status, id: answer.headers.get("x-request-id"), ended, choices};
}
async function callTool(messages, tools) {
  const asked = {messages, tools, temperature: 0, max_tokens: 200};
  const called = await stream({...asked, tool_choice: "required", parallel_tool_calls: false});
  const calls = [];
  let deltas = 0;
  for (const {delta} of called.choices) {
    for (const part of delta.tool_calls ?? []) {
      const called = calls[part.index] ??= {id: part.id, type: "function",
                                            function: {name: part.function.name, arguments: ""}};
      called.function.arguments += part.function.arguments ?? "";
      ++deltas;
    }
  }
  const results = calls.map(({id, function: {arguments: text}}) => (
      {role: "tool", tool_call_id: id, content: String(JSON.parse(text).days * 7)}));
  const told = [...messages, {role: "assistant", content: null, tool_calls: calls}, ...results];
  const answered = await stream({...asked, messages: told, max_tokens: 8, ignore_eos: true,
                                 tool_choice: "none"});
  return {calls, deltas, reason: called.choices.at(-1).finish_reason, answered};
}
async function run() {
  const messages = [{role: "user", content: "def main"}];
  const chat = await stream({messages, max_tokens: 12, temperature: 0, ignore_eos: true});
  const refused = await ask("/v1/chat/completions", {messages: "none"});
  return {chat, called: await callTool(messages, %(tools)s), refused: refused.status,
          why: (await refused.json()).error.message};
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


def page(url: str) -> str:
    return PAGE % {"url": url, "tools": json.dumps(TOOLS)}


def test_a_page_streams_a_chat_where_it_may(site: Site, tmp_path: Path) -> None:
    """And a call of a tool, whose result it tells."""
    installed.program("chromium")
    with serve_with_tools(tmp_path, [f"--cors_origins={site.origin}"]) as cluster:
        site.page = page(cluster.url)
        found = site.visit(tmp_path / "allowed")
    assert "failed" not in found, found
    assert found["refused"] == 400 and "messages" in found["why"]
    called = found["called"]
    for chat in (found["chat"], called["answered"]):
        assert (chat["status"], chat["id"], chat["ended"]) == (200, "from-a-page", True)
        assert len(chat["choices"]) > 1
        assert "".join(choice["delta"].get("content") or "" for choice in chat["choices"])
        assert chat["choices"][-1]["finish_reason"] == "length"
    assert called["reason"] == "tool_calls"
    assert called["deltas"] > 1
    assert called["calls"]
    for call in called["calls"]:
        assert call["function"]["name"] == "get_weather"
        fastjsonschema.validate(CALL, json.loads(call["function"]["arguments"]))


def test_a_page_of_another_origin_reads_nothing(site: Site, tmp_path: Path) -> None:
    installed.program("chromium")
    flags = ["--cors_origins=https://another.example"]
    with start_cluster(tmp_path / "up.log", drafts=0, extra=flags) as cluster:
        site.page = page(cluster.url)
        assert "Failed to fetch" in site.visit(tmp_path / "refused")["failed"]
