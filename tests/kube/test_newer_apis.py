"""Releases with objects of newer APIs through their lives, by the real controllers and scheduler.

Of LeaderWorkerSets and DisaggregatedSets the controller is theirs; of claims the scheduler is
Kubernetes', and the devices are made up. Nothing implements the Gateway API here: its objects are
checked by the API server, by their definitions' schemas and rules.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest

from devices import allocations, devices
from kube import ControlPlane, Space, Watch, wait_for, wait_until
from lws import leader_worker_sets
from rendered_chart import CHART, RELEASE, profile

# What the schemas and goldens of tests/helm cannot show; a minute in all.
LONG_TIER = pytest.mark.skipif(
    os.environ.get("SPECFABRIC_TEST_TIER", "long") != "long",
    reason="only in the long tier: SPECFABRIC_TEST_TIER=long",
)
GROUPS = "workloads=leaderworkerset,target.processes=2,target.pipelineStages=2,target.replicas=2"
SET = "workloads=disaggregatedset,target.replicas=2"


@pytest.fixture(scope="module")
def sets(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """The plane with the controller of LeaderWorkerSets."""
    with leader_worker_sets(plane, tmp_path_factory.mktemp("lws")):
        yield plane


def ready(space: Space, component: str) -> int:
    """Ready pods of a role."""
    pods = space.get("pods", "", f"-lapp.kubernetes.io/component={component}")["items"]
    return sum(
        condition["status"] == "True"
        for pod in pods
        if "deletionTimestamp" not in pod["metadata"]
        for condition in pod["status"].get("conditions", [])
        if condition["type"] == "Ready"
    )


def all_are(space: Space, image: set[str], counts: dict[str, int]) -> bool:
    return all(
        space.images(role) == image and ready(space, role) == count
        for role, count in counts.items()
    )


@LONG_TIER
def test_a_leader_worker_set_lives_and_goes(sets: ControlPlane) -> None:
    with sets.namespace("leaders") as space:
        before = space.everything()
        space.install("laptop", "--set", GROUPS)
        wait_for(2, space.members, "-targets", what="the leaders of both groups are members")
        wait_for(2, ready, space, "rank", what="a rank of each group is ready")
        joins_its_leader(space)

        space.upgrade("--set", "target.replicas=3")
        wait_for(3, space.members, "-targets", what="three groups")
        wait_for(3, ready, space, "rank", what="three ranks")
        space.upgrade("--set", "target.replicas=2")
        wait_for(2, ready, space, "rank", what="two ranks")
        wait_for(2, space.members, "-targets", what="two groups")

        loses_a_group_with_its_rank(space)

        first = space.images("target")
        both = {"target": 2, "rank": 2}
        with Watch(space) as seen:
            space.upgrade("--set", "image.tag=next")
            wait_until(lambda: all_are(space, {"specfabric:next"}, both), "all groups are new")
            wait_for(2, space.members, "-targets", what="two new groups are members")
        assert seen.targets and min(seen.targets) >= 1, "a group at a time"
        space.must("rollback", RELEASE, "--wait", "--timeout=120s")
        wait_until(lambda: all_are(space, first, both), "all groups are as before")

        space.uninstall()
        wait_until(lambda: space.everything() == before, "nothing is left")


def joins_its_leader(space: Space) -> None:
    """The name that a rank is given is that of its group's leader, which is found unready too."""
    for pod in space.get("pods", "", "-lapp.kubernetes.io/component=rank")["items"]:
        [container] = pod["spec"]["containers"]
        given = {e["name"]: e.get("value", "") for e in container["env"]}
        assert "--join=$(LWS_LEADER_ADDRESS):7300" in container["args"]
        host, service, namespace = given["LWS_LEADER_ADDRESS"].split(".")
        group = pod["metadata"]["labels"]["leaderworkerset.sigs.k8s.io/group-index"]
        leader = json.loads(space.kubectl("get", "pod", host, "-o", "json"))
        assert leader["metadata"]["labels"]["leaderworkerset.sigs.k8s.io/group-index"] == group
        assert leader["metadata"]["labels"]["app.kubernetes.io/component"] == "target"
        found = json.loads(space.kubectl("get", "service", service, "-o", "json"))["spec"]
        assert found["publishNotReadyAddresses"] is True and found["clusterIP"] == "None"
        assert namespace == space.name


def loses_a_group_with_its_rank(space: Space) -> None:
    """One lost pod ends its group, whose pods all start again; the others stay."""
    leaders = [f"{RELEASE}-specfabric-target-{group}" for group in range(2)]

    def identities() -> list[str]:
        done = space.plane.run(
            *("kubectl", "-n", space.name, "get", "pods", *leaders, "--ignore-not-found"),
            *("-o", "jsonpath={.items[*].metadata.uid}"),
        )
        return done.stdout.split()

    old = identities()
    assert len(old) == 2
    # The controller has to see it while it ends, which a kubelet takes longer for than kwok.
    lost = f"{leaders[1]}-1"
    space.kubectl("annotate", "pod", lost, "pod-delete.stage.kwok.x-k8s.io/delay=3s")
    space.kubectl("delete", "pod", lost)
    wait_until(
        lambda: len(set(identities()) - set(old)) == 1 and identities()[0] == old[0],
        "the group's leader is another, the other group's is not",
    )
    wait_for(2, ready, space, "rank", what="both groups have their ranks")
    wait_for(2, space.members, "-targets", what="both groups are back")


@LONG_TIER
def test_a_disaggregated_set_lives_and_goes(sets: ControlPlane) -> None:
    with sets.namespace("both") as space:
        before = space.everything()
        space.install("laptop", "--set", SET)
        wait_for(2, space.members, "-targets", what="two targets are members")
        wait_for(2, space.members, "-drafts", what="two drafts are members")

        names = {"target": pod_names(space, "target"), "draft": pod_names(space, "draft")}
        space.upgrade("--set", "draft.pools.small.replicas=4")
        wait_for(4, space.members, "-drafts", what="four drafts are members")
        assert names["target"] == pod_names(space, "target"), "scaling restarts nothing"
        assert names["draft"] < pod_names(space, "draft")

        first = space.images("target")
        counts = {"target": 2, "draft": 4}
        with Watch(space) as seen:
            space.upgrade("--set", "image.tag=next")
            wait_until(lambda: all_are(space, {"specfabric:next"}, counts), "both roles are new")
            wait_for(2, space.members, "-targets", what="two new targets are members")
        assert seen.targets and min(seen.targets) >= 1, "a target at a time"
        space.must("rollback", RELEASE, "--wait", "--timeout=120s")
        wait_until(lambda: all_are(space, first, counts), "both roles are as before")

        space.uninstall()
        wait_until(lambda: space.everything() == before, "nothing is left")


def pod_names(space: Space, component: str) -> set[str]:
    told = space.kubectl("get", "pods", f"-lapp.kubernetes.io/component={component}", "-o", "name")
    return set(told.split())


CLAIMS = (
    "dra.enabled=true,dra.gpu.deviceClassName=gpu.example.com,"
    "dra.rdma.deviceClassName=nic.example.com,target.gpu.count=4,target.rdmaCount=4,"
    "target.tensorParallel=4,draft.pools.small.autoscaling.kind=none"
)


def test_gpus_and_nics_are_claimed_in_pairs_on_one_pcie_root(plane: ControlPlane) -> None:
    with devices(plane) as roots, plane.namespace("claims", "restricted") as space:
        before = space.everything()
        space.install("infiniband", "--set", CLAIMS)
        told = space.kubectl("get", "resourceclaims", "-o", "json")
        pairs = [
            {driver: roots[driver, pool, name] for driver, pool, name in claim}
            for claim in allocations(told)
            if len(claim) == 2
        ]
        # Two targets with four GPUs each, and two drafts with one.
        assert len(pairs) == 2 * 4 + 2
        for pair in pairs:
            assert pair["gpu.example.com"] == pair["nic.example.com"], pair
        # Each gateway has a network device alone.
        assert sum(len(claim) == 1 for claim in allocations(told)) == 3

        space.upgrade("--set", "target.replicas=1,draft.pools.small.replicas=3")
        wait_for(4 + 3 + 3, claims, space, what="claims go and come with their pods")
        # Other devices are another template, which an upgrade could not write over.
        space.upgrade("--set", "target.gpu.count=8,target.rdmaCount=2")
        wait_for(2 + 3 + 3, claims, space, what="a target's eight GPUs and two NICs in two claims")
        assert sorted(map(len, allocated(space)))[-2:] == [5, 5]
        space.must("rollback", RELEASE, "--wait", "--timeout=120s")
        wait_for(4 + 3 + 3, claims, space, what="claims as before")
        space.uninstall()
        wait_until(lambda: space.everything() == before, "nothing is left")


def allocated(space: Space) -> list[list[tuple[str, str, str]]]:
    return allocations(space.kubectl("get", "resourceclaims", "-o", "json"))


def claims(space: Space) -> int:
    """How many claims have their devices, where all have."""
    found = allocated(space)
    return len(found) if all(found) else 0


@LONG_TIER
def test_devices_on_different_roots_are_no_pair_unless_that_is_allowed(plane: ControlPlane) -> None:
    """What shows that the scheduler looks at the roots."""
    far = "dra.rdma.deviceClassName=far-nic.example.com"
    with devices(plane), plane.namespace("far", "restricted") as space:
        space.must(
            "install", RELEASE, CHART, "-f", profile("infiniband"), "--set", f"{CLAIMS},{far}"
        )
        wait_for(3, space.ready, "deployment", "-gateway", what="gateways have what they ask for")

        def refused() -> bool:
            events = space.get("events", "", "--field-selector=reason=FailedScheduling")["items"]
            pods = {e["involvedObject"]["name"] for e in events if "claim" in e["message"]}
            return any(f"{RELEASE}-specfabric-target-0" == pod for pod in pods)

        wait_until(refused, "no node has a pair for the target")
        assert space.members("-targets") == 0
        space.must("upgrade", RELEASE, CHART, "--reuse-values", "--set", "dra.matchAttribute=")
        wait_for(2, space.members, "-targets", what="any pair will do for both targets")
        space.uninstall()


ROUTE = (
    "gateway.httpRoute.enabled=true,gateway.httpRoute.parentRefs[0].name=front,"
    "gateway.httpRoute.hostnames[0]=llm.example,gateway.httpRoute.timeouts.request=0s"
)
POOL = "gateway.inferencePool.enabled=true,gateway.inferencePool.endpointPicker.name=picker"


def test_a_route_and_a_pool_live_and_go(plane: ControlPlane) -> None:
    def backend(space: Space) -> str:
        [rule] = space.get("httproute", "-gateway")["spec"]["rules"]
        [found] = rule["backendRefs"]
        assert found["name"] == f"{RELEASE}-specfabric-gateway"
        kind: str = found["kind"]
        return kind

    with plane.namespace("routed") as space:
        before = space.everything()
        space.install("laptop", "--set", ROUTE)
        assert backend(space) == "Service"
        space.upgrade("--set", POOL)
        assert backend(space) == "InferencePool"
        spec = space.get("inferencepool", "-gateway")["spec"]
        selector = ",".join(f"{k}={v}" for k, v in spec["selector"]["matchLabels"].items())
        assert set(space.kubectl("get", "pods", f"-l{selector}", "-o", "name").split()) == (
            pod_names(space, "gateway")
        )
        space.upgrade("--set", "gateway.replicas=3")
        wait_for(3, space.members, "-gateway", what="three gateways")
        assert len(space.kubectl("get", "pods", f"-l{selector}", "-o", "name").split()) == 3
        space.must("rollback", RELEASE, "1", "--wait", "--timeout=120s")
        assert backend(space) == "Service"
        assert "inferencepool" not in " ".join(space.everything())
        space.uninstall()
        wait_until(lambda: space.everything() == before, "nothing is left")
