"""Target groups of several pods: a leader and its ranks."""

from __future__ import annotations

import pytest

from rendered_chart import find, main_container, pod_spec, render

GROUPS = {"target": {"replicas": 2, "tensorParallel": 4, "processes": 2, "gpu": {"count": 2}}}


def test_a_group_of_several_pods_has_a_leader_and_ranks() -> None:
    documents = render("gpu-node", GROUPS)
    leader = find(documents, "StatefulSet", "-leader")
    assert leader["spec"]["replicas"] == 2
    arguments = main_container(leader)["args"]
    assert {"--tensor_parallel=4", "--group_processes=2"} <= set(arguments)
    [listen] = [a for a in arguments if a.startswith("--group_listen=")]
    # Not ready before its ranks have come, which have to find it meanwhile.
    service = find(documents, "Service", "-leaders")
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert leader["spec"]["serviceName"] == service["metadata"]["name"]
    [port] = [p["port"] for p in service["spec"]["ports"]]
    assert listen.endswith(f":{port}")
    for group in range(2):
        ranks = find(documents, "StatefulSet", f"-rank-{group}")
        assert ranks["spec"]["replicas"] == 1
        container = main_container(ranks)
        assert container["args"][0] == "rank"
        name = f"{leader['metadata']['name']}-{group}.{service['metadata']['name']}:{port}"
        assert f"--join={name}" in container["args"]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == 2
        # A rank process outlives the draining of its leader, and its grace that.
        sleep = container["lifecycle"]["preStop"]["sleep"]["seconds"]
        assert f"--drain_timeout={sleep}s" in arguments
        assert pod_spec(ranks)["terminationGracePeriodSeconds"] > sleep
    # Gateways are told of leaders alone, and each group's ranks are its own.
    targets = find(documents, "Service", "-targets")["spec"]["selector"]
    for group in range(2):
        ranks = find(documents, "StatefulSet", f"-rank-{group}")
        labels = ranks["spec"]["template"]["metadata"]["labels"]
        assert not targets.items() <= labels.items()
        own = ranks["spec"]["selector"]["matchLabels"]
        assert own.items() <= labels.items()
        assert own["specfabric/group"] == str(group)


@pytest.mark.parametrize("processes", [1, 2])
def test_only_groups_of_one_pod_are_rolled(processes: int) -> None:
    documents = render(
        "gpu-node", GROUPS, {"target": {"processes": processes, "gpu": {"count": 4}}}
    )
    name, strategy = {1: ("-target", "RollingUpdate"), 2: ("-leader", "OnDelete")}[processes]
    found = find(documents, "StatefulSet", name)
    assert found["spec"]["updateStrategy"]["type"] == strategy
