"""The demo models with a chat template that shows tools; their own shows none."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from cluster import DRAFT, TARGET, Cluster, start_cluster

# As the templates of Hermes and Qwen look.
TEMPLATE = """\
{%- if tools %}{% for tool in tools %}{{ tool | tojson }}\\n{% endfor %}\
Call as <tool_call>{"name": ..., "arguments": ...}</tool_call>\\n{% endif %}\
{%- for message in messages %}{{ message.role }}: {{ message.content }}\
{%- for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>\
{%- endfor %}\\n{% endfor %}\
{%- if add_generation_prompt %}assistant: {% endif %}"""


@contextlib.contextmanager
def serve_with_tools(folder: Path, extra: Sequence[str] = ()) -> Iterator[Cluster]:
    """A cluster with a draft, its files in `folder`."""
    for name, model in (("target", TARGET), ("draft", DRAFT)):
        shutil.copytree(model, folder / name)
        (folder / name / "chat_template.jinja").write_text(TEMPLATE)
    target, draft = folder / "target", folder / "draft"
    with start_cluster(folder / "up.log", target, draft, drafts=1, extra=extra) as cluster:
        yield cluster
