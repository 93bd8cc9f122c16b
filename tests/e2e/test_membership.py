"""Members that join, leave and are found by name, and streams that outlive those they began on."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import plain_http
from cluster import (
    DRAFT,
    TARGET,
    Cluster,
    Member,
    events_of,
    free_address,
    free_port,
    is_alive,
    run,
    start_cluster,
    wait_for_drafts,
    wait_until,
)
from exposition import value_of
from hang import busiest_thread, hanging
from prompts import PROMPTS
from units import Unit, started_units

COMMON = {"max_tokens": 250, "ignore_eos": True, "return_token_ids": True}
# Every way to ask whose text is a function of the seed and the position alone.
KEYED: list[dict[str, Any]] = [
    {"prompt": PROMPTS[2], "temperature": 0.8, "seed": 5, **COMMON},
    {"prompt": PROMPTS[9], "temperature": 1.2, "top_p": 0.9, "top_k": 50, "seed": 6, **COMMON},
    {"prompt": PROMPTS[17], "temperature": 0, "verification": "rejection", **COMMON},
    {"prompt": PROMPTS[30], "temperature": 0, "verification": "traversal", **COMMON},
    {"prompt": PROMPTS[41], "temperature": 0.7, "seed": 7, "frequency_penalty": 0.4, **COMMON},
]
# And those whose distribution alone goes on.
BY_CHANCE: list[dict[str, Any]] = [
    {"prompt": PROMPTS[2], "temperature": 0.8, "seed": 5, "verification": verification, **COMMON}
    for verification in ("rejection", "traversal")
]


class Stream(threading.Thread):
    """Reads one streamed answer to its end."""

    def __init__(self, url: str, model: str, body: dict[str, Any]) -> None:
        super().__init__()
        self.request = {"model": model, "stream": True, **body}
        self.url = url
        self.ids: list[int] = []
        self.text = ""
        self.exactness = ""
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with (
                plain_http.client(self.url) as client,
                client.stream("POST", "/v1/completions", json=self.request) as response,
            ):
                assert response.status_code == 200, response.read()
                for event in events_of(response):
                    for choice in event["choices"]:
                        self.ids += choice["token_ids"]
                        self.text += choice["text"]
                    self.exactness = event.get("exactness", self.exactness)
        except BaseException as error:  # noqa: BLE001 (told to the test, by finish)
            self.error = error

    def finish(self) -> None:
        self.join(180)
        assert not self.is_alive(), "the stream does not end"
        if self.error is not None:
            raise self.error


def streams_of(url: str, model: str, bodies: list[dict[str, Any]]) -> list[Stream]:
    """Under way: each has had some tokens."""
    streams = [Stream(url, model, body) for body in bodies]
    for stream in streams:
        stream.start()
    wait_until(
        lambda: all(len(s.ids) > 10 or s.error for s in streams), "the streams are under way"
    )
    return streams


def crash(member: Member) -> None:
    os.kill(member.pid, signal.SIGKILL)


def fall_silent(member: Member) -> None:
    os.kill(member.pid, signal.SIGSTOP)


def drain(member: Member) -> None:
    os.kill(member.pid, signal.SIGTERM)


@pytest.mark.parametrize(
    ("lose", "flags"),
    [
        (crash, []),
        (fall_silent, ["--silence_timeout=1.5s"]),
        (drain, ["--drain_timeout=0.3s"]),
    ],
    ids=["crash", "silence", "drain"],
)
def test_streams_go_on_when_their_target_is_lost(
    lose: Callable[[Member], None], flags: list[str], tmp_path: Path
) -> None:
    """Token for token where tokens are keyed by position, whole and each once elsewhere."""
    flags = ["--request_verification=rejection,traversal", *flags]
    with start_cluster(tmp_path / "up.log", targets=2, drafts=2, extra=flags) as cluster:
        expected = [cluster.complete(**body)["choices"][0] for body in KEYED]
        bodies = [*KEYED, *BY_CHANCE, *KEYED, *BY_CHANCE]
        streams = streams_of(cluster.url, cluster.model, bodies)
        lost = cluster.targets[0]
        on_it = value_of(lost.admin, "specfabric_target_running_sequences")
        lose(lost)
        try:
            for stream in streams:
                stream.finish()
        finally:
            if lose is fall_silent:
                os.kill(lost.pid, signal.SIGCONT)
        for index, stream in enumerate(streams):
            body = bodies[index]
            if body in KEYED:
                want = expected[KEYED.index(body)]
                assert stream.ids == want["token_ids"], (index, body)
                assert stream.text == want["text"]
                assert stream.exactness == "token"
            else:
                assert len(stream.ids) == COMMON["max_tokens"], (index, body)
                assert stream.exactness == "distribution"
                assert stream.text == cluster.text_of(stream.ids)
        moved = value_of(cluster.gateway.admin, "specfabric_gateway_resubmissions_total")
        assert on_it > 0
        assert moved > 0
        if lose is fall_silent:
            # Awake again, it has dropped what went on elsewhere and takes new work.
            for name in ("running_sequences", "waiting_sequences", "kv_blocks_used"):
                gauge = f"specfabric_target_{name}"
                wait_until(partial(is_zero, lost.admin, gauge), f"{gauge} is 0")
            wait_until(lambda: targets_up(cluster) == 2, "it is back")
        else:
            wait_until(lambda: not is_alive(lost.pid), "it has ended")
        again = cluster.complete(**KEYED[0])["choices"][0]
        assert again["token_ids"] == expected[0]["token_ids"]


def is_zero(admin: str, name: str) -> bool:
    return value_of(admin, name) == 0


def exceeds(read: Callable[[], float], before: float) -> bool:
    return read() > before


def targets_up(cluster: Cluster) -> float:
    return value_of(cluster.gateway.admin, "specfabric_gateway_targets_up")


def test_a_target_whose_leader_hangs_is_left(tmp_path: Path) -> None:
    """Its connection is another thread's, and lives; its streams go on elsewhere all the same."""
    extra = ["--stall_timeout=2s"]
    bodies = [{**body, "max_tokens": 1200} for body in (KEYED[0], KEYED[1])] * 2
    with start_cluster(
        tmp_path / "up.log", targets=2, drafts=1, speculation="goodput", extra=extra
    ) as cluster:
        expected = [cluster.complete(**body)["choices"][0]["token_ids"] for body in bodies[:2]]
        streams = streams_of(cluster.url, cluster.model, bodies)
        hung = cluster.targets[0]
        leader = busiest_thread(hung.pid)
        stalled = "specfabric_gateway_stalled_targets_total"
        with hanging(leader):
            assert value_of(hung.admin, "specfabric_target_running_sequences") > 0
            for stream in streams:
                stream.finish()
            assert value_of(cluster.gateway.admin, stalled) == 1
            assert targets_up(cluster) == 1
        for index, stream in enumerate(streams):
            assert stream.ids == expected[index % 2], index
            assert stream.exactness == "token"
        # Heard again, it is given work again, and has kept nothing of what went on elsewhere.
        wait_until(lambda: targets_up(cluster) == 2, "it is back")
        for name in ("running_sequences", "kv_blocks_used"):
            gauge = f"specfabric_target_{name}"
            wait_until(partial(is_zero, hung.admin, gauge), f"{gauge} is 0")
        assert value_of(cluster.gateway.admin, stalled) == 1


def units_of(
    tmp_path: Path, *, drafts: str, targets: str, extra: list[str]
) -> tuple[Unit, Unit, Unit]:
    """A draft, a target and a gateway that look for each other at these addresses."""
    draft = Unit("draft", "draft", [f"--model={DRAFT}", "--dtype=float32"], tmp_path)
    target = Unit(
        "target",
        "target",
        [
            f"--model={TARGET}",
            "--dtype=float32",
            "--speculation=always",
            "--ngram_lookup=false",  # draft tokens come from drafts alone
            f"--drafts={drafts or draft.listen}",
            *extra,
        ],
        tmp_path,
    )
    gateway = Unit(
        "gateway",
        "gateway",
        [f"--model={TARGET}", f"--targets={targets or target.listen}"],
        tmp_path,
    )
    return draft, target, gateway


def model_of(gateway: Unit) -> str:
    return plain_http.get(f"http://{gateway.listen}/v1/models").json()["data"][0]["id"]


def wait_until_serving(gateway: Unit) -> None:
    def serving() -> bool:
        return plain_http.get(f"http://{gateway.listen}/readyz").status_code == 200

    wait_until(serving, "the gateway has a target")


def test_drafts_join_and_leave_running_streams(tmp_path: Path) -> None:
    """Plain without drafts, speculative with them, at any time; each drained draft ends well."""
    draft, target, gateway = units_of(tmp_path, drafts="", targets="", extra=[])
    with started_units([target, gateway]):
        wait_until_serving(gateway)
        url, model = f"http://{gateway.listen}", model_of(gateway)
        accepted = partial(value_of, target.admin, "specfabric_accepted_tokens_total")
        plain = Stream(url, model, KEYED[0])
        plain.start()
        plain.finish()
        assert accepted() == 0
        assert value_of(target.admin, "specfabric_target_draft_workers") == 0
        over = threading.Event()
        streams: list[Stream] = []

        def stream_on() -> None:
            while not over.is_set():
                streams.append(Stream(url, model, KEYED[0]))
                streams[-1].start()
                streams[-1].join(180)

        client = threading.Thread(target=stream_on)
        client.start()
        try:
            for _ in range(3):
                is_used = partial(exceeds, accepted, accepted())
                draft.start()
                draft.wait_ready()
                wait_for_drafts(target.member, 1)
                wait_until(is_used, "it is used")
                draft.drain()
                wait_for_drafts(target.member, 0)
        finally:
            over.set()
            client.join(200)
        assert len(streams) > 1
        for stream in streams:
            stream.finish()
            assert stream.ids == plain.ids


def test_a_draining_target_without_another_ends_what_it_has(tmp_path: Path) -> None:
    """To the last token, although it goes away right after it."""
    draft, target, gateway = units_of(tmp_path, drafts="", targets="", extra=[])
    with started_units([draft, target, gateway]):
        wait_until_serving(gateway)
        wait_for_drafts(target.member, 1)
        model = model_of(gateway)
        streams = streams_of(f"http://{gateway.listen}", model, KEYED[:1] * 4)
        target.drain()
        for stream in streams:
            stream.finish()
            assert len(stream.ids) == COMMON["max_tokens"]
            assert stream.ids == streams[0].ids
        assert value_of(gateway.admin, "specfabric_gateway_resubmissions_total") == 0


def test_peers_are_found_by_name_and_come_and_go(tmp_path: Path) -> None:
    """localhost stands for what a headless service's name does in a cluster."""
    draft_port, target_port = free_port(), free_port()
    draft, target, gateway = units_of(
        tmp_path,
        drafts=f"dns:///localhost:{draft_port},{free_address()}",
        targets=f"dns:///localhost:{target_port}",
        extra=["--dns_refresh=0.2s"],
    )
    draft.listen, target.listen = f"127.0.0.1:{draft_port}", f"127.0.0.1:{target_port}"
    with started_units([gateway, target, draft]):
        wait_until_serving(gateway)
        wait_for_drafts(target.member, 1)
        model = model_of(gateway)
        (stream,) = streams_of(f"http://{gateway.listen}", model, [KEYED[0]])
        target.kill()
        target.start()
        stream.finish()
        assert len(stream.ids) == COMMON["max_tokens"]
        wait_until_serving(gateway)
        assert value_of(gateway.admin, "specfabric_fabric_lookup_failures_total") == 0
        assert value_of(gateway.admin, "specfabric_fabric_addresses") >= 1
        target.wait_ready()


def test_a_name_that_does_not_resolve_is_told_once_and_tried_again(tmp_path: Path) -> None:
    _, target, _ = units_of(
        tmp_path,
        drafts="dns:///no-such-host.invalid:7",
        targets="",
        extra=["--dns_refresh=0.1s"],
    )
    failures = "specfabric_fabric_lookup_failures_total"
    with started_units([target]):
        wait_until(lambda: value_of(target.admin, failures) >= 3, "it is tried again")
        assert target.process is not None
        log = target.process.log_text()
    assert log.count("no-such-host.invalid:7 not found") == 1, log


@pytest.mark.parametrize(
    "address", ["dns://localhost:7", "dns:///localhost", "localhost", "dns:///:7", "a:70000"]
)
def test_a_wrong_address_is_one_line(address: str) -> None:
    ended = run(["target", f"--model={TARGET}", f"--drafts=127.0.0.1:7,{address}"])
    assert ended.returncode == 2
    (line,) = ended.stderr.strip().splitlines()
    assert "--drafts" in line
    assert address in line
    assert "dns:///host:port" in line
