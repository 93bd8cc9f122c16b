"""What docs/api.md says of clients' versions."""

from __future__ import annotations

import re

from installed import ROOT

# As scripts/versions.env calls them.
NAMES = {
    "openai (Python)": "OPENAI",
    "openai (Node.js)": "OPENAI_NODE",
    "anthropic": "ANTHROPIC",
    "instructor": "INSTRUCTOR",
    "langchain-openai": "LANGCHAIN_OPENAI",
    "openai-agents": "OPENAI_AGENTS",
    "pydantic-ai-slim": "PYDANTIC_AI",
    "ai": "AI_SDK",
    "@ai-sdk/openai-compatible": "AI_SDK_OPENAI_COMPATIBLE",
    "@ai-sdk/openai": "AI_SDK_OPENAI",
    "litellm": "LITELLM",
    "llama-index-llms-openai-like": "LLAMA_INDEX_OPENAI_LIKE",
    "outlines": "OUTLINES",
    "smolagents": "SMOLAGENTS",
}


def test_the_table_has_the_versions_that_run() -> None:
    pinned = dict(
        re.findall(r"^(\w+)_VERSION=(.+)$", (ROOT / "scripts/versions.env").read_text(), re.M)
    )
    _, _, section = (ROOT / "docs/api.md").read_text().partition("\n## Clients\n")
    rows = re.findall(r"^\| (.+?) \| (\d[\d.]+) \|", section.partition("\n## ")[0], re.M)
    told = {
        name: version
        for name in NAMES
        for cell, version in rows
        if re.match(re.escape(name) + r"(,| \(Vercel|$)", cell.replace("`", ""))
    }
    assert len(rows) == len(NAMES)
    assert told == {name: pinned[key] for name, key in NAMES.items()}
