"""A target has no say over the sequences of another, whatever incarnation it claims."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from cluster import BINARY, DRAFT, free_address, started, wait_until
from exposition import value_of

FOREIGN = BINARY.parent / "tests" / "e2e" / "foreign_target"


def test_messages_in_the_name_of_another_are_dropped(tmp_path: Path) -> None:
    listen, admin = free_address(), free_address()
    command = ["draft", f"--model={DRAFT}", "--dtype=float32"]
    command += [f"--listen={listen}", f"--admin_listen={admin}"]
    vocabulary = json.loads((DRAFT / "config.json").read_text())["vocab_size"]

    def dropped() -> float:
        return value_of(admin, "specfabric_draft_foreign_messages_total")

    with started(tmp_path / "draft.log", command):
        ended = subprocess.run(
            [str(FOREIGN), listen, str(vocabulary)], capture_output=True, text=True, timeout=90
        )
        assert ended.returncode == 0, ended.stderr
        wait_until(lambda: dropped() == 2, "both messages are counted")
        assert value_of(admin, "specfabric_draft_requests_total", status="ok") == 2
