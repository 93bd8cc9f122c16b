"""One cluster for all clients, a Hugging Face cache that knows its model, and what versions ran."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

import installed
from client_cases import Client, run_program
from cluster import TARGET, Cluster, assert_built, start_cluster, wait_until
from exposition import value_of
from tools_template import serve_with_tools

# Clients put it into paths, file names and look-ups at a hub, so that it has what names there have.
MODEL = "Org/My-Model"


@pytest.fixture(scope="session", autouse=True)
def _built() -> None:
    assert_built()


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The demo models behind a gateway that calls them MODEL."""
    log = tmp_path_factory.mktemp("clients") / "up.log"
    with start_cluster(log, drafts=1, extra=[f"--served_model_name={MODEL}"]) as cluster:
        assert cluster.model == MODEL
        yield cluster


@pytest.fixture(scope="session")
def served_tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The same with a chat template that shows tools."""
    folder = tmp_path_factory.mktemp("clients-tools")
    with serve_with_tools(folder, [f"--served_model_name={MODEL}"]) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def found(
    served_tools: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Client], dict[str, Any]]:
    """What a client's program finds, which runs once."""

    @functools.cache
    def of(client: Client) -> dict[str, Any]:
        return run_program(client, served_tools, tmp_path_factory.mktemp(client.folder))

    return of


@pytest.fixture(scope="session")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A value of HF_HOME under which MODEL's tokenizer is found without a network."""
    home = tmp_path_factory.mktemp("huggingface")
    revision = "0" * 40
    repository = home / "hub" / f"models--{MODEL.replace('/', '--')}"
    snapshot = repository / "snapshots" / revision
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(revision)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (snapshot / name).symlink_to(TARGET / name)
    return home


@pytest.fixture
def cancelled(served: Cluster) -> Callable[[], AbstractContextManager[None]]:
    """A context within which one client leaves: behind it its work is seen to have ended."""

    @contextlib.contextmanager
    def context() -> Iterator[None]:
        name = "specfabric_gateway_client_disconnects_total"
        before = value_of(served.gateway.listen, name)
        yield
        wait_until(lambda: value_of(served.gateway.listen, name) == before + 1, "it is cancelled")
        wait_until(
            lambda: value_of(served.targets[0].admin, "specfabric_target_running_sequences") == 0,
            "the target has stopped",
        )

    return context


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in installed.report():
        terminalreporter.write_line(line)
