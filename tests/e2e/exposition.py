"""Reads Prometheus metrics of a process."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

import plain_http


def families_of(address: str) -> Iterator[Metric]:
    """Every metric family at http://`address`/metrics; an error where the text does not parse."""
    response = plain_http.get(f"http://{address}/metrics")
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/plain")
    yield from text_string_to_metric_families(response.text)


def value_of(address: str, name: str, **labels: str) -> float:
    """The sum of the samples called `name` that carry `labels`; there must be one."""
    values = [
        sample.value
        for family in families_of(address)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    assert values, f"{address} has no sample {name} {labels}"
    return sum(values)
