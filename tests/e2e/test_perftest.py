"""`specfabric perftest` becomes the program beside it."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from cluster import BINARY, free_port, run


def test_it_measures() -> None:
    port = str(free_port())
    with subprocess.Popen(
        [BINARY, "perftest", "-p", port], stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stderr is not None
            assert f"listening on 127.0.0.1:{port}" in server.stderr.readline()
            client = run(["perftest", "127.0.0.1", "-p", port, "-n", "100", "--json"])
            assert client.returncode == 0, client.stderr
            assert json.loads(client.stdout)["iterations"] == 100
            assert server.wait(30) == 0
        finally:
            server.kill()


def test_help_is_the_programs_own() -> None:
    for arguments in (["perftest", "--help"], ["help", "perftest"]):
        result = run(arguments)
        assert result.returncode == 0, result.stderr
        assert result.stdout.startswith("specfabric-perftest: ")
    assert "\n  perftest " in run(["help"]).stdout


def test_its_exit_code_and_line_are_ours() -> None:
    result = run(["perftest", "-t", "latency"])
    assert result.returncode == 2
    assert result.stderr == (
        "specfabric-perftest: -t latency: must be am_lat, am_bw, tree or logits\n"
    )


def test_where_there_is_none(tmp_path: Path) -> None:
    alone = tmp_path / "specfabric"
    shutil.copy(BINARY, alone)
    result = subprocess.run([alone, "perftest"], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("specfabric perftest: cannot run ")
    assert str(tmp_path / "specfabric-perftest") in line
