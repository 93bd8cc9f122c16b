"""Each profile as a whole: linted, valid to Kubernetes' own schemas, and as it was agreed to be."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from rendered_chart import (
    CHART,
    KUBE_VERSION,
    PROFILES,
    SECRET,
    TOOLS,
    merged,
    profile,
    render,
    run_helm,
    template,
)

GOLDEN = Path(__file__).parent / "golden"
SOURCE = "---\n# Source: "  # begins each object that Helm prints
# Each of these has tests of its own; here they would be changed by what is packed into them.
UNPACKED = {"monitoring": {"prometheusRule": {"enabled": False}, "dashboards": {"enabled": False}}}
EVERYTHING = {
    "imagePullSecrets": [{"name": "registry"}],
    "commonEnv": [{"name": "UCX_LOG_LEVEL", "value": "info"}],
    "rdma": {"networks": ["llm/ib0"], "memlock": "cap", "gpudirect": True},
    "gateway": {
        "ingress": {"enabled": True, "host": "llm.example", "tls": [{"secretName": "tls"}]},
        "priorityClassName": "serving",
    },
    "target": {
        "model": {
            "pvc": None,
            "hub": {
                "endpoint": "https://hub.example",
                "repository": "org/model",
                "tokenSecret": {"name": "hub"},
            },
        }
    },
    "draft": {
        "pools": {
            "small": {
                "autoscaling": {"kind": "keda", "prometheusAddress": "http://prometheus:9090"}
            },
            "large": {
                "model": {"name": "large", "hostPath": {"path": "/srv/large"}},
                "autoscaling": {"kind": "hpa"},
            },
            "eagle": {
                "drafter": "eagle3",
                "model": {"name": "eagle", "pvc": {"claimName": "models", "path": "eagle"}},
            },
        }
    },
    "networkPolicy": {"clients": [{"namespaceSelector": {}}]},
    "monitoring": {
        "podMonitor": {"enabled": True},
        "prometheusRule": {"enabled": True, "runbookBaseUrl": "https://runbooks.example"},
        "dashboards": {"enabled": True},
    },
}


def hub(name: str) -> dict[str, Any]:
    return {"endpoint": "https://hub.example", "repository": f"org/{name}", "size": "50Gi"}


def kubeconform(manifests: str) -> tuple[int, str]:
    done = subprocess.run(
        [
            TOOLS / "kubeconform",
            "-strict",
            "-summary",
            "-schema-location",
            f"{TOOLS}/schemas/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json",
        ],
        input=manifests,
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


def test_there_are_profiles() -> None:
    assert PROFILES == ["gpu-node", "infiniband", "laptop"]


@pytest.mark.parametrize("name", PROFILES)
def test_lint_finds_nothing(name: str) -> None:
    status, out, errors = run_helm(
        "lint", "--strict", CHART, "--values", profile(name), "--kube-version", KUBE_VERSION
    )
    assert status == 0, out + errors
    assert "WARNING" not in out, out


@pytest.mark.parametrize("name", PROFILES)
def test_profile_is_valid_to_kubernetes(name: str) -> None:
    status, out, errors = template(name, SECRET)
    assert status == 0, errors
    status, told = kubeconform(out)
    assert status == 0, told
    assert "Skipped: 0" in told, told


@pytest.mark.parametrize("name", ["laptop", "gpu-node"])
def test_a_plain_cluster_has_all_that_is_asked_of_it(name: str) -> None:
    """No custom resources, and nothing that Kubernetes 1.30 lacks."""
    apis = {document["apiVersion"].split("/")[0] for document in render(name)}
    assert apis <= {"v1", "apps", "networking.k8s.io", "policy"}


def test_everything_at_once_is_valid_to_kubernetes() -> None:
    status, out, errors = template("infiniband", SECRET, EVERYTHING)
    assert status == 0, errors
    status, told = kubeconform(out)
    assert status == 0, told
    for kind in ("ScaledObject", "HorizontalPodAutoscaler", "PodMonitor", "PrometheusRule"):
        assert f"kind: {kind}\n" in out


def test_groups_of_several_pods_are_valid_to_kubernetes() -> None:
    group = {"target": {"tensorParallel": 2, "pipelineStages": 2, "processes": 2, "replicas": 2}}
    status, out, errors = template("laptop", SECRET, group)
    assert status == 0, errors
    status, told = kubeconform(out)
    assert status == 0, told
    assert out.count("kind: StatefulSet\n") == 3


# What the profiles do not make: objects of APIs that a cluster has to be given, or has since 1.34.
CLAIMS: dict[str, Any] = {
    "dra": {"enabled": True, "rdma": {"deviceClassName": "rdma.example"}},
    "target": {"rdmaCount": 4},
}
GATEWAY_API: dict[str, Any] = {
    "gateway": {
        "ingress": {"enabled": False},
        "httpRoute": {
            "enabled": True,
            "parentRefs": [{"name": "front", "namespace": "infra"}],
            "hostnames": ["llm.example"],
            "timeouts": {"request": "0s"},
        },
        "inferencePool": {"enabled": True, "endpointPicker": {"name": "picker"}},
    }
}
LEADER_WORKER_SET: dict[str, Any] = {
    "workloads": "leaderworkerset",
    "target": {
        "pipelineStages": 2,
        "processes": 2,
        "queue": {"system": "kueue", "name": "team"},
    },
}
DISAGGREGATED_SET: dict[str, Any] = {
    "workloads": "disaggregatedset",
    "target": {"queue": {"system": "kai", "name": "team"}},
    "draft": {
        "pools": {
            "small": {
                "autoscaling": {"kind": "none"},
                "queue": {"system": "volcano", "name": "team", "podGroup": "drafts"},
            }
        }
    },
}
# The files that they change, and what these make.
NEWER = [
    ("claims", CLAIMS, "devices", ["ResourceClaimTemplate"]),
    ("gateway-api", GATEWAY_API, "gatewayapi", ["HTTPRoute", "InferencePool"]),
    ("leader-worker-set", LEADER_WORKER_SET, "target", ["LeaderWorkerSet", "Service"]),
    ("disaggregated-set", DISAGGREGATED_SET, "disaggregatedset", ["DisaggregatedSet"]),
]


@pytest.mark.parametrize(("agreed", "values", "file", "kinds"), NEWER, ids=[n[0] for n in NEWER])
def test_newer_objects_are_valid_and_render_as_agreed(
    agreed: str, values: dict[str, Any], file: str, kinds: list[str], request: pytest.FixtureRequest
) -> None:
    status, out, errors = template("infiniband", SECRET, values)
    assert status == 0, errors
    status, told = kubeconform(out)
    assert status == 0, told
    assert "Skipped: 0" in told, told
    of_file = f"specfabric/templates/{file}.yaml"
    parts = [part for part in out.split(SOURCE) if part.startswith(of_file)]
    for kind in kinds:
        assert [part for part in parts if f"kind: {kind}\n" in part], kind
    compare("".join(SOURCE + part for part in parts), agreed, request)


@pytest.mark.parametrize(
    ("values", "right", "wrong"),
    [
        (CLAIMS, "matchAttribute:", "matchAttributes:"),
        (GATEWAY_API, "parentRefs:", "parentRef:"),
        (GATEWAY_API, "failureMode: FailOpen", "failureMode: FailSoft"),
        (LEADER_WORKER_SET, "restartPolicy: RecreateGroupOnPodRestart", "restartPolicy: Never"),
        (DISAGGREGATED_SET, "leaderWorkerTemplate:", "template:"),
    ],
)
def test_the_newer_schemas_refuse_what_is_unknown(
    values: dict[str, Any], right: str, wrong: str
) -> None:
    status, out, errors = template("infiniband", SECRET, values)
    assert status == 0, errors
    assert right in out
    status, told = kubeconform(out.replace(right, wrong))
    assert status == 1, told


def test_the_schemas_refuse_what_is_unknown() -> None:
    """Otherwise the tests above could not fail."""
    status, out, _ = template("laptop", SECRET)
    assert status == 0
    for right, wrong in (("  replicas: 1", "  replica: 1"), ("maxSurge: 1", "maxSurge: [1]")):
        assert right in out
        status, told = kubeconform(out.replace(right, wrong))
        assert status == 1, told


def compare(came: str, agreed: str, request: pytest.FixtureRequest) -> None:
    golden = GOLDEN / f"{agreed}.yaml"
    if request.config.getoption("--update-golden", default=False):
        golden.write_text(came)
    assert came == golden.read_text(), "if that is meant: pytest tests/helm --update-golden"


# A group larger than a node: two pods of four GPUs each, a pipeline stage in each.
GROUPS = {"target": {"tensorParallel": 4, "pipelineStages": 2, "processes": 2}}


@pytest.mark.parametrize(
    ("name", "values", "agreed"),
    [*((name, {}, name) for name in PROFILES), ("gpu-node", GROUPS, "gpu-node-groups")],
)
def test_profile_renders_as_agreed(
    name: str, values: dict[str, Any], agreed: str, request: pytest.FixtureRequest
) -> None:
    status, out, errors = template(name, merged(SECRET, UNPACKED, values))
    assert status == 0, errors
    # The scripts are compared where they lie.
    parts = out.split(SOURCE)
    kept = [part for part in parts if not part.startswith("specfabric/templates/scripts.yaml")]
    assert len(kept) == len(parts) - 1
    compare(SOURCE.join(kept), agreed, request)


# These change draft.yaml, and where targets and gateways have the target's model from.
EAGLE: dict[str, Any] = {"draft": {"pools": {"small": {"drafter": "eagle3"}}}}
HUBS: dict[str, Any] = {
    "target": {"model": {"hostPath": None, "hub": hub("target")}},
    "draft": {"pools": {"small": {"model": {"hostPath": None, "hub": hub("eagle3")}}}},
}


@pytest.mark.parametrize(
    ("name", "values", "agreed"),
    [("gpu-node", EAGLE, "eagle3-pvc"), ("laptop", merged(EAGLE, HUBS), "eagle3-hub")],
)
def test_eagle3_pool_renders_as_agreed(
    name: str, values: dict[str, Any], agreed: str, request: pytest.FixtureRequest
) -> None:
    status, out, errors = template(name, merged(SECRET, values))
    assert status == 0, errors
    parts = [part for part in out.split(SOURCE) if part.startswith("specfabric/templates/draft.")]
    assert parts
    compare("".join(SOURCE + part for part in parts), agreed, request)
