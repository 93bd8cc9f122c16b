"""The Containerfile's images with nothing brought in, for the long tier: they compile it all."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import cluster
from cluster import TARGET
from containers import Storage, lacking

GENERATE = ["generate", "--dtype=float32", "--json", "--prompt=import os\n", "--max_tokens=32"]


@pytest.mark.timeout(4 * 3600)
@pytest.mark.skipif(
    os.environ.get("SPECFABRIC_TEST_TIER") != "long",
    reason="compiling in the image takes half an hour, and twice that for GPUs: --long",
)
@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_the_image_compiles_and_answers(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the text of the build that is tested; for GPUs of one architecture, on the CPU."""
    reason = lacking()
    if reason:
        pytest.skip(reason)
    monkeypatch.setenv("CUDAARCHS", "90a-real")
    storage, tag = Storage.make(tmp_path), f"localhost/specfabric:{target}"
    try:
        print(storage.build("--target", target))
        with storage.container(tag) as (container, _):
            models = f"{TARGET}:/srv/target:ro"
            user = ["run", "--isolation", "chroot", "--user", "65532:65532", "--volume", models]
            answer = storage.buildah(
                *user, container, "--", "specfabric", *GENERATE, "--model=/srv/target"
            )
    finally:
        storage.remove()
    here = cluster.run([*GENERATE, f"--model={TARGET}"])
    assert here.returncode == 0, here.stderr
    assert json.loads(answer)["text"] == json.loads(here.stdout)["text"]
