"""The draft pool follows its used slots, by a real autoscaler and a metric that tests choose."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path

from external_metrics import external_metrics
from kube import ControlPlane, Space, wait_for
from rendered_chart import RELEASE

SLOTS = 64
TARGET_USAGE = 0.7
NO_PATIENCE = "draft.pools.small.autoscaling.behavior.scaleDown.stabilizationWindowSeconds=0"


def scale(space: Space) -> int:
    return space.ready("deployment", "-draft-small")


def asked_for(space: Space) -> int:
    return space.get("deployment", "-draft-small")["spec"]["replicas"]


def test_the_pool_follows_its_used_slots(plane: ControlPlane, tmp_path: Path) -> None:
    busy = 0
    with plane.namespace("scaled") as space:

        def usage() -> float:
            """As the query makes it: used slots over those of all workers, none of them late."""
            workers = 0
            with contextlib.suppress(AssertionError):  # before it is installed, and after
                workers = asked_for(space)
            return min(1.0, busy / (SLOTS * max(1, workers)))

        with external_metrics(plane, tmp_path, usage) as metrics:
            space.install(
                "laptop",
                "--set",
                "draft.pools.small.autoscaling.kind=hpa,draft.pools.small.autoscaling.maxReplicas=6",
                "--set",
                NO_PATIENCE,
            )
            for busy in (150, 260, 1000, 40, 0):
                wanted = min(6, max(1, math.ceil(busy / (SLOTS * TARGET_USAGE))))
                wait_for(wanted, scale, space, what=f"{wanted} workers for {busy} slots")
            space.upgrade("--set", "image.tag=next")
            # What 4 workers are to have: there the autoscaler stays, though it counts ready pods,
            # of which some are missing while they are exchanged.
            busy = int(4 * SLOTS * TARGET_USAGE)
            wait_for(4, scale, space, what="an upgrade leaves the replicas to the autoscaler")
            space.upgrade("--set", "image.tag=later")
            assert asked_for(space) == 4  # not all may be ready yet
        # Besides what is asked of every API that is aggregated.
        assert {asked for asked in metrics.asked if asked[0].startswith("namespaces/")} == {
            ("namespaces/scaled/specfabric_draft_slot_usage", f"pool=small,release={RELEASE}")
        }
