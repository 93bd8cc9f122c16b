"""A release through its life, on a real control plane whose nodes are fakes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kube import ControlPlane, Space, Watch, wait_for, wait_until
from rendered_chart import CHART, PROFILES, RELEASE

# Paths of the nodes are the one thing of the chart that needs more than nothing.
SECURITY = {"laptop": "privileged", "gpu-node": "restricted", "infiniband": "restricted"}
NEVER = r"podAnnotations.pod-ready\.stage\.kwok\.x-k8s\.io/delay=1000h"


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_comes_and_goes(plane: ControlPlane, name: str) -> None:
    with plane.namespace(name, SECURITY[name]) as space:
        before = space.everything()
        space.install(name)
        for kind, workload in (
            ("deployment", "-gateway"),
            ("statefulset", "-target"),
            ("deployment", "-draft-small"),
        ):
            wanted = space.get(kind, workload)["spec"]["replicas"]
            assert wanted >= 1
            wait_for(wanted, space.ready, kind, workload, what=f"{wanted} of {workload} are ready")
        # A service's list of members follows readiness, a moment later.
        targets = space.ready("statefulset", "-target")
        wait_for(targets, space.members, "-targets", what=f"{targets} targets are members")
        told = space.must("test", RELEASE, "--timeout=120s")
        assert told.count("Phase:          Succeeded") == 4, told
        assert space.everything() > before
        space.uninstall()
        wait_until(lambda: space.everything() == before, "nothing is left")


def test_helm_test_leaves_nothing(plane: ControlPlane) -> None:
    with plane.namespace("tested") as space:
        space.install("laptop")
        before = space.everything()
        space.must("test", RELEASE, "--timeout=120s")
        wait_until(lambda: space.everything() == before, "the pods of helm test are gone")


@pytest.fixture(scope="module")
def living(plane: ControlPlane) -> Iterator[Space]:
    """The laptop profile with two of everything, for tests that change it and leave it whole."""
    with plane.namespace("living") as space:
        space.install("laptop", "--set", "gateway.replicas=2,target.replicas=2")
        yield space


def test_the_draft_pool_is_scaled(living: Space) -> None:
    for count in (5, 1, 2):
        living.upgrade("--set", f"draft.pools.small.replicas={count}")
        wait_for(count, living.members, "-drafts", what=f"{count} drafts are found")
        assert living.ready("deployment", "-draft-small") == count


def test_an_upgrade_rolls_and_can_be_taken_back(living: Space) -> None:
    secret = living.get("secret", "-join")["data"]
    first = living.images("target")
    with Watch(living) as seen:
        living.upgrade("--set", "image.tag=next")
    for role in ("gateway", "target", "draft"):
        wait_for({"specfabric:next"}, living.images, role, what=f"{role} is new")
    assert living.get("secret", "-join")["data"] == secret, "who had it would be refused by others"
    assert seen.gateways and min(seen.gateways) >= 2
    assert seen.targets and min(seen.targets) >= 1
    living.must("rollback", RELEASE, "--wait", "--timeout=120s")
    for role in ("gateway", "target", "draft"):
        wait_for(first, living.images, role, what=f"{role} is as before")
    assert living.get("secret", "-join")["data"] == secret


@pytest.mark.parametrize("role", ["gateway", "target"])
def test_an_upgrade_that_does_not_get_ready_takes_itself_back(living: Space, role: str) -> None:
    before = living.images(role)
    # The delay must arrive as text, hence --set-string.
    values = ["--set-string", f"{role}.{NEVER}", "--set", "image.tag=broken"]
    with Watch(living) as seen:
        done = living.helm(
            "upgrade", RELEASE, CHART, "--reuse-values", "--atomic", "--timeout=15s", *values
        )
    assert done.returncode != 0, done.stdout
    assert "rolled back due to atomic being set" in done.stderr, done.stderr
    wait_until(lambda: living.images(role) == before, f"{role} is as before")
    assert "STATUS: deployed" in living.must("status", RELEASE)
    assert min(seen.gateways) >= 2
    assert min(seen.targets) >= 1


def test_evictions_take_one_group_at_a_time(living: Space) -> None:
    """What a drained node asks for."""
    pods = [f"{RELEASE}-specfabric-target-{i}" for i in range(2)]
    living.kubectl("annotate", "pod", pods[0], "pod-delete.stage.kwok.x-k8s.io/delay=1000h")
    answers = []
    for pod in pods:
        body = (
            '{"apiVersion": "policy/v1", "kind": "Eviction",'
            f' "metadata": {{"name": "{pod}", "namespace": "{living.name}"}}}}'
        )
        path = f"/api/v1/namespaces/{living.name}/pods/{pod}/eviction"
        answers.append(living.plane.run("kubectl", "create", "--raw", path, "-f", "-", text=body))
        if pod == pods[0]:
            wait_until(lambda: living.members("-targets") == 1, "the first is taken out")
    living.kubectl("delete", "pod", pods[0], "--force", "--grace-period=0")
    assert answers[0].returncode == 0, answers[0].stderr
    assert answers[1].returncode != 0
    assert "disruption budget" in answers[1].stderr
    wait_until(lambda: living.members("-targets") == 2, "the group is back")
