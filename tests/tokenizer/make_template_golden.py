"""Writes tests/tokenizer/template_golden.json: small chat templates as Jinja2 renders them.

The environment is the one that Transformers compiles chat templates in. The expressions stand in
template_cases.json beside this file, grouped by subject; each is rendered as `{{ expression }}`.
Templates may also be given in full. Those under `differs` are known to come out otherwise here;
docs/tokenizer.md names them. Needs the Python packages transformers and jinja2; the result is
committed, so that the C++ tests need neither:

    python tests/tokenizer/make_template_golden.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformers.utils.chat_template_utils import _compile_jinja_template

HERE = Path(__file__).parent
GOLDEN = HERE / "template_golden.json"


def templates(cases: dict[str, Any]) -> list[str]:
    """Every template to render, in the file's order."""
    expressions = [text for group in cases["expressions"].values() for text in group]
    whole = [text for group in cases["templates"].values() for text in group]
    return [f"{{{{ {text} }}}}" for text in expressions] + whole


def render(source: str, context: dict[str, Any]) -> dict[str, str]:
    case = {"template": source}
    try:
        case["text"] = _compile_jinja_template(source).render(**context)
    except Exception as error:  # whatever is raised for the template is the golden answer
        case["error"] = f"{type(error).__name__}: {error}"
    return case


def main() -> None:
    cases = json.loads((HERE / "template_cases.json").read_text(encoding="utf-8"))
    context = {
        "messages": cases["messages"],
        "tools": None,
        "documents": None,
        "add_generation_prompt": False,
        **cases["variables"],
    }
    golden = {
        "messages": cases["messages"],
        "variables": cases["variables"],
        "cases": [render(source, context) for source in templates(cases)],
        "differs": [render(source, context) for source in cases["differs"]],
    }
    members = [f"{json.dumps(key)}: {dumped(value)}" for key, value in golden.items()]
    GOLDEN.write_text("{" + ",\n".join(members) + "}\n", encoding="utf-8")


def dumped(value: Any) -> str:
    """JSON with an array's items on lines of their own, for diffs that can be read."""
    if not isinstance(value, list):
        return json.dumps(value, ensure_ascii=False)
    lines = [json.dumps(item, ensure_ascii=False) for item in value]
    return "[\n" + ",\n".join(lines) + "]"


if __name__ == "__main__":
    main()
