"""Clusters whose only draft worker answers nonsense (hostile_draft.cc)."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from cluster import BINARY, Cluster, start_target, wait_for_drafts

HOSTILE = BINARY.parent / "tests" / "e2e" / "hostile_draft"


@contextlib.contextmanager
def hostile_draft(way: str, vocabulary: int, log: Path) -> Iterator[str]:
    """Its address. It ends with its standard input."""
    command = [str(HOSTILE), way, str(vocabulary)]
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
            assert process.poll() is None, "the hostile draft died"
            process.communicate(timeout=30)
        except BaseException:
            process.kill()
            raise
    assert process.returncode == 0


@contextlib.contextmanager
def cluster_with(
    way: str, model: Path, vocabulary: int, folder: Path, *flags: str
) -> Iterator[Cluster]:
    """A target whose only draft is hostile, and a gateway. The last of repeated flags counts."""
    usual = ["--dtype=float32", "--speculation=always", "--ngram_lookup=false"]
    with (
        hostile_draft(way, vocabulary, folder / "draft.log") as draft,
        start_target(folder, "", model, [draft], [*usual, *flags]) as cluster,
    ):
        wait_for_drafts(cluster.targets[0], 1)
        yield cluster
