"""One cluster for all clients, a Hugging Face cache that knows its model, and what versions ran."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import installed
from cluster import BINARY, DRAFT, TARGET, Cluster, start_cluster

# Clients put it into paths, file names and look-ups at a hub, so that it has what names there have.
MODEL = "Org/My-Model"


@pytest.fixture(scope="session", autouse=True)
def _built() -> None:
    """Nothing here can run without the program and the demo models."""
    assert BINARY.is_file(), f"{BINARY} is not built: run scripts/build"
    for model in (TARGET, DRAFT):
        assert (model / "config.json").is_file(), f"{model} holds no checkpoint"


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The demo models behind a gateway that calls them MODEL."""
    log = tmp_path_factory.mktemp("clients") / "up.log"
    with start_cluster(log, drafts=1, extra=[f"--served_model_name={MODEL}"]) as cluster:
        assert cluster.model == MODEL
        yield cluster


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


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in installed.report():
        terminalreporter.write_line(line)
