"""Who may join a cluster: those with its secret, which shows up nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

import plain_http
from cluster import DRAFT, TARGET, Process, free_address, run, start_cluster, started, wait_until
from exposition import value_of

SECRET = "the secret of this cluster"
TOLD = "refused: the join secret differs"
LOGGED = "refused: its join secret differs"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text(SECRET + "\n")
    return path


@pytest.fixture
def wrong(tmp_path: Path) -> Path:
    path = tmp_path / "wrong"
    path.write_text("the secret of another cluster\n")
    return path


def wait_for_line(process: Process, text: str) -> None:
    wait_until(lambda: text in process.log_text(), f"'{text}' in {process.log}")


def ready(address: str) -> bool:
    return plain_http.status_of(f"http://{address}/readyz") == 200


def test_a_draft_with_another_secret_is_not_used(tmp_path: Path, secret: Path, wrong: Path) -> None:
    good_at, bad_at, admin = free_address(), free_address(), free_address()
    draft = ["draft", f"--model={DRAFT}", "--dtype=float32"]
    target = ["target", f"--model={TARGET}", "--dtype=float32", f"--listen={free_address()}"]
    with (
        started(
            tmp_path / "good.log",
            [*draft, f"--listen={good_at}", f"--join_secret_file={secret}"],
        ) as good,
        started(
            tmp_path / "bad.log", [*draft, f"--listen={bad_at}", f"--join_secret_file={wrong}"]
        ) as bad,
        started(
            tmp_path / "target.log",
            [
                *target,
                f"--admin_listen={admin}",
                f"--drafts={good_at},{bad_at}",
                f"--join_secret_file={secret}",
            ],
        ) as leader,
    ):
        wait_for_line(leader, f"{bad_at}: {TOLD}")
        wait_for_line(bad, LOGGED)
        wait_until(
            lambda: ready(admin) and value_of(admin, "specfabric_target_draft_workers") == 1,
            "the target has the other draft",
        )
        assert LOGGED not in good.log_text()
        for process in (good, bad, leader):
            assert SECRET not in process.log_text()


def test_only_who_has_the_secret_joins_a_cluster(tmp_path: Path, secret: Path, wrong: Path) -> None:
    with start_cluster(
        tmp_path / "up.log", drafts=1, extra=[f"--join_secret_file={secret}"]
    ) as cluster:
        at = free_address()
        gateway = [
            "gateway",
            f"--model={TARGET}",
            f"--listen={at}",
            f"--targets={cluster.targets[0].listen}",
        ]
        for arguments in ([], [f"--join_secret_file={wrong}"]):
            with started(
                tmp_path / "unauthenticated.log", [*gateway, *arguments]
            ) as unauthenticated:
                wait_for_line(unauthenticated, TOLD)
                assert not ready(at)
        with started(tmp_path / "friend.log", [*gateway, f"--join_secret_file={secret}"]):
            wait_until(lambda: ready(at), "the friend has joined")
        assert LOGGED in cluster.process.log_text()
        assert cluster.complete(prompt="import ", max_tokens=4)["choices"]
        assert SECRET not in cluster.process.log_text()


def test_up_makes_a_secret_that_only_its_children_know(tmp_path: Path) -> None:
    with start_cluster(tmp_path / "up.log", drafts=1) as cluster:
        for member in cluster.members:
            words = Path(f"/proc/{member.pid}/cmdline").read_text().split("\0")
            (given,) = [word for word in words if word.startswith("--join_secret_file=")]
            # The pipe it came by is empty now: reading it ends at once, with nothing.
            descriptor = Path(f"/proc/{member.pid}/fd") / given.rpartition("/")[2]
            assert descriptor.read_bytes() == b""
        gateway = [
            "gateway",
            f"--model={TARGET}",
            f"--listen={free_address()}",
            f"--targets={cluster.targets[0].listen}",
        ]
        with started(tmp_path / "unauthenticated.log", gateway) as unauthenticated:
            wait_for_line(unauthenticated, TOLD)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot read"),
        (b"", "0 bytes"),
        (b"15 bytes of it.\n", "15 bytes"),
        (b"\n" * 100, "0 bytes"),
        (b"x" * 4097, "4096"),
        (b"x" * 1_000_000, "4096"),
    ],
)
def test_unusable_secrets(content: bytes | None, said: str, tmp_path: Path) -> None:
    path = tmp_path / "secret"
    if content is not None:
        path.write_bytes(content)
    flag = f"--join_secret_file={path}"
    for arguments in (
        ["target", f"--model={TARGET}", "--listen=127.0.0.1:0", flag],
        ["draft", f"--model={DRAFT}", "--listen=127.0.0.1:0", flag],
        ["gateway", f"--model={TARGET}", f"--targets={free_address()}", flag],
        ["generate", f"--model={TARGET}", "--prompt=x", flag],
        ["up", f"--model={TARGET}", f"--listen={free_address()}", flag],
    ):
        result = run(arguments)
        assert result.returncode == 2, result.stderr
        (line,) = result.stderr.strip().splitlines()
        assert flag in line
        assert said in line


def test_a_folder_is_no_secret(tmp_path: Path) -> None:
    result = run(["generate", f"--model={TARGET}", "--prompt=x", f"--join_secret_file={tmp_path}"])
    assert result.returncode == 2
    assert "directory" in result.stderr
