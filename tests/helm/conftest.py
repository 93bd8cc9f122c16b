"""Options and preconditions of the chart's tests."""

from __future__ import annotations

import pytest

from rendered_chart import TOOLS


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite tests/helm/golden from the chart"
    )


@pytest.fixture(scope="session", autouse=True)
def _tools() -> None:
    for tool in ("helm", "kubeconform"):
        assert (TOOLS / tool).is_file(), f"{tool} is missing: run scripts/setup --test --deploy"
