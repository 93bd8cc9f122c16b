"""Fixtures of the end-to-end tests: checkpoints, logs, and clusters shared by a module's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import make
from cluster import Cluster, assert_built, start_cluster


@pytest.fixture(scope="session", autouse=True)
def _built() -> None:
    assert_built()


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every random-weight checkpoint of tests/checkpoints, by name."""
    make.logging.disable_progress_bar()
    folder = tmp_path_factory.mktemp("checkpoints")
    for name in make.SHAPES:
        make.make(name, folder / name)
    return folder


@pytest.fixture(scope="module")
def demo_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The demo models behind one target and two draft workers, in float32."""
    log = tmp_path_factory.mktemp("cluster") / "up.log"
    with start_cluster(log) as cluster:
        yield cluster
