"""One image of the build that is tested, for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cluster import BINARY
from containers import Image, Storage, lacking

TAG = "localhost/specfabric:tested"
reports: list[str] = []


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    reason = lacking()
    if reason:
        pytest.skip(reason)
    storage = Storage.make(tmp_path_factory.mktemp("storage"), in_memory=True)
    try:
        report = storage.build("--build", BINARY.parent, "--tag", TAG)
        reports.append(report)
        with storage.container(TAG) as (container, root):
            yield Image(storage, report, TAG, container, root)
    finally:
        storage.remove()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What the image holds, and how large each part is."""
    for report in reports:
        sizes, _, _ = report.partition("\n\nlicences")
        terminalreporter.write_line(f"image {TAG}\n{sizes}")
