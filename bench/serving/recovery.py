"""How soon a drafter that has lost its state is accepted as often as before.

Two ways to lose it. *Cached*: a prompt is asked again; the target has its KV in the prefix cache,
so that nobody has its hidden states. *Killed*: the worker of a sequence is killed while the target
generates (SIGKILL), and another one goes on with it: it runs the text again, but hidden states are
there only from then on. Both are compared with a first, undisturbed answer to the same prompt,
round for round from the same token on. Used by drafters.py.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from threading import Thread
from typing import Any

from cluster import Cluster, Member, start_cluster
from exposition import value_of

# Bounds of rounds that are averaged over.
ROUNDS = (0, 1, 2, 4, 8, 16, 32)
# Events of a stream before its worker is killed.
KILLED_AFTER = 8


@dataclass(frozen=True)
class Round:
    time: float  # when its event came
    accepted: int  # draft tokens


def layers_read(drafter: Path) -> int:
    """How many layers of its target a drafter reads; 0: none. docs/models.md has the fields."""
    config: dict[str, Any] = json.loads((drafter / "config.json").read_text())
    for fields in (config, config.get("dflash_config", {}), config.get("eagle_config", {})):
        for key in (
            "eagle_aux_hidden_state_layer_ids",
            "aux_hidden_state_layer_ids",
            "target_layer_ids",
        ):
            if key in fields:
                return len(fields[key])
    return 0


class Killer(Thread):
    """Kills the worker that has the only session of a cluster."""

    def __init__(self, cluster: Cluster, workers: list[Member]) -> None:
        super().__init__()
        self.cluster, self.workers = cluster, workers
        self.killed_at: float | None = None

    def run(self) -> None:
        for worker in self.workers:
            if value_of(worker.admin, "specfabric_draft_sessions") > 0:
                self.cluster.kill(worker)
                self.killed_at = time.monotonic()
                self.workers.remove(worker)
                return


def rounds_of(
    cluster: Cluster, prompt: str, arguments: argparse.Namespace, killer: Killer | None = None
) -> list[Round]:
    """Each event of a lone stream is a round's."""
    rounds = []
    for event in cluster.stream(
        prompt=prompt,
        max_tokens=arguments.max_tokens,
        temperature=arguments.temperature,
        seed=1,
        ignore_eos=True,
        return_token_ids=True,
    ):
        if event["choices"] and event["choices"][0]["token_ids"]:
            accepted = len(event["choices"][0]["token_ids"]) - 1
            rounds.append(Round(time.monotonic(), accepted))
            if killer is not None and len(rounds) == KILLED_AFTER:
                killer.start()
    if killer is not None:
        killer.join()
    return rounds


def after_token(rounds: list[Round], tokens: int) -> list[int]:
    """The accepted tokens of the rounds that begin at this token or later."""
    begin, counts = 0, []
    for one in rounds:
        if begin >= tokens:
            counts.append(one.accepted)
        begin += one.accepted + 1
    return counts


def print_curve(title: str, undisturbed: list[list[int]], disturbed: list[list[int]]) -> None:
    print(f"\n{title}: draft tokens accepted a round, by the rounds since")
    print(f"{'rounds':>10} {'before':>7} {'after':>7}")
    for first, last in zip(ROUNDS, (*ROUNDS[1:], 10**6), strict=True):
        row = [
            [count for counts in way for count in counts[first:last]]
            for way in (undisturbed, disturbed)
        ]
        if all(row):
            name = f"{first} to {last - 1}" if last < 10**6 else f"{first}+"
            print(f"{name:>10} {mean(row[0]):7.2f} {mean(row[1]):7.2f}", flush=True)


def print_cached(
    kind: str, cluster: Cluster, prompts: list[str], arguments: argparse.Namespace
) -> None:
    """Before the prompts are in any cache. The first event is the prompt's."""
    first, again = (
        [[one.accepted for one in rounds_of(cluster, prompt, arguments)[1:]] for prompt in prompts]
        for _ in range(2)
    )
    print_curve(f"{kind}, prompt cached", first, again)


def print_killed(
    kind: str, drafter: Path, folder: Path, prompts: list[str], arguments: argparse.Namespace
) -> None:
    """A worker for each prompt, and one to go on with the last."""
    undisturbed, disturbed = [], []
    with start_cluster(
        folder / f"{kind} killed.log",
        arguments.model,
        drafter,
        drafts=1 + len(prompts),
        dtype="bfloat16",
        speculation=arguments.speculation,
    ) as cluster:
        workers = list(cluster.drafts)
        for prompt in prompts:
            before = rounds_of(cluster, prompt, arguments)
            killer = Killer(cluster, workers)
            rounds = rounds_of(cluster, prompt, arguments, killer)
            if killer.killed_at is None:
                continue  # the text ended first
            killed_at = killer.killed_at
            tokens = sum(one.accepted + 1 for one in rounds if one.time <= killed_at)
            undisturbed.append(after_token(before, tokens))
            disturbed.append([one.accepted for one in rounds if one.time > killed_at])
    print_curve(f"{kind}, worker killed ({len(disturbed)} times)", undisturbed, disturbed)
