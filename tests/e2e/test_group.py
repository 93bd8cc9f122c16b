"""A target's group over several processes: the same text, and an end that it has as one."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import plain_http
from cluster import (
    DRAFT,
    DRAFTERS,
    TARGET,
    Cluster,
    Member,
    Process,
    free_address,
    run,
    start_cluster,
    wait_for_drafts,
    wait_until,
)
from exposition import value_of
from prompts import PROMPTS

RANKS = 2
VERIFICATION_METHODS = ("coupled", "rejection", "traversal", "typical")
SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.8, "seed": 11},
    {"temperature": 0.9, "seed": 12, "top_k": 20, "top_p": 0.9},
    {"temperature": 0.7, "seed": 13, "frequency_penalty": 0.5, "logprobs": 2},
    {"temperature": 0.8, "seed": 14, "guided_regex": "([a-z_]+\\([a-z, ]*\\)\\n)+"},
]
MODEL = [f"--model={TARGET}", "--dtype=float32"]
BROKEN = 70  # base/exit_code.h


@dataclass
class Group:
    """A cluster of single processes whose target is a group; made by `start_group`."""

    leader: Process
    ranks: list[Process]
    others: list[Process]
    cluster: Cluster
    join: str
    target: list[str]


def leader_arguments(join: str, listen: str, stages: int = 1) -> list[str]:
    return [
        "target",
        *MODEL,
        f"--listen={listen}",
        f"--tensor_parallel={RANKS // stages}",
        f"--pipeline_stages={stages}",
        f"--group_processes={RANKS}",
        f"--group_listen={join}",
    ]


def rank_arguments(join: str, model: Path = TARGET) -> list[str]:
    return ["rank", f"--model={model}", f"--join={join}"]


def ready(address: str) -> bool:
    return plain_http.status_of(f"http://{address}/readyz") == 200


@contextlib.contextmanager
def ended(processes: list[Process]) -> Iterator[None]:
    """Ends what still runs, in this order, whatever happens."""
    try:
        yield
    finally:
        for process in processes:
            with contextlib.suppress(AssertionError):
                process.stop()


@contextlib.contextmanager
def start_group(
    tmp_path: Path, drafts: int = 1, *extra: str, stages: int = 1, kind: str = "draft"
) -> Iterator[Group]:
    join, listen, admin, gateway = (free_address() for _ in range(4))
    drafts_at = [free_address() for _ in range(drafts)]
    target = [
        *leader_arguments(join, listen, stages),
        f"--admin_listen={admin}",
        f"--drafts={','.join(drafts_at)}",
        "--speculation=always",
        "--ngram_lookup=false",
        "--step_timeout=10s",
        *extra,
    ]
    running: list[Process] = []

    def start(name: str, arguments: list[str]) -> Process:
        running.append(Process.start(arguments, tmp_path / f"{name}.log"))
        return running[-1]

    with ended(running):
        leader = start("leader", target)
        ranks = [start(f"rank{i}", rank_arguments(join)) for i in range(RANKS - 1)]
        for i, at in enumerate(drafts_at):
            draft = ["draft", f"--model={DRAFTERS[kind]}", f"--target_model={TARGET}"]
            start(f"draft{i}", [*draft, "--dtype=float32", f"--listen={at}"])
        start(
            "gateway",
            ["gateway", f"--model={TARGET}", f"--listen={gateway}", f"--targets={listen}"],
        )
        wait_until(
            lambda: ready(gateway) or leader.popen.poll() is not None,
            "the gateway has the group",
            60,
        )
        assert leader.popen.poll() is None, leader.log_text()
        member = Member(leader.pid, listen, admin)
        if drafts:
            wait_for_drafts(member, drafts)
        cluster = Cluster(leader, Member(0, gateway, ""), [member], [], "target")
        yield Group(leader, ranks, running, cluster, join, target)


def answers(cluster: Cluster, settings: dict[str, Any]) -> list[Any]:
    def ask(prompt: str) -> Any:
        answer = cluster.complete(
            prompt=prompt, max_tokens=40, ignore_eos=True, return_token_ids=True, **settings
        )
        (choice,) = answer["choices"]
        return choice["text"], choice["token_ids"], choice["logprobs"]

    # At once, so that the ranks of every process own sequences of the same steps.
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(ask, PROMPTS[::8]))


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[list[Any]]:
    """What one process with as many ranks says."""
    log = tmp_path_factory.mktemp("single") / "up.log"
    with start_cluster(log, tensor_parallel=RANKS, drafts=1) as cluster:
        return [answers(cluster, settings) for settings in SETTINGS]


@pytest.mark.parametrize(("stages", "kind"), [(1, "draft"), (RANKS, "draft"), (1, "eagle3")])
def test_a_group_of_processes_says_the_same(
    stages: int, kind: str, tmp_path: Path, expected: list[list[Any]]
) -> None:
    with start_group(tmp_path, stages=stages, kind=kind) as group:
        for settings, want in zip(SETTINGS, expected, strict=True):
            assert answers(group.cluster, settings) == want, settings
        (target,) = group.cluster.targets
        assert value_of(target.admin, "specfabric_verifications_total", verification="coupled") > 0
        sent = value_of(target.admin, "specfabric_hidden_states_sent_total")
        assert (sent > 0) == (kind == "eagle3")
        assert group.leader.stop() == 0, group.leader.log_text()
        for rank in group.ranks:
            assert rank.popen.wait(10) == 0, rank.log_text()


def test_without_drafts(tmp_path: Path, expected: list[list[Any]]) -> None:
    with start_group(tmp_path, 0) as group:
        assert answers(group.cluster, SETTINGS[1]) == expected[1]


def test_every_verification_method_runs_on_the_owner_rank(tmp_path: Path) -> None:
    with start_group(
        tmp_path, 1, f"--request_verification={','.join(VERIFICATION_METHODS)}"
    ) as group:
        for verification in VERIFICATION_METHODS:
            for seed in range(RANKS):  # consecutive sequences are of consecutive ranks
                answer = group.cluster.complete(
                    prompt=PROMPTS[0],
                    max_tokens=30,
                    temperature=0.8,
                    seed=seed,
                    ignore_eos=True,
                    verification=verification,
                )
                assert answer["usage"]["completion_tokens"] == 30
                assert answer["usage"]["speculation"]["accepted"] > 0


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_lost_rank_process_ends_the_group(sign: signal.Signals, tmp_path: Path) -> None:
    with start_group(tmp_path) as group:
        stream = group.cluster.stream(prompt="import ", max_tokens=1000, ignore_eos=True)
        next(stream)
        (rank,) = group.ranks
        os.kill(rank.pid, sign)
        begin = time.monotonic()
        try:
            assert group.leader.popen.wait(15) == BROKEN, group.leader.log_text()
        finally:
            os.kill(rank.pid, signal.SIGKILL)
        assert time.monotonic() - begin < 12
        (line,) = [line for line in group.leader.log_text().splitlines() if " critical " in line]
        assert "the group is lost" in line
        assert "rank process" in line
        # The gateway takes the request up again where the group comes back.
        again = [
            Process.start(group.target, tmp_path / "leader2.log"),
            Process.start(rank_arguments(group.join), tmp_path / "rank2.log"),
        ]
        group.others[:0] = again
        events = list(stream)
        assert events[-1]["choices"][0]["finish_reason"] == "length"


def test_the_watchdog_ends_a_group_that_nobody_misses(tmp_path: Path) -> None:
    """Where silence says nothing, a step that hangs does."""
    with start_group(tmp_path, 0, "--silence_timeout=0") as group:
        stream = group.cluster.stream(prompt="import ", max_tokens=1000, ignore_eos=True)
        next(stream)
        (rank,) = group.ranks
        os.kill(rank.pid, signal.SIGSTOP)
        try:
            assert group.leader.popen.wait(20) == BROKEN, group.leader.log_text()
        finally:
            os.kill(rank.pid, signal.SIGKILL)
        stream.close()
        assert "a step has run for more than 10 s" in group.leader.log_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["target", *MODEL, "--group_processes=2"], "--group_processes=2: allowed are 1 to 1"),
        (["target", *MODEL, "--tensor_parallel=2", "--group_processes=0"], "allowed are 1 to 2"),
        (
            ["target", *MODEL, "--tensor_parallel=2", "--group_processes=2", "--group_listen=x"],
            "--group_listen=x: ",
        ),
        (["target", *MODEL, "--pipeline_stages=0"], "--pipeline_stages=0: allowed are 1 to 64"),
        (["target", *MODEL, "--pipeline_stages=40"], "layers; allowed: 1 to "),
        (
            ["target", *MODEL, "--tensor_parallel=2", "--pipeline_stages=3", "--group_processes=2"],
            "a process holds whole stages",
        ),
        (["rank", f"--model={TARGET}"], "--join=: "),
        (["rank", "--join=127.0.0.1:7300"], "--model is missing"),
        (["rank", *MODEL, "--join=127.0.0.1:7300"], "--dtype: no such flag"),
    ],
)
def test_bad_flags_are_one_line(arguments: list[str], said: str) -> None:
    result = run(arguments)
    assert result.returncode == 2
    (line,) = result.stderr.strip().splitlines()
    assert said in line


def test_rank_processes_end_with_a_killed_leader(tmp_path: Path) -> None:
    with start_group(tmp_path, 0) as group:
        group.leader.popen.kill()
        for rank in group.ranks:
            assert rank.popen.wait(15) == 1, rank.log_text()
            assert "specfabric rank: the leader at " in rank.log_text().splitlines()[-1]


def test_another_model_is_refused(tmp_path: Path) -> None:
    join = free_address()
    leader = Process.start(leader_arguments(join, free_address()), tmp_path / "leader.log")
    rank = Process.start(rank_arguments(join, DRAFT), tmp_path / "rank.log")
    with ended([rank, leader]):
        assert rank.popen.wait(30) == 2, rank.log_text()
        line = rank.log_text().splitlines()[-1]
        assert line.startswith("specfabric rank: ")
        assert str(DRAFT) in line
        assert leader.popen.wait(30) == 1, leader.log_text()
        assert "rank process" in leader.log_text().splitlines()[-1]


def test_another_secret_is_refused(tmp_path: Path) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.write_text("the secret of this group\n")
    bad.write_text("the secret of another group\n")
    join = free_address()
    leader = Process.start(
        [
            *leader_arguments(join, free_address()),
            "--group_timeout=8s",
            f"--join_secret_file={good}",
        ],
        tmp_path / "leader.log",
    )
    rank = Process.start(
        [*rank_arguments(join), f"--join_secret_file={bad}"], tmp_path / "rank.log"
    )
    with ended([rank, leader]):
        wait_until(lambda: "the join secret differs" in rank.log_text(), "the rank was told")
        assert leader.popen.wait(30) == 1, leader.log_text()
        assert "0 of 1 rank processes have joined" in leader.log_text().splitlines()[-1]
        assert rank.stop() == 0


def test_a_leader_that_waits_for_its_group_ends_when_asked(tmp_path: Path) -> None:
    log = tmp_path / "leader.log"
    leader = Process.start(leader_arguments(free_address(), free_address()), log)
    with ended([leader]):
        wait_until(lambda: "waiting for 1 rank processes" in leader.log_text(), "it waits")
        assert leader.stop() == 0, leader.log_text()
