"""Sends a trace to a server at its times and gathers what came of it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import Any

from tqdm import tqdm

from bench.serving.client import Outcome, Server, complete
from bench.serving.workload import Planned


async def drive(
    server: Server,
    requests: Sequence[Planned],
    options: dict[str, Any],
    max_concurrency: int | None = None,
    show_progress: bool = False,
) -> tuple[list[Outcome], float]:
    """Every request's outcome in the order of `requests`, and the whole run's seconds.

    `options` are fields of every request's body. A request that waits for its turn under
    `max_concurrency` counts from when it is sent, as in vLLM's client. The progress bar goes to
    standard error, where that is a terminal.
    """
    gate = asyncio.Semaphore(max_concurrency) if max_concurrency else contextlib.nullcontext()
    # disable=None: shown on a terminal only.
    progress = tqdm(total=len(requests), unit="req", disable=None if show_progress else True)
    begin = time.perf_counter()

    async def send(request: Planned) -> Outcome:
        async with gate:
            outcome = await complete(
                server, request.prompt, request.output_tokens, {"seed": request.seed, **options}
            )
        progress.update()
        return outcome

    tasks = []
    async with asyncio.TaskGroup() as group:
        for request in requests:
            await asyncio.sleep(max(0.0, begin + request.seconds - time.perf_counter()))
            tasks.append(group.create_task(send(request)))
    duration = time.perf_counter() - begin
    progress.close()
    return [task.result() for task in tasks], duration
