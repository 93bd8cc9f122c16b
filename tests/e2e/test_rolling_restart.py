"""Every member of every role is restarted, one after the other, under load: no client notices.

As an upgrade does it in a cluster: a process is told to drain (SIGTERM) and ends with status 0, the
next begins once its successor has joined. Before a gateway is told, new requests go to the other
one, as a Service's do once a pod is on its way out.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.serving.client import Server, ServerError
from exposition import value_of
from test_chaos import Answer, Pool, read, undisturbed, wait_until_joined
from units import Unit, started_units

STREAMS = 6
LEAVES = 0.5  # seconds between the last new request of a gateway and its SIGTERM


class Clients:
    """Streams that go on until they are told not to; what they found."""

    def __init__(self, pool: Pool, model: str, cases: list[tuple[dict[str, Any], Answer]]) -> None:
        self.pool, self.model, self.cases = pool, model, cases
        self.leaving: set[str] = set()
        self.over = False
        self.whole = 0
        self.wrong: list[str] = []

    async def run(self, seed: int) -> None:
        chance = random.Random(seed)
        while not self.over:
            gateways = [g for g in self.pool.gateways if g.name not in self.leaving]
            gateway = chance.choice(gateways)
            body, expected = chance.choice(self.cases)
            answer = Answer()
            try:
                await read(Server(f"http://{gateway.listen}", self.model), body, answer)
            except (ServerError, TimeoutError) as error:
                self.wrong.append(f"by {gateway.name}, {len(answer.ids)} tokens: {error!r}")
                continue
            if answer == expected:
                self.whole += 1
            else:
                self.wrong.append(f"by {gateway.name}: {answer} is not {expected}")


async def restart(pool: Pool, unit: Unit, clients: Clients) -> None:
    if unit.role == "gateway":
        clients.leaving.add(unit.name)
        await asyncio.sleep(LEAVES)
    await asyncio.to_thread(unit.drain)
    unit.start()
    await pool.settle(unit)
    await asyncio.to_thread(wait_until_joined, pool)
    clients.leaving.discard(unit.name)


async def roll(pool: Pool, clients: Clients) -> dict[str, int]:
    """Whole answers during the restart of each member."""
    during = {}
    async with asyncio.TaskGroup() as group:
        for seed in range(STREAMS):
            group.create_task(clients.run(seed))
        try:
            for unit in pool.units:
                before = clients.whole
                await restart(pool, unit, clients)
                await asyncio.sleep(0.5)  # under load with the new one
                during[unit.name] = clients.whole - before
        finally:
            clients.over = True
    return during


@pytest.fixture
def quick_switches() -> Iterator[None]:
    """Who waits for a process to end must not queue for the interpreter behind busy clients."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(before / 50)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("quick_switches")
def test_nobody_notices_a_rolling_restart(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    with started_units(pool.units):
        wait_until_joined(pool)
        server, cases = undisturbed(pool)
        clients = Clients(pool, server.model, cases)
        begin = time.monotonic()
        during = asyncio.run(roll(pool, clients))
        print(f"\n{clients.whole} whole answers in {time.monotonic() - begin:.0f} s: {during}")
        assert not clients.wrong, "\n".join(clients.wrong[:10])
        assert all(unit.lives == 2 for unit in pool.units)
        assert all(whole > 0 for whole in during.values()), "nobody was served meanwhile"
        accepted = [
            value_of(target.admin, "specfabric_accepted_tokens_total") for target in pool.targets
        ]
        assert all(accepted), "the new targets speculate with the new drafts"
