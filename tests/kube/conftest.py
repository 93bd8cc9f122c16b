"""One control plane for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kube import ControlPlane, control_plane, is_built
from rendered_chart import TOOLS


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    assert (TOOLS / "helm").is_file(), "helm is missing: run scripts/setup --test --deploy"
    if not is_built():
        pytest.skip("no control plane is built; 15 minutes: tests/kube/control-plane.sh build")
    with control_plane(tmp_path_factory.mktemp("plane")) as started:
        yield started
