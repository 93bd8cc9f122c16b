"""Clusters whose only draft worker answers nonsense (hostile_draft.cc)."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx

from cluster import BINARY, Cluster, Member, free_address, started, wait_for_drafts, wait_until

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
    at, target_at, target_admin = free_address(), free_address(), free_address()
    with (
        hostile_draft(way, vocabulary, folder / "draft.log") as draft,
        started(
            folder / "target.log",
            [
                "target",
                f"--model={model}",
                "--dtype=float32",
                f"--listen={target_at}",
                f"--admin_listen={target_admin}",
                f"--drafts={draft}",
                "--speculation=always",
                "--ngram_lookup=false",
                *flags,
            ],
        ) as target,
        started(
            folder / "gateway.log",
            ["gateway", f"--model={model}", f"--listen={at}", f"--targets={target_at}"],
        ) as gateway,
    ):
        cluster = Cluster(
            gateway,
            Member(gateway.pid, at, at),
            [Member(target.pid, target_at, target_admin)],
            [],
        )
        with cluster.client() as client:

            def ready() -> bool:
                with contextlib.suppress(httpx.TransportError):
                    return client.get("/readyz").status_code == 200
                return False

            wait_until(ready, "the gateway is ready")
            wait_for_drafts(cluster.targets[0], 1)
            cluster.model = client.get("/v1/models").json()["data"][0]["id"]
        yield cluster
