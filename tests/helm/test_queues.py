"""Schedulers and their queues, by role; and where spans go."""

from __future__ import annotations

import pytest

from rendered_chart import Document, find, main_container, pod_spec, render

GROUPS: Document = {"tensorParallel": 2, "processes": 2}
KUEUE, KAI = "kueue.x-k8s.io/queue-name", "kai.scheduler/queue"
VOLCANO = "scheduling.volcano.sh/queue-name"
GROUP_NAMES = {"scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name"}


def queues(system: str, **more: str) -> Document:
    """All roles in a queue each."""

    def of(role: str) -> Document:
        return {"queue": {"system": system, "name": f"{role}s", **more}}

    return {
        "gateway": of("gateway"),
        "target": {**of("target"), **GROUPS},
        "draft": {"defaults": of("draft")},
    }


WORKLOADS = [
    ("Deployment", "-gateway", "gateways"),
    ("StatefulSet", "-leader", "targets"),
    ("StatefulSet", "-rank-0", "targets"),
    ("Deployment", "-draft-small", "drafts"),
]


def metadata(document: Document) -> tuple[Document, Document]:
    """Of what makes pods, and of its pods."""
    return document["metadata"], document["spec"]["template"]["metadata"]


@pytest.mark.parametrize(("kind", "name", "queue"), WORKLOADS)
def test_kueue_is_told_by_a_label_of_the_workload(kind: str, name: str, queue: str) -> None:
    document = find(render("laptop", queues("kueue")), kind, name)
    whole, pod = metadata(document)
    assert whole["labels"][KUEUE] == queue
    assert KUEUE not in pod["labels"], "it adds its own"
    assert "schedulerName" not in pod_spec(document)


@pytest.mark.parametrize(("kind", "name", "queue"), WORKLOADS)
def test_kai_is_told_by_labels_and_schedules(kind: str, name: str, queue: str) -> None:
    document = find(render("laptop", queues("kai")), kind, name)
    assert [m["labels"][KAI] for m in metadata(document)] == [queue, queue]
    assert pod_spec(document)["schedulerName"] == "kai-scheduler"


@pytest.mark.parametrize(("kind", "name", "queue"), WORKLOADS)
def test_volcano_is_told_by_annotations_of_pods_and_schedules(
    kind: str, name: str, queue: str
) -> None:
    document = find(render("laptop", queues("volcano")), kind, name)
    annotations = metadata(document)[1]["annotations"]
    assert annotations[VOLCANO] == queue
    assert not GROUP_NAMES & set(annotations)
    assert pod_spec(document)["schedulerName"] == "volcano"
    given = find(render("laptop", queues("volcano", podGroup="pg")), kind, name)
    annotations = metadata(given)[1]["annotations"]
    assert {annotations[key] for key in GROUP_NAMES} == {"pg"}


def test_sets_are_queued_as_the_pods_are() -> None:
    for system, key, where in (
        ("kueue", KUEUE, "labels"),
        ("kai", KAI, "labels"),
        ("volcano", VOLCANO, "annotations"),
    ):
        values = queues(system)
        groups = render("laptop", values, {"workloads": "leaderworkerset"})
        assert find(groups, "LeaderWorkerSet", "-target")["metadata"][where][key] == "targets"
        both = render("laptop", values, {"workloads": "disaggregatedset"})
        roles = find(both, "DisaggregatedSet", "")["spec"]["roles"]
        assert [r["metadata"][where][key] for r in roles] == ["targets", "drafts"]


def test_a_pool_may_have_a_queue_and_a_scheduler_of_its_own() -> None:
    own = {"queue": {"system": "kai", "name": "night"}, "schedulerName": "my-kai"}
    documents = render("laptop", queues("volcano"), {"draft": {"pools": {"small": own}}})
    document = find(documents, "Deployment", "-draft-small")
    assert [m["labels"][KAI] for m in metadata(document)] == ["night", "night"]
    assert VOLCANO not in metadata(document)[1]["annotations"]
    assert pod_spec(document)["schedulerName"] == "my-kai"


def test_no_queue_is_the_default() -> None:
    for kind, name, _ in WORKLOADS:
        document = find(render("laptop", {"target": GROUPS}), kind, name)
        told = str(metadata(document))
        assert not [key for key in (KUEUE, KAI, VOLCANO, *GROUP_NAMES) if key in told]
        assert "schedulerName" not in pod_spec(document)


def test_spans_go_to_the_collector() -> None:
    tracing = {"otlpEndpoint": "http://collector.monitoring:4318", "sample": 0.25}
    documents = render("laptop", {"tracing": tracing, "target": GROUPS})
    endpoint, sample = f"--otlp_endpoint={tracing['otlpEndpoint']}", "--trace_sample=0.25"
    for kind, name, _ in WORKLOADS:
        container = main_container(find(documents, kind, name))
        # A rank has no spans of its own, and gateways say which requests are traced.
        assert (endpoint in container["args"]) is (container["name"] != "rank")
        assert (sample in container["args"]) is (container["name"] == "gateway")
    for kind, name, _ in WORKLOADS:
        args = main_container(find(render("laptop", {"target": GROUPS}), kind, name))["args"]
        assert not [a for a in args if a.startswith(("--otlp", "--trace"))]
