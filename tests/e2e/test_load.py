"""Many sequences at once."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import make
from cluster import Cluster, start_cluster
from exposition import value_of

CHOICES = 128  # the most a request may have
REQUESTS = 4
PROMPT = [2, 5, 3]


@pytest.fixture(scope="module")
def tiny_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A model whose steps take no time, so that its target says as much as it can."""
    make.logging.disable_progress_bar()
    folder = tmp_path_factory.mktemp("load")
    model = make.make("llama-tiny-vocabulary", folder / "target")
    extra = [f"--max_sequences={REQUESTS * CHOICES}", f"--max_step_tokens={2 * REQUESTS * CHOICES}"]
    with start_cluster(folder / "up.log", model, None, drafts=0, extra=extra) as cluster:
        yield cluster


def test_hundreds_of_sequences_do_not_cost_the_gateway_its_link(tiny_cluster: Cluster) -> None:
    def ask(seed: int) -> dict[str, Any]:
        return tiny_cluster.complete(
            prompt=PROMPT, n=CHOICES, seed=seed, max_tokens=200, temperature=1, ignore_eos=True
        )

    with ThreadPoolExecutor(REQUESTS) as pool:
        answers = list(pool.map(ask, range(REQUESTS)))
    for answer in answers:
        assert {choice["finish_reason"] for choice in answer["choices"]} == {"length"}
        assert answer["usage"]["completion_tokens"] == 200 * CHOICES
    gateway, (target,) = tiny_cluster.gateway, tiny_cluster.targets
    assert value_of(gateway.admin, "specfabric_gateway_resubmissions_total") == 0
    assert value_of(gateway.admin, "specfabric_fabric_handshakes_total") == 1
    assert value_of(target.admin, "specfabric_fabric_back_pressure_total") == 0
    # One message a step, whatever is said in it.
    received = value_of(gateway.admin, "specfabric_fabric_frames_total", direction="received")
    assert received < value_of(target.admin, "specfabric_rounds_total") / 10
