"""Everything that can end, stop or come back does, at random, while clients stream.

Two targets, four drafts and two gateways; 32 streams at a time. Every stream has to be, byte for
byte, what its request gave while nothing was disturbed; only one whose gateway was killed under it
may break off. Afterwards nothing may be left of any of it. 40 s by default; the long form, and the
same faults again:

    SPECFABRIC_CHAOS_MINUTES=10 scripts/test pytest
    SPECFABRIC_CHAOS_SEED=123 scripts/test pytest
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

import plain_http
from bench.serving.client import Server, ServerError, events
from cluster import DRAFT, TARGET, wait_until
from exposition import value_of
from prompts import PROMPTS
from units import Unit, started_units

SECONDS = 60 * float(os.environ.get("SPECFABRIC_CHAOS_MINUTES", 2 / 3))
SEED = int(os.environ.get("SPECFABRIC_CHAOS_SEED", random.SystemRandom().randrange(1 << 32)))
STREAMS = 32
TARGETS, DRAFTS, GATEWAYS = 2, 4, 2
SILENCE = 2.0  # seconds after which a stopped process is given up
PAUSE = (0.3, 2.0)  # between two faults
ASLEEP = (0.2, 3 * SILENCE)
AWAY = (0.1, 3.0)  # between a death and the next life
MAX_TOKENS = 160
STREAM_SECONDS = 120.0  # after which a stream is called stuck
pytestmark = pytest.mark.timeout(SECONDS + 900)


def requests() -> list[dict[str, Any]]:
    """Of every kind whose text depends on the seed and the position alone."""
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.8},
        {"temperature": 1, "top_p": 0.9, "top_k": 40},
        {"temperature": 0.7, "frequency_penalty": 0.3, "min_p": 0.02},
        {"temperature": 0},
        {"temperature": 0, "verification": "rejection"},
        {"temperature": 0, "verification": "traversal"},
    ]
    return [
        {
            "prompt": PROMPTS[(7 * i) % len(PROMPTS)],
            "seed": i,
            "max_tokens": MAX_TOKENS - 5 * (i % 8),
            "ignore_eos": True,
            "return_token_ids": True,
            "stream": True,
            **kinds[i % len(kinds)],
        }
        for i in range(4 * len(kinds))
    ]


@dataclass
class Answer:
    """What a client has got of one stream."""

    ids: list[int] = field(default_factory=list)
    text: str = ""
    finish: str = ""

    def take(self, event: dict[str, Any]) -> None:
        if "error" in event:
            raise ServerError(200, f"within the stream: {event['error']}")
        for choice in event["choices"]:
            self.ids += choice["token_ids"]
            self.text += choice["text"]
            self.finish = choice["finish_reason"] or self.finish


async def read(server: Server, body: dict[str, Any], answer: Answer) -> None:
    request = {"model": server.model, **body}
    async with asyncio.timeout(STREAM_SECONDS):
        async with contextlib.aclosing(events(server, "/v1/completions", request)) as stream:
            async for event in stream:
                answer.take(event)


class Pool:
    """The units, who of them is being disturbed, and what has been done to them."""

    def __init__(self, tmp_path: Path) -> None:
        draft_flags = [f"--model={DRAFT}", "--max_sessions=96"]
        self.drafts = [
            Unit("draft", f"draft{i}", self._common(draft_flags), tmp_path) for i in range(DRAFTS)
        ]
        target_flags = [
            f"--model={TARGET}",
            "--request_verification=rejection,traversal",
            f"--drafts={','.join(draft.listen for draft in self.drafts)}",
        ]
        self.targets = [
            Unit("target", f"target{i}", self._common(target_flags), tmp_path)
            for i in range(TARGETS)
        ]
        gateway_flags = [
            f"--model={TARGET}",
            f"--targets={','.join(target.listen for target in self.targets)}",
            "--target_wait=30s",
            "--stall_timeout=20s",
        ]
        self.gateways = [
            Unit("gateway", f"gateway{i}", self._common(gateway_flags), tmp_path)
            for i in range(GATEWAYS)
        ]
        self.units = [*self.drafts, *self.targets, *self.gateways]
        self.disturbed: set[str] = set()
        self.done: Counter[str] = Counter()
        self.faults_at: list[float] = []
        self.log: list[str] = []
        self.begin = time.monotonic()
        # When each gateway was last killed or told to drain: what its clients may hold against it.
        self.killed_at = {gateway.name: 0.0 for gateway in self.gateways}
        self.drained_at = {gateway.name: 0.0 for gateway in self.gateways}

    @staticmethod
    def _common(flags: list[str]) -> list[str]:
        return [*flags, f"--silence_timeout={SILENCE}s"]

    def others(self, unit: Unit) -> list[Unit]:
        group = {"target": self.targets, "gateway": self.gateways, "draft": self.drafts}[unit.role]
        return [other for other in group if other is not unit]

    def may_disturb(self, unit: Unit) -> bool:
        """Drafts always: without any the targets go on. Of the others one of each kind stays."""
        if unit.name in self.disturbed or not unit.running:
            return False
        return unit.role == "draft" or any(
            other.running and other.name not in self.disturbed for other in self.others(unit)
        )

    def note(self, what: str, unit: Unit) -> None:
        self.done[f"{what} {unit.role}"] += 1
        self.faults_at.append(time.monotonic())
        self.log.append(f"{time.monotonic() - self.begin:7.2f} s  {what} {unit.name}")

    async def settle(self, unit: Unit) -> None:
        """Until it serves: a target is of use once both gateways have it."""
        await asyncio.to_thread(unit.wait_ready)
        if unit.role != "target":
            return
        for gateway in self.gateways:
            while gateway.running:
                with contextlib.suppress(httpx.TransportError, AssertionError):
                    up = await asyncio.to_thread(
                        value_of, gateway.admin, "specfabric_gateway_targets_up"
                    )
                    if up == TARGETS:
                        break
                await asyncio.sleep(0.1)

    async def kill(self, unit: Unit, chance: random.Random) -> None:
        self.note("kill", unit)
        if unit.role == "gateway":
            self.killed_at[unit.name] = time.monotonic()
        unit.kill()
        await asyncio.sleep(chance.uniform(*AWAY))
        unit.start()

    async def stop(self, unit: Unit, chance: random.Random) -> None:
        self.note("stop", unit)
        unit.sleep()
        await asyncio.sleep(chance.uniform(*ASLEEP))
        unit.wake()

    async def stop_then_kill(self, unit: Unit, chance: random.Random) -> None:
        self.note("stop, then kill", unit)
        unit.sleep()
        await asyncio.sleep(chance.uniform(*ASLEEP))
        if unit.role == "gateway":
            self.killed_at[unit.name] = time.monotonic()
        unit.kill()
        await asyncio.sleep(chance.uniform(*AWAY))
        unit.start()

    async def drain(self, unit: Unit, chance: random.Random) -> None:
        """It leaves, and joins again as a new member."""
        self.note("drain", unit)
        if unit.role == "gateway":
            self.drained_at[unit.name] = time.monotonic()
        await asyncio.to_thread(unit.drain)
        await asyncio.sleep(chance.uniform(*AWAY))
        unit.start()

    async def disturb(self, unit: Unit, how: Disturbance, chance: random.Random) -> None:
        self.disturbed.add(unit.name)
        try:
            await how(unit, chance)
            await self.settle(unit)
        finally:
            self.disturbed.discard(unit.name)


Disturbance = Callable[[Unit, random.Random], Coroutine[Any, Any, None]]


async def wreak(pool: Pool, until: float, chance: random.Random) -> None:
    """One fault after the other, each mended in its own time; returns once all are."""
    weights = {"draft": 4, "target": 8, "gateway": 1}
    ways: list[Disturbance] = [pool.kill, pool.stop, pool.stop_then_kill, pool.drain]
    async with asyncio.TaskGroup() as faults:
        while True:
            await asyncio.sleep(chance.uniform(*PAUSE))
            if time.monotonic() >= until:
                return
            able = [unit for unit in pool.units if pool.may_disturb(unit)]
            if not able:
                continue
            (unit,) = chance.choices(able, [weights[unit.role] for unit in able])
            (how,) = chance.choices(ways, [3, 3, 1, 2])
            faults.create_task(pool.disturb(unit, how, random.Random(chance.random())))


@dataclass
class Findings:
    whole: int = 0
    cut: int = 0  # their gateway was killed
    refused: int = 0  # their gateway was on its way out
    wrong: list[str] = field(default_factory=list)


def is_excused(pool: Pool, gateway: Unit, begin: float, answer: Answer, status: int) -> str:
    """Why a stream may have failed: its gateway was killed, or draining before it began."""
    slack = 0.5  # of the clocks of two threads: far less than any life lasts
    if pool.killed_at[gateway.name] > begin - slack and status == 0:
        return "cut"
    if gateway.name in pool.disturbed and not answer.ids and status in (0, 503):
        return "refused"
    return ""


async def client(
    pool: Pool, model: str, cases: list[Any], until: float, seed: int, found: Findings
) -> None:
    chance = random.Random(seed)
    while time.monotonic() < until:
        gateway = chance.choice([g for g in pool.gateways if g.running] or pool.gateways)
        case = chance.randrange(len(cases))
        body, expected = cases[case]
        answer = Answer()
        begin = time.monotonic()
        try:
            await read(Server(f"http://{gateway.listen}", model), body, answer)
        except (ServerError, TimeoutError) as error:
            status = error.status if isinstance(error, ServerError) else -1
            excuse = is_excused(pool, gateway, begin, answer, status)
            same = answer.ids == expected.ids[: len(answer.ids)]
            if excuse == "cut":
                found.cut += 1
            elif excuse == "refused":
                found.refused += 1
                await asyncio.sleep(0.1)
            if not excuse or not same:
                at = time.monotonic() - pool.begin
                found.wrong.append(
                    f"{at:.2f} s: case {case} by {gateway.name} since {begin - pool.begin:.2f} s, "
                    f"{len(answer.ids)} tokens, {'right' if same else 'wrong'}: {error!r}"
                )
            continue
        if answer == expected:
            found.whole += 1
        else:
            at = time.monotonic() - pool.begin
            found.wrong.append(
                f"{at:.2f} s: case {case} by {gateway.name}: {answer} is not {expected}"
            )


async def rage(pool: Pool, model: str, cases: list[Any]) -> Findings:
    found = Findings()
    until = pool.begin + SECONDS
    async with asyncio.TaskGroup() as group:
        group.create_task(wreak(pool, until, random.Random(SEED)))
        for index in range(STREAMS):
            group.create_task(client(pool, model, cases, until, SEED + index, found))
    return found


def descriptors(unit: Unit) -> int:
    return len(os.listdir(f"/proc/{unit.pid}/fd"))


def is_zero(admin: str, name: str) -> bool:
    return value_of(admin, name) == 0


def has(admin: str, name: str, count: int) -> bool:
    return value_of(admin, name) == count


def has_no_sessions(draft: Unit) -> bool:
    page = plain_http.get(f"http://{draft.admin}/debug/sessions").json()
    assert page["usable"], page
    return page["sessions"] == 0 and page["busy"] == 0


def wait_until_joined(pool: Pool) -> None:
    for target in pool.targets:
        drafts = partial(has, target.admin, "specfabric_target_draft_workers", DRAFTS)
        wait_until(drafts, f"{target.name} has its drafts")
    for gateway in pool.gateways:
        targets = partial(has, gateway.admin, "specfabric_gateway_targets_up", TARGETS)
        wait_until(targets, f"{gateway.name} has its targets")


def assert_nothing_is_kept(pool: Pool, before: dict[str, int]) -> None:
    gauges = [
        (target.admin, f"specfabric_target_{name}")
        for target in pool.targets
        for name in ("running_sequences", "waiting_sequences", "kv_blocks_used")
    ]
    gauges += [(g.admin, "specfabric_gateway_requests_in_flight") for g in pool.gateways]
    gauges += [(u.admin, "specfabric_fabric_releasing_connections") for u in pool.units]
    for gauge in gauges:
        wait_until(partial(is_zero, *gauge), f"{gauge} is 0")
    for draft in pool.drafts:
        wait_until(partial(has_no_sessions, draft), f"{draft.name} has no sessions")
    for unit in pool.units:
        held = descriptors(unit)
        assert held <= before[unit.role] + 4, f"{unit.name} has {held}, {before[unit.role]} before"


def attempts(unit: Unit) -> float:
    names = ("connections_opened_total", "connect_failures_total")
    return sum(value_of(unit.admin, f"specfabric_fabric_{name}") for name in names)


def assert_no_storm(pool: Pool) -> None:
    """Of the last life of each: a loss costs quick attempts, a peer that is away one now and then.

    A restart of UCX, which a peer killed in the middle of a write may bring about, loses all peers.
    """
    restarts = sum(value_of(u.admin, "specfabric_fabric_restarts_total") for u in pool.units)
    for unit in pool.units:
        peers = {"draft": TARGETS, "target": DRAFTS + GATEWAYS, "gateway": TARGETS}[unit.role]
        seconds = time.monotonic() - unit.born
        faults = sum(at >= unit.born for at in pool.faults_at)
        bound = peers * (4 + seconds / 4) + 2 * faults + 4 * peers * restarts
        made = attempts(unit)
        print(
            f"{unit.name}: {made:.0f} connections tried in {seconds:.0f} s with {faults} faults, "
            f"{restarts:.0f} restarts of UCX; at most {bound:.0f} would be no storm"
        )
        assert made <= bound, unit.name


def undisturbed(pool: Pool) -> tuple[Server, list[tuple[dict[str, Any], Answer]]]:
    """A gateway, and what it answers to every kind of request while nothing happens."""
    gateway = f"http://{pool.gateways[0].listen}"
    server = Server(gateway, plain_http.get(f"{gateway}/v1/models").json()["data"][0]["id"])
    cases = []
    for body in requests():
        answer = Answer()
        asyncio.run(read(server, body, answer))
        assert len(answer.ids) == body["max_tokens"]
        cases.append((body, answer))
    return server, cases


def test_streams_survive_everything(tmp_path: Path) -> None:
    print(f"\nSPECFABRIC_CHAOS_SEED={SEED}")
    pool = Pool(tmp_path)
    with started_units(pool.units):
        wait_until_joined(pool)
        server, cases = undisturbed(pool)
        accepted = [
            value_of(target.admin, "specfabric_accepted_tokens_total") for target in pool.targets
        ]
        assert sum(accepted) > 0, "nothing is speculated"
        before = {
            role: max(descriptors(unit) for unit in pool.units if unit.role == role)
            for role in ("draft", "target", "gateway")
        }
        pool.begin = time.monotonic()
        try:
            found = asyncio.run(rage(pool, server.model, cases))
        finally:
            print("\n".join(pool.log))
            print(dict(pool.done))
        seconds = time.monotonic() - pool.begin
        print(
            f"{found.whole} whole, {found.cut} cut off, {found.refused} refused, "
            f"{len(found.wrong)} wrong in {seconds:.0f} s"
        )
        assert not found.wrong, "\n".join(found.wrong[:10])
        assert found.whole > STREAMS
        wait_until_joined(pool)
        assert_nothing_is_kept(pool, before)
        assert_no_storm(pool)
        for body, expected in cases[:6]:
            answer = Answer()
            asyncio.run(read(server, body, answer))
            assert answer == expected, "after the storm"
