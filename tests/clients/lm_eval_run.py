"""What tests/clients/test_lm_eval.py runs in lm-eval's own environment: its documented entry point.

    python lm_eval_run.py REQUEST.json ANSWER.json

The request: {"tasks": folder of task files, "runs": {name: arguments of simple_evaluate}}. The
answer: {name: {"answers": {task: [what the model said to each document]}, "results": {...}}}.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import lm_eval
from lm_eval.tasks import TaskManager


def evaluate(tasks: TaskManager, arguments: dict[str, Any]) -> dict[str, Any]:
    found = lm_eval.simple_evaluate(
        task_manager=tasks, log_samples=True, bootstrap_iters=0, **arguments
    )
    answers = {
        task: [sample["filtered_resps"] for sample in sorted(samples, key=lambda s: s["doc_id"])]
        for task, samples in found["samples"].items()
    }
    return {"answers": answers, "results": found["results"]}


def main() -> None:
    request_path, answer_path = map(Path, sys.argv[1:])
    request = json.loads(request_path.read_text())
    tasks = TaskManager(include_path=request["tasks"], include_defaults=False)
    answer = {name: evaluate(tasks, arguments) for name, arguments in request["runs"].items()}
    answer_path.write_text(json.dumps({"version": lm_eval.__version__, "runs": answer}))


main()
