"""LeaderWorkerSets of target groups, and DisaggregatedSets of targets and drafts."""

from __future__ import annotations

from typing import Any

import pytest

from rendered_chart import Document, find, find_all, merged, render

GROUPS: Document = {
    "target": {"replicas": 2, "tensorParallel": 4, "processes": 2, "gpu": {"count": 2}}
}
LWS: Document = merged(GROUPS, {"workloads": "leaderworkerset"})
SET: Document = {"workloads": "disaggregatedset"}


def arguments(pod: Document) -> list[str]:
    found: list[str] = pod["spec"]["containers"][0]["args"]
    return found


def without_join(pod: Document) -> Any:
    """A rank's pod but for what tells the groups apart."""
    kept = merged(pod)
    kept["metadata"]["labels"].pop("specfabric/group", None)
    container = kept["spec"]["containers"][0]
    container["args"] = [a for a in container["args"] if not a.startswith("--join=")]
    return kept


def test_a_leader_worker_set_has_the_pods_of_the_stateful_sets() -> None:
    plain = render("gpu-node", GROUPS)
    documents = render("gpu-node", LWS)
    assert not find_all(documents, "StatefulSet")
    spec = find(documents, "LeaderWorkerSet", "-target")["spec"]
    assert spec["replicas"] == 2
    template = spec["leaderWorkerTemplate"]
    assert template["size"] == 2
    assert template["leaderTemplate"] == find(plain, "StatefulSet", "-leader")["spec"]["template"]
    ranks = find(plain, "StatefulSet", "-rank-0")["spec"]["template"]
    assert without_join(template["workerTemplate"]) == without_join(ranks)
    # Gateways and drafts are as they were, and so is what finds the leaders.
    for kind, name in (
        ("Deployment", "-gateway"),
        ("Deployment", "-draft-small"),
        ("Service", "-targets"),
        ("PodDisruptionBudget", "-target"),
        ("PodDisruptionBudget", "-rank"),
    ):
        assert find(documents, kind, name) == find(plain, kind, name)


def test_ranks_join_the_leader_that_the_controller_names() -> None:
    """It gives every container of a group the leader's host name."""
    documents = render("gpu-node", LWS, {"ports": {"group": 7301}})
    template = find(documents, "LeaderWorkerSet", "-target")["spec"]["leaderWorkerTemplate"]
    assert "--join=$(LWS_LEADER_ADDRESS):7301" in arguments(template["workerTemplate"])
    assert "--group_listen=0.0.0.0:7301" in arguments(template["leaderTemplate"])
    # The set makes a Service of its own that finds leaders before they are ready.
    names = [d["metadata"]["name"] for d in find_all(documents, "Service")]
    assert not [name for name in names if name.endswith("-leaders")]


def test_groups_are_lost_and_rolled_as_a_whole_one_at_a_time() -> None:
    spec = find(render("gpu-node", LWS), "LeaderWorkerSet", "-target")["spec"]
    assert spec["leaderWorkerTemplate"]["restartPolicy"] == "RecreateGroupOnPodRestart"
    assert spec["rolloutStrategy"] == {
        "type": "RollingUpdate",
        "rollingUpdateConfiguration": {"maxUnavailable": 1, "maxSurge": 0},
    }


@pytest.mark.parametrize("processes", [1, 2])
def test_a_disaggregated_set_has_targets_and_all_pools(processes: int) -> None:
    values = {
        "target": {"replicas": 2, "processes": processes},
        "draft": {"pools": {"large": {"model": {"name": "other", "hostPath": {"path": "/o"}}}}},
    }
    plain = render("gpu-node", values)
    documents = render("gpu-node", values, SET)
    assert not find_all(documents, "StatefulSet") + find_all(documents, "LeaderWorkerSet")
    deployments = [d["metadata"]["name"] for d in find_all(documents, "Deployment")]
    assert deployments == ["fabric-specfabric-gateway", "fabric-specfabric-test-bench"]
    roles = {r["name"]: r for r in find(documents, "DisaggregatedSet", "")["spec"]["roles"]}
    assert list(roles) == ["target", "draft-large", "draft-small"]
    target = roles["target"]["spec"]
    assert target["replicas"] == 2
    template = target["leaderWorkerTemplate"]
    assert template["size"] == processes
    name, pod = {1: ("-target", "workerTemplate"), 2: ("-leader", "leaderTemplate")}[processes]
    assert template[pod] == find(plain, "StatefulSet", name)["spec"]["template"]
    assert ("leaderTemplate" in template) is (processes == 2)
    for pool, replicas in (("large", 2), ("small", 4)):
        draft = roles[f"draft-{pool}"]["spec"]
        assert draft["replicas"] == replicas
        assert draft["leaderWorkerTemplate"]["size"] == 1
        deployment = find(plain, "Deployment", f"-draft-{pool}")
        assert draft["leaderWorkerTemplate"]["workerTemplate"] == deployment["spec"]["template"]
    # A group of one pod starts again in its place, as a Deployment's pod does.
    policies = {
        r["name"]: r["spec"]["leaderWorkerTemplate"]["restartPolicy"] for r in roles.values()
    }
    assert policies.pop("target") == {1: "None", 2: "RecreateGroupOnPodRestart"}[processes]
    assert set(policies.values()) == {"None"}
    for service in ("-targets", "-drafts"):
        assert find(documents, "Service", service) == find(plain, "Service", service)
