"""What of the chart's objects matters, one thing a test."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from rendered_chart import (
    CHART,
    NAMESPACE,
    PROFILES,
    RELEASE,
    Document,
    find,
    find_all,
    main_container,
    pod_spec,
    pods,
    render,
    roles,
    template,
)

HUB = {"endpoint": "https://hub.example", "repository": "org/model", "revision": "v1"}
RDMA = {"rdma": {"enabled": True, "resourceName": "rdma/hca", "count": 2}}


def pool(**values: Any) -> Document:
    """Values of the laptop profile's draft pool."""
    return {"draft": {"pools": {"small": values}}}


def labels_match(selector: Document, labels: Document) -> bool:
    return all(labels.get(key) == value for key, value in selector["matchLabels"].items())


def test_services_lead_to_the_pods_that_listen_there() -> None:
    documents = render("laptop")
    for service in find_all(documents, "Service"):
        [port] = service["spec"]["ports"]
        if "helm.sh/hook" in service["metadata"].get("annotations", {}):
            continue
        behind = [
            d
            for d in roles(documents)
            if labels_match(
                {"matchLabels": service["spec"]["selector"]},
                d["spec"]["template"]["metadata"]["labels"],
            )
        ]
        assert behind, service["metadata"]["name"]
        for document in behind:
            ports = {p["name"]: p["containerPort"] for p in main_container(document)["ports"]}
            assert port["targetPort"] in ports
            if service["spec"].get("clusterIP") == "None":
                assert port["port"] == ports[port["targetPort"]], "headless: no port is translated"


def test_members_find_each_other_by_headless_services() -> None:
    documents = render("laptop")
    gateway = main_container(find(documents, "Deployment", "-gateway"))["args"]
    target = main_container(find(documents, "StatefulSet", "-target"))["args"]
    for args, flag, name in (
        (gateway, "--targets", "-targets"),
        (target, "--drafts", "-drafts"),
    ):
        service = find(documents, "Service", name)
        assert service["spec"]["clusterIP"] == "None"
        port = service["spec"]["ports"][0]["port"]
        assert f"{flag}=dns:///{service['metadata']['name']}:{port}" in args
    # Every pod is found by its address: nothing may be sent to one that is not ready.
    assert "publishNotReadyAddresses" not in yaml.safe_dump(documents)


def test_another_pool_changes_nothing_of_the_targets() -> None:
    """They would restart otherwise, for want of a name."""
    other = {"model": {"name": "other", "hostPath": {"path": "/srv/other"}}}
    before = render("laptop")
    after = render("laptop", {"draft": {"pools": {"other": other}}})
    assert find(after, "Deployment", "-draft-other")
    assert find(before, "StatefulSet", "-target") == find(after, "StatefulSet", "-target")
    assert find(before, "Deployment", "-gateway") == find(after, "Deployment", "-gateway")


def test_pools_take_what_they_do_not_say_from_the_defaults() -> None:
    documents = render(
        "laptop",
        {"draft": {"defaults": {"drainTimeoutSeconds": 77, "flags": {"tree": "best:8:2:4"}}}},
        pool(flags={"max_sessions": 9}),
    )
    args = main_container(find(documents, "Deployment", "-draft-small"))["args"]
    for arg in ("--drain_timeout=77s", "--tree=best:8:2:4", "--max_sessions=9"):
        assert arg in args


def test_a_pool_may_say_nothing_or_no() -> None:
    documents = render(
        "laptop",
        {"draft": {"defaults": {"gpu": {"count": 1}, "extraArgs": ["--spin=5us"]}}},
        pool(
            replicas=0,
            gpu={"count": 0},
            extraArgs=[],
            podDisruptionBudget={"enabled": False},
            drainTimeoutSeconds=0,
        ),
    )
    deployment = find(documents, "Deployment", "-draft-small")
    assert deployment["spec"]["replicas"] == 0
    container = main_container(deployment)
    assert "nvidia.com/gpu" not in container["resources"]["limits"]
    assert "--spin=5us" not in container["args"]
    assert "--drain_timeout=0s" in container["args"]
    budgets = [d["metadata"]["name"] for d in find_all(documents, "PodDisruptionBudget")]
    assert budgets == ["fabric-specfabric-gateway", "fabric-specfabric-target"]


@pytest.mark.parametrize("kind", ["hpa", "keda"])
def test_who_scales_owns_the_replicas(kind: str) -> None:
    scaled = render(
        "laptop", pool(autoscaling={"kind": kind, "prometheusAddress": "http://prometheus:9090"})
    )
    deployment = find(scaled, "Deployment", "-draft-small")
    assert "replicas" not in deployment["spec"]
    scaler = find(
        scaled,
        {"hpa": "HorizontalPodAutoscaler", "keda": "ScaledObject"}[kind],
        "-draft-small",
    )
    assert scaler["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    fixed = render("laptop")
    assert find(fixed, "Deployment", "-draft-small")["spec"]["replicas"] == 2
    assert not find_all(fixed, "HorizontalPodAutoscaler") + find_all(fixed, "ScaledObject")


def test_scalers_follow_the_used_draft_slots_of_their_pool() -> None:
    hpa = find(
        render("laptop", pool(autoscaling={"kind": "hpa", "targetUsage": 0.6})),
        "HorizontalPodAutoscaler",
        "-draft-small",
    )
    [metric] = hpa["spec"]["metrics"]
    assert metric["external"]["target"] == {"type": "Value", "value": "600m"}
    assert metric["external"]["metric"] == {
        "name": "specfabric_draft_slot_usage",
        "selector": {"matchLabels": {"release": RELEASE, "pool": "small"}},
    }
    keda = find(
        render(
            "laptop",
            pool(autoscaling={"kind": "keda", "prometheusAddress": "http://prometheus:9090"}),
        ),
        "ScaledObject",
        "-draft-small",
    )
    of = f'{{namespace="{NAMESPACE}",release="{RELEASE}",pool="small"}}'
    trigger = keda["spec"]["triggers"][0]
    assert trigger["metricType"] == "Value", "the ratio itself, not its share of a pod"
    assert trigger["metadata"]["query"] == (
        f"sum(specfabric_draft_sessions{of}) / sum(specfabric_draft_session_capacity{of})"
    )


def test_the_metrics_of_the_signal_exist() -> None:
    documented = (CHART.parents[1] / "docs" / "metrics.md").read_text()
    for name in ("specfabric_draft_sessions", "specfabric_draft_session_capacity"):
        assert f"`{name}`" in documented


def test_pod_monitor_gives_the_labels_that_the_signal_is_asked_by() -> None:
    documents = render("laptop", {"monitoring": {"podMonitor": {"enabled": True}}})
    [endpoint] = find(documents, "PodMonitor", "")["spec"]["podMetricsEndpoints"]
    given = {r["targetLabel"]: r["sourceLabels"] for r in endpoint["relabelings"]}
    assert given["release"] == ["__meta_kubernetes_pod_label_app_kubernetes_io_instance"]
    assert given["pool"] == ["__meta_kubernetes_pod_label_specfabric_pool"]
    for document in roles(documents):
        assert endpoint["port"] in [p["name"] for p in main_container(document)["ports"]]
    labels = find(documents, "Deployment", "-draft-small")["spec"]["template"]["metadata"]["labels"]
    assert labels["specfabric/pool"] == "small"


def test_fabric_and_admin_ports_are_closed_to_others() -> None:
    documents = render("laptop")
    policies = find_all(documents, "NetworkPolicy")
    own = {"app.kubernetes.io/name": "specfabric", "app.kubernetes.io/instance": RELEASE}
    for document in pods(documents):
        meta = document if document["kind"] == "Pod" else document["spec"]["template"]
        labels = meta["metadata"]["labels"]
        named = {p["name"] for p in main_container(document).get("ports", [])}
        hits = [p for p in policies if labels_match(p["spec"]["podSelector"], labels)]
        assert hits, document["metadata"]["name"]
        open_to_all: set[str] = set()
        for policy in hits:
            assert policy["spec"]["policyTypes"] == ["Ingress"]
            for rule in policy["spec"]["ingress"]:
                ports = {p["port"] for p in rule.get("ports", [])}
                if "from" not in rule:
                    assert ports, "a rule without from and ports lets everything in"
                    open_to_all |= ports
                elif rule["from"] == [{"podSelector": {"matchLabels": own}}]:
                    assert not ports, "UCX chooses its ports by itself"
                else:
                    assert ports == {"admin"}
                    assert rule["from"] == [
                        {
                            "namespaceSelector": {
                                "matchLabels": {"kubernetes.io/metadata.name": "monitoring"}
                            }
                        }
                    ]
        assert open_to_all == (named & {"http"})


def test_probes_tell_start_liveness_and_readiness_apart() -> None:
    documents = render("laptop", {"target": {"startupSeconds": 901}})
    for document in roles(documents):
        container = main_container(document)
        start, live, ready = (container[f"{p}Probe"] for p in ("startup", "liveness", "readiness"))
        assert start["httpGet"] == live["httpGet"] == {"path": "/livez", "port": "admin"}
        assert ready["httpGet"]["path"] == "/readyz"
        assert ready["httpGet"]["port"] == ("http" if container["name"] == "gateway" else "admin")
    start = main_container(find(documents, "StatefulSet", "-target"))["startupProbe"]
    assert start["periodSeconds"] * start["failureThreshold"] >= 901


def test_there_is_time_to_drain() -> None:
    documents = render("laptop", {"gateway": {"drainTimeoutSeconds": 300, "preStopSeconds": 7}})
    for document in roles(documents):
        container = main_container(document)
        [drain] = [a for a in container["args"] if a.startswith("--drain_timeout=")]
        pause = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
        assert (
            pod_spec(document)["terminationGracePeriodSeconds"]
            > int(drain.split("=")[1].removesuffix("s")) + pause
        )
    gateway = main_container(find(documents, "Deployment", "-gateway"))
    assert gateway["lifecycle"]["preStop"] == {"sleep": {"seconds": 7}}


@pytest.mark.parametrize("name", PROFILES)
def test_pods_may_do_as_little_as_they_can(name: str) -> None:
    for document in pods(render(name)):
        spec = pod_spec(document)
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] != 0
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
        for container in spec["containers"] + spec.get("initContainers", []):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert "limits" in container["resources"]


def test_rdma_pods_have_devices_networks_and_names() -> None:
    values = {
        "rdma": {
            **RDMA["rdma"],
            "required": True,
            "networks": ["llm/ib0", "llm/ib1@net2"],
            "netDevices": "mlx5_0:1,mlx5_1:1",
        }
    }
    for document in roles(render("laptop", values)):
        container = main_container(document)
        assert container["resources"]["limits"]["rdma/hca"] == 2
        assert {"name": "UCX_NET_DEVICES", "value": "mlx5_0:1,mlx5_1:1"} in container["env"]
        assert "--require_rdma" in container["args"]
        annotations = document["spec"]["template"]["metadata"]["annotations"]
        assert annotations["k8s.v1.cni.cncf.io/networks"] == "llm/ib0,llm/ib1@net2"
    for document in roles(render("laptop")):
        assert "--require_rdma" not in main_container(document)["args"]
        assert set(main_container(document)["resources"]["limits"]) == {"memory"}


def test_gateways_can_do_without_rdma() -> None:
    documents = render("laptop", RDMA, {"rdma": {"gateway": False}})
    gateway = main_container(find(documents, "Deployment", "-gateway"))
    assert "rdma/hca" not in gateway["resources"]["limits"]
    target = main_container(find(documents, "StatefulSet", "-target"))
    assert target["resources"]["limits"]["rdma/hca"] == 2


def test_memory_is_locked_by_the_node_or_by_a_capability_of_root() -> None:
    for document in roles(render("laptop", RDMA)):
        assert pod_spec(document)["securityContext"]["runAsNonRoot"] is True
    for document in roles(render("laptop", RDMA, {"rdma": {"memlock": "cap"}})):
        assert pod_spec(document)["securityContext"]["runAsUser"] == 0
        context = main_container(document)["securityContext"]
        assert context["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
        assert context["allowPrivilegeEscalation"] is False


@pytest.mark.parametrize("name", PROFILES)
def test_a_new_version_of_the_chart_alone_restarts_nothing(name: str) -> None:
    versions = yaml.safe_load((CHART / "Chart.yaml").read_text())
    for document in roles(render(name)):
        template = document["spec"]["template"]
        told = yaml.safe_dump(template["metadata"])
        assert "helm.sh/chart" not in told
        assert str(versions["version"]) not in told


def test_a_group_has_a_gpu_for_each_rank() -> None:
    container = main_container(find(render("gpu-node"), "StatefulSet", "-target"))
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 4
    assert "--tensor_parallel=4" in container["args"]


def test_the_model_comes_from_a_claim() -> None:
    spec = pod_spec(find(render("gpu-node"), "StatefulSet", "-target"))
    [volume] = [v for v in spec["volumes"] if v["name"] == "model"]
    [mount] = [m for m in spec["containers"][0]["volumeMounts"] if m["name"] == "model"]
    assert volume["persistentVolumeClaim"] == {"claimName": "models", "readOnly": True}
    assert mount == {
        "name": "model",
        "mountPath": "/models/target",
        "subPath": "target",
        "readOnly": True,
    }


def test_the_model_comes_from_a_hub() -> None:
    model = {"hostPath": None, "hub": {**HUB, "size": "5Gi", "tokenSecret": {"name": "hub-token"}}}
    documents = render("laptop", {"target": {"model": model}})
    for kind, name, weights in (
        ("StatefulSet", "-target", True),
        ("Deployment", "-gateway", False),
    ):
        spec = pod_spec(find(documents, kind, name))
        [init] = spec["initContainers"]
        assert ("--without_weights" in init["args"]) is not weights
        assert "--revision=v1" in init["args"]
        secret = init["env"][0]["valueFrom"]["secretKeyRef"]
        assert secret == {"name": "hub-token", "key": "token"}
        [folder] = [a.split("=")[1] for a in init["args"] if a.startswith("--folder=")]
        assert folder in [m["mountPath"] for m in init["volumeMounts"]]
        assert f"--model={folder}" in spec["containers"][0]["args"]
        [volume] = [v for v in spec["volumes"] if v["name"] == "model"]
        assert volume["emptyDir"]["sizeLimit"] == ("5Gi" if weights else "1Gi")
    assert "initContainers" not in pod_spec(find(documents, "Deployment", "-draft-small"))


def test_the_join_secret_is_a_file_for_every_role() -> None:
    own = render("laptop")
    assert find(own, "Secret", "-join")
    given = render("laptop", {"joinSecret": {"existingSecret": "ours", "key": "k", "value": ""}})
    assert not find_all(given, "Secret")
    for documents, name, key in (
        (own, "fabric-specfabric-join", "join_secret"),
        (given, "ours", "k"),
    ):
        for document in roles(documents):
            spec = pod_spec(document)
            [volume] = [v for v in spec["volumes"] if v["name"] == "join"]
            assert volume["secret"]["secretName"] == name
            assert (
                f"--join_secret_file=/etc/specfabric/join/{key}" in main_container(document)["args"]
            )


def test_the_join_secret_is_random_where_none_is_given() -> None:
    made = set()
    for _ in range(2):
        status, out, errors = template("laptop")
        assert status == 0, errors
        documents = [d for d in yaml.safe_load_all(out) if d]
        made.add(find(documents, "Secret", "-join")["data"]["join_secret"])
    assert len(made) == 2
    assert all(len(value) > 80 for value in made)


def test_a_new_join_secret_restarts_who_has_it() -> None:
    def checksums(value: str) -> set[str]:
        documents = render("laptop", {"joinSecret": {"value": value}})
        return {
            d["spec"]["template"]["metadata"]["annotations"]["checksum/join-secret"]
            for d in roles(documents)
        }

    first, second = checksums("a" * 16), checksums("b" * 16)
    assert len(first) == len(second) == 1
    assert first != second


def test_disruption_budgets_cover_each_role() -> None:
    documents = render("laptop")
    for document in roles(documents):
        labels = document["spec"]["template"]["metadata"]["labels"]
        budgets = [
            b
            for b in find_all(documents, "PodDisruptionBudget")
            if labels_match(b["spec"]["selector"], labels)
        ]
        assert len(budgets) == 1, "with two, evictions are refused"
        assert budgets[0]["spec"]["maxUnavailable"] == 1


def test_flags_arguments_and_environment_are_passed_on() -> None:
    documents = render(
        "laptop",
        {
            "gateway": {
                "flags": {"request_timeout": "10m", "log_level": "debug"},
                "extraArgs": ["--spin=5us"],
                "extraEnv": [{"name": "UCX_TLS", "value": "tcp"}],
            }
        },
    )
    container = main_container(find(documents, "Deployment", "-gateway"))
    assert container["args"][-3:] == [
        "--log_level=debug",
        "--request_timeout=10m",
        "--spin=5us",
    ]
    assert {"name": "UCX_TLS", "value": "tcp"} in container["env"]


def test_large_numbers_stay_whole() -> None:
    """Helm reads numbers as floating point, and would print 1e+06."""
    documents = render("laptop", {"target": {"flags": {"kv_blocks": 1048576}}})
    args = main_container(find(documents, "StatefulSet", "-target"))["args"]
    assert "--kv_blocks=1048576" in args


def test_images_are_named_by_tag_or_digest() -> None:
    digest = "sha256:" + "0" * 64
    for image, name in (
        ({}, "specfabric:0.1.0"),
        ({"registry": "registry.example:5000", "tag": "v2"}, "registry.example:5000/specfabric:v2"),
        ({"tag": "v2", "digest": digest}, f"specfabric@{digest}"),
    ):
        for document in pods(render("laptop", {"image": image})):
            assert main_container(document)["image"] == name


def test_spread_constraints_select_the_roles_own_pods() -> None:
    documents = render("infiniband")
    gateway = find(documents, "Deployment", "-gateway")
    [constraint] = pod_spec(gateway)["topologySpreadConstraints"]
    assert constraint["labelSelector"] == gateway["spec"]["selector"]


def test_the_bench_stands_where_targets_and_drafts_stand() -> None:
    documents = render(
        "infiniband",
        {"target": {"nodeSelector": {"pool": "big"}}},
        pool(nodeSelector={"pool": "small"}),
    )
    server = find(documents, "Deployment", "-test-bench")
    client = find(documents, "Pod", "-test-bench")
    assert pod_spec(server)["nodeSelector"] == {"pool": "small"}
    assert pod_spec(client)["nodeSelector"] == {"pool": "big"}
    service = find(documents, "Service", "-test-bench")
    assert labels_match(
        {"matchLabels": service["spec"]["selector"]},
        server["spec"]["template"]["metadata"]["labels"],
    )
    for document in (server, client):
        assert "--require_rdma" in main_container(document)["args"]
        limits = main_container(document)["resources"]["limits"]
        assert limits["rdma/hca"] == 1
        assert "nvidia.com/gpu" not in limits
    # The service is there before the server, the server before the client.
    weights = [
        int(d["metadata"]["annotations"]["helm.sh/hook-weight"]) for d in (service, server, client)
    ]
    assert weights == sorted(weights)


def test_nothing_of_helm_test_stays_behind() -> None:
    for document in render("laptop"):
        annotations = document["metadata"].get("annotations", {})
        if "helm.sh/hook" in annotations:
            policy = annotations["helm.sh/hook-delete-policy"].split(",")
            assert set(policy) == {"before-hook-creation", "hook-succeeded"}


def test_rules_are_packed_as_they_are() -> None:
    documents = render("laptop", {"monitoring": {"prometheusRule": {"enabled": True}}})
    files = sorted((CHART / "rules").glob("*.yaml"))
    groups = [g for f in files for g in yaml.safe_load(f.read_text())["groups"]]
    assert (find(documents, "PrometheusRule", "")["spec"]["groups"] or []) == groups


def test_runbooks_are_linked_where_they_are_published() -> None:
    base = "https://runbooks.example/specfabric/"
    documents = render(
        "laptop", {"monitoring": {"prometheusRule": {"enabled": True, "runbookBaseUrl": base}}}
    )
    for group in find(documents, "PrometheusRule", "")["spec"]["groups"] or []:
        for rule in group["rules"]:
            if "alert" in rule:
                assert rule["annotations"]["runbook_url"] == f"{base}{rule['alert']}.md"


def test_dashboards_are_packed_as_they_are() -> None:
    documents = render("laptop", {"monitoring": {"dashboards": {"enabled": True}}})
    packed = find(documents, "ConfigMap", "-dashboards")
    assert packed["metadata"]["labels"]["grafana_dashboard"] == "1"
    files = {f.name: json.loads(f.read_text()) for f in (CHART / "dashboards").glob("*.json")}
    assert {k: json.loads(v) for k, v in (packed["data"] or {}).items()} == files
