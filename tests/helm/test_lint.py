"""`helm lint`, which goes on after a refusal, and values that are taken away by null.

Whatever is missing, a person is told which value; never where a template looked for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from rendered_chart import (
    CHART,
    KUBE_VERSION,
    PROFILES,
    SECRET,
    Document,
    merged,
    profile,
    run_helm,
    template,
)
from test_profiles import GROUPS
from test_refusals import REFUSED

DEFAULTS: Document = yaml.safe_load((CHART / "values.yaml").read_text())

# The laptop's profile with all that is off by default.
EVERYTHING: Document = {
    "rdma": {"enabled": True, "resourceName": "rdma/hca", "networks": ["net"], "memlock": "cap"},
    "tracing": {"otlpEndpoint": "http://collector:4318"},
    "gateway": {
        "ingress": {"enabled": True},
        "httpRoute": {"enabled": True, "parentRefs": [{"name": "front"}]},
        "inferencePool": {"enabled": True, "endpointPicker": {"name": "picker"}},
        "queue": {"system": "kueue", "name": "team"},
    },
    "target": {"queue": {"system": "volcano", "name": "team", "podGroup": "group"}},
    "draft": {
        "defaults": {"queue": {"system": "kai", "name": "team"}},
        "pools": {"small": {"drafter": "eagle3", "autoscaling": {"kind": "hpa"}}},
    },
    "monitoring": {
        "podMonitor": {"enabled": True},
        "prometheusRule": {"enabled": True},
        "dashboards": {"enabled": True},
    },
}
# What makes other objects than the above.
DRA: Document = {"dra": {"enabled": True, "rdma": {"deviceClassName": "rdma.example"}}}
SET: Document = {
    "workloads": "disaggregatedset",
    "draft": {"pools": {"small": {"autoscaling": {"kind": "none"}}}},
}


def lint(*files: str, values: Document | None = None) -> tuple[int, str]:
    """Exit status, and all that is said."""
    arguments: list[Any] = ["lint", "--strict", CHART, "--kube-version", KUBE_VERSION]
    for name in files:
        arguments += ["--values", profile(name)]
    status, out, errors = run_helm(*arguments, values=values)
    return status, out + errors


def assert_clear(told: str) -> None:
    for words in ("nil pointer", "<nil>", "%!s", "error calling", "wrong type"):
        assert words not in told, told


def test_the_defaults_name_the_one_value_that_they_cannot_have() -> None:
    status, told = lint()
    assert status == 0, told
    assert_clear(told)
    # Once for each time that Helm renders the chart.
    [line] = {line for line in told.splitlines() if "Fail:" in line}
    assert line.endswith("target.model has no source: give exactly one of pvc, hostPath and hub")


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("over", [{}, SECRET, EVERYTHING, GROUPS, DRA, SET], ids=str)
def test_nothing_is_found_in_the_profiles(name: str, over: Document) -> None:
    status, told = lint(name, values=over)
    assert status == 0, told
    assert_clear(told)
    assert "WARNING" not in told, told


@pytest.mark.parametrize("values", [r[1] for r in REFUSED], ids=[r[0] for r in REFUSED])
def test_what_is_refused_is_clear_to_lint_too(values: Document) -> None:
    _, told = lint("laptop", values=merged(SECRET, values))
    assert_clear(told)


def paths(values: Document, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in values.items():
        yield (*above, key)
        if isinstance(value, dict):
            yield from paths(value, (*above, key))


def null_at(path: tuple[str, ...]) -> Document:
    value: Any = None
    for key in reversed(path):
        value = {key: value}
    assert isinstance(value, dict)
    return value


@pytest.mark.parametrize("path", list(paths(DEFAULTS)), ids=".".join)
def test_a_value_set_to_null_is_left_out_or_missed_by_name(path: tuple[str, ...]) -> None:
    with_claims = DRA if path[0] == "dra" else {}
    status, out, errors = template("laptop", merged(SECRET, EVERYTHING, with_claims, null_at(path)))
    assert_clear(out + errors)
    if status == 0:
        return
    assert out == ""
    assert path[-1] in errors, errors


@pytest.mark.parametrize("key", list(DEFAULTS))
def test_a_top_level_value_set_to_null_without_a_profile(key: str) -> None:
    """Nothing but the defaults around it."""
    model = {"target": {"model": {"name": "m", "hostPath": {"path": "/srv/m"}}}}
    status, out, errors = template(None, merged(SECRET, model, {key: None}))
    assert_clear(out + errors)
    assert status == 0 or key in errors, errors
