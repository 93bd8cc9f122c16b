"""GPUs and RDMA devices by claims (dra.enabled) instead of by device plugins."""

from __future__ import annotations

from typing import Any

import pytest

from rendered_chart import (
    Document,
    find,
    find_all,
    main_container,
    merged,
    pod_spec,
    pods,
    render,
    roles,
    template,
)

PCIE_ROOT = "resource.kubernetes.io/pcieRoot"
CLASSES = {"gpu.nvidia.com": "gpu", "rdma.example": "rdma"}
DRA: Document = {"dra": {"enabled": True, "rdma": {"deviceClassName": "rdma.example"}}}
RDMA: Document = {"rdma": {"enabled": True, "resourceName": "rdma/hca"}}


def devices(documents: list[Document], document: Document) -> list[dict[str, Any]]:
    """Of each claim of a pod: how many devices of each class it asks for, and what they share."""
    templates = {
        d["metadata"]["name"]: d["spec"]["spec"]["devices"]
        for d in find_all(documents, "ResourceClaimTemplate")
    }
    claims = pod_spec(document).get("resourceClaims", [])
    used = main_container(document)["resources"].get("claims", [])
    assert [claim["name"] for claim in claims] == [claim["name"] for claim in used]
    out = []
    for claim in claims:
        asked = templates[claim["resourceClaimTemplateName"]]
        counts = {
            CLASSES[r["exactly"]["deviceClassName"]]: r["exactly"]["count"]
            for r in asked["requests"]
        }
        shared = [c["matchAttribute"] for c in asked.get("constraints", [])]
        out.append({**counts, "shared": shared})
    return out


def target(gpus: int, nics: int, *over: Document) -> list[dict[str, Any]]:
    values = {"target": {"gpu": {"count": gpus}, "rdmaCount": nics, "tensorParallel": 1}}
    documents = render("laptop", DRA, RDMA if nics else {}, values, *over)
    return devices(documents, find(documents, "StatefulSet", "-target"))


@pytest.mark.parametrize(
    ("gpus", "nics", "claims", "each"),
    [
        (1, 1, 1, (1, 1)),
        (8, 8, 8, (1, 1)),
        (8, 2, 2, (4, 1)),
        (2, 4, 2, (1, 2)),
        (6, 4, 2, (3, 2)),
        (5, 3, 1, (5, 3)),
        (55, 34, 1, (55, 34)),
        (64, 48, 16, (4, 3)),
    ],
)
def test_gpus_and_nics_are_paired(gpus: int, nics: int, claims: int, each: tuple[int, int]) -> None:
    pair = {"gpu": each[0], "rdma": each[1], "shared": [PCIE_ROOT]}
    assert target(gpus, nics) == [pair] * claims


def test_devices_of_one_kind_are_one_claim() -> None:
    assert target(8, 0) == [{"gpu": 8, "shared": []}]
    assert target(0, 4) == [{"rdma": 4, "shared": []}]
    assert target(0, 0) == []


def test_what_devices_share_is_a_value() -> None:
    for attribute, shared in (("example.com/numaNode", ["example.com/numaNode"]), ("", [])):
        over = {"dra": {"matchAttribute": attribute}}
        assert target(2, 2, over) == [{"gpu": 1, "rdma": 1, "shared": shared}] * 2


def test_selectors_are_passed_on() -> None:
    expression = "device.attributes['gpu.nvidia.com'].productName.startsWith('NVIDIA H200')"
    over = {"dra": {"gpu": {"selectors": [expression]}}, "target": {"gpu": {"count": 1}}}
    [asked] = find_all(render("laptop", DRA, over), "ResourceClaimTemplate")
    [request] = asked["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"]["selectors"] == [{"cel": {"expression": expression}}]


def test_each_role_has_the_devices_that_it_counts() -> None:
    documents = render(
        "infiniband",
        DRA,
        {
            "rdma": {"count": 1},
            "target": {"rdmaCount": 8, "pipelineStages": 2, "processes": 2},
            "draft": {"pools": {"cpu": {"model": {"name": "other", "hostPath": {"path": "/o"}}}}},
        },
    )
    pair = {"gpu": 1, "rdma": 1, "shared": [PCIE_ROOT]}
    for kind, name, wanted in (
        ("StatefulSet", "-leader", [pair] * 8),
        ("StatefulSet", "-rank-0", [pair] * 8),
        ("Deployment", "-draft-small", [pair]),
        ("Deployment", "-draft-cpu", [{"rdma": 1, "shared": []}]),
        ("Deployment", "-gateway", [{"rdma": 1, "shared": []}]),
        ("Deployment", "-test-bench", [{"rdma": 1, "shared": []}]),
        ("Pod", "-test-bench", [{"rdma": 1, "shared": []}]),
    ):
        assert devices(documents, find(documents, kind, name)) == wanted, name
    # None of them from a device plugin too, and no template that nobody uses.
    used = set()
    for document in pods(documents):
        assert not {"nvidia.com/gpu", "rdma/hca"} & set(limits(document))
        used |= {
            c["resourceClaimTemplateName"] for c in pod_spec(document).get("resourceClaims", [])
        }
    assert used == {d["metadata"]["name"] for d in find_all(documents, "ResourceClaimTemplate")}


def limits(document: Document) -> Document:
    found: Document = main_container(document)["resources"].get("limits", {})
    return found


def test_device_plugins_count_by_role_too() -> None:
    documents = render("infiniband", {"target": {"rdmaCount": 8}})
    assert limits(find(documents, "StatefulSet", "-target"))["rdma/hca"] == 8
    assert limits(find(documents, "Deployment", "-draft-small"))["rdma/hca"] == 1
    assert limits(find(documents, "Pod", "-test-bench"))["rdma/hca"] == 1
    assert not find_all(documents, "ResourceClaimTemplate")
    assert all("resourceClaims" not in pod_spec(document) for document in roles(documents))


def test_other_devices_have_a_template_of_another_name() -> None:
    """Templates cannot be changed: an upgrade that tried would fail."""
    made = {}
    for gpus in (1, 2):
        values = {"target": {"gpu": {"count": gpus}}}
        [asked] = find_all(render("laptop", DRA, values), "ResourceClaimTemplate")
        made[asked["metadata"]["name"]] = asked["spec"]
    assert len(made) == 2


def test_it_needs_kubernetes_1_34() -> None:
    for version, works in (("1.33.9", False), ("1.34.0", True), ("1.34.4-gke.100", True)):
        status, _, errors = template("laptop", merged(DRA), kube_version=version)
        assert (status == 0) is works, errors
        if not works:
            assert "dra.enabled=true with Kubernetes v1.33.9: resource.k8s.io/v1 is" in errors
