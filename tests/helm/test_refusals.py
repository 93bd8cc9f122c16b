"""Values that make no sense are refused before they reach a cluster, in words that help."""

from __future__ import annotations

from typing import Any

import pytest

from rendered_chart import SECRET, template

REFUSED: list[tuple[str, dict[str, Any], list[str]]] = [
    ("a typing error", {"gatway": {}}, ["gatway"]),
    ("a nested typing error", {"target": {"tensorparallel": 2}}, ["/target", "tensorparallel"]),
    (
        "text for a number",
        {"target": {"tensorParallel": "two"}},
        ["/target/tensorParallel", "integer"],
    ),
    ("no rank", {"target": {"tensorParallel": 0}}, ["/target/tensorParallel", "minimum"]),
    ("no gateway", {"gateway": {"replicas": 0}}, ["/gateway/replicas", "minimum"]),
    ("a port too high", {"ports": {"admin": 70000}}, ["/ports/admin", "maximum"]),
    ("an unknown policy", {"image": {"pullPolicy": "Sometimes"}}, ["/image/pullPolicy", "Always"]),
    ("a short secret", {"joinSecret": {"value": "short"}}, ["/joinSecret/value", "16"]),
    (
        "usage above one",
        {"draft": {"pools": {"small": {"autoscaling": {"targetUsage": 70}}}}},
        ["/draft/pools/small/autoscaling/targetUsage", "maximum"],
    ),
    (
        "an unknown scaler",
        {"draft": {"pools": {"small": {"autoscaling": {"kind": "vpa"}}}}},
        ["/draft/pools/small/autoscaling/kind", "keda"],
    ),
    (
        "the name of a pool",
        {"draft": {"pools": {"Small_1": {}}}},
        ["draft.pools.Small_1: a pool's name is part of others; allowed are up to 20 of a-z, 0-9"],
    ),
    (
        "a flag with its dashes",
        {"gateway": {"flags": {"--log_level": "debug"}}},
        ["gateway.flags.--log_level: flags are named as in --help, without dashes"],
    ),
    ("a memory size", {"target": {"shmSize": "8 GB"}}, ["/target/shmSize"]),
    ("memlock", {"rdma": {"memlock": "unlimited"}}, ["/rdma/memlock", "node", "cap"]),
    (
        "two sources",
        {"target": {"model": {"pvc": {"claimName": "models"}}}},
        ["target.model has pvc and hostPath: give exactly one of pvc, hostPath and hub"],
    ),
    (
        "no source",
        {"target": {"model": {"hostPath": None}}},
        ["target.model has no source: give exactly one of pvc, hostPath and hub"],
    ),
    (
        "a pool without a model",
        {"draft": {"pools": {"other": {}}}},
        ["draft.pools.other.model has no source"],
    ),
    (
        "a flag that the chart sets",
        {"target": {"flags": {"drafts": "10.0.0.1:7200"}}},
        ["target.flags.drafts: the chart sets --drafts by itself, from other values"],
    ),
    (
        "fewer GPUs than ranks",
        {"target": {"tensorParallel": 4, "gpu": {"count": 2}}},
        ["target.gpu.count=2: 4 ranks of a pod (target.tensorParallel x ", "need a GPU each"],
    ),
    (
        "more processes than ranks",
        {"target": {"tensorParallel": 2, "processes": 3}},
        ["target.processes=3: more than the group's 2 ranks"],
    ),
    (
        "half a stage in a pod",
        {"target": {"tensorParallel": 2, "pipelineStages": 3, "processes": 2}},
        ["target.processes=2 with target.pipelineStages=3: allowed are divisors of that"],
    ),
    (
        "a rank's flag that the chart sets",
        {"target": {"rankFlags": {"join": "10.0.0.1:7300"}}},
        ["target.rankFlags.join: the chart sets --join by itself, from other values"],
    ),
    (
        "bounds the wrong way round",
        {
            "draft": {
                "pools": {
                    "small": {"autoscaling": {"kind": "hpa", "minReplicas": 4, "maxReplicas": 2}}
                }
            }
        },
        ["draft.pools.small.autoscaling: minReplicas=4 is more than maxReplicas=2"],
    ),
    (
        "scaling to nothing",
        {"draft": {"pools": {"small": {"autoscaling": {"kind": "hpa", "minReplicas": 0}}}}},
        ["draft.pools.small.autoscaling.minReplicas=0"],
    ),
    (
        "no Prometheus to ask",
        {"draft": {"pools": {"small": {"autoscaling": {"kind": "keda"}}}}},
        ["draft.pools.small.autoscaling.prometheusAddress is missing"],
    ),
    (
        "an unknown drafter",
        {"draft": {"pools": {"small": {"drafter": "eagle2"}}}},
        ["/draft/pools/small/drafter", "'model', 'pard', 'eagle3', 'dflash', 'dspark', 'mtp'"],
    ),
    (
        "an unknown drafter by default",
        {"draft": {"defaults": {"drafter": ""}}},
        ["/draft/defaults/drafter", "'model', 'pard', 'eagle3', 'dflash', 'dspark', 'mtp'"],
    ),
    (
        "the target's model by hand",
        {"draft": {"pools": {"small": {"drafter": "eagle3", "flags": {"target_model": "/m"}}}}},
        ["draft.pools.small.flags.target_model: with drafter=eagle3 the chart sets --target_model"],
    ),
    (
        "the target's model by hand for all pools",
        {"draft": {"defaults": {"drafter": "eagle3", "flags": {"target_model": "/m"}}}},
        ["draft.pools.small.flags.target_model: with drafter=eagle3 the chart sets --target_model"],
    ),
    ("RDMA without a resource", {"rdma": {"enabled": True}}, ["rdma.resourceName is missing"]),
    (
        "RDMA required, not given",
        {"rdma": {"required": True}},
        ["rdma.required=true without rdma.enabled=true"],
    ),
    (
        "gateways that targets would refuse",
        {
            "rdma": {
                "enabled": True,
                "required": True,
                "resourceName": "rdma/hca",
                "gateway": False,
            }
        },
        ["rdma.required=true with rdma.gateway=false"],
    ),
    (
        "targets without a wire to gateways",
        {
            "rdma": {
                "enabled": True,
                "resourceName": "rdma/hca",
                "netDevices": "mlx5_0:1",
                "gateway": False,
            }
        },
        ["rdma.netDevices=mlx5_0:1 with rdma.gateway=false", "such as mlx5_0:1,eth0"],
    ),
    (
        "an unknown kind of workload",
        {"workloads": "daemonset"},
        ["/workloads", "'apps', 'leaderworkerset', 'disaggregatedset'"],
    ),
    (
        "a set of groups of one pod",
        {"workloads": "leaderworkerset"},
        ["workloads=leaderworkerset with target.processes=1: a group of one pod needs none"],
    ),
    (
        "a set without drafts",
        {"workloads": "disaggregatedset", "draft": {"pools": None}},
        ["workloads=disaggregatedset with 0 of draft.pools", "targets and 1 to 9 pools"],
    ),
    (
        "a set whose drafts are scaled by another",
        {
            "workloads": "disaggregatedset",
            "draft": {"pools": {"small": {"autoscaling": {"kind": "hpa"}}}},
        },
        ["draft.pools.small.autoscaling.kind=hpa with workloads=disaggregatedset", "none"],
    ),
    (
        "a set with targets alone",
        {"workloads": "disaggregatedset", "draft": {"pools": {"small": {"replicas": 0}}}},
        ["draft.pools.small.replicas=0 with target.replicas=1: roles of a DisaggregatedSet"],
    ),
    (
        "a set with names too long",
        {
            "workloads": "disaggregatedset",
            "fullnameOverride": "a-name-of-twenty-eight-chars",
            "draft": {
                "pools": {"ten-letter": {"model": {"name": "m", "hostPath": {"path": "/m"}}}}
            },
        },
        ["names of 54 characters, allowed are 52: shorten fullnameOverride (a-name-of-twenty-"],
    ),
    (
        "a route to nowhere",
        {"gateway": {"httpRoute": {"enabled": True}}},
        ["gateway.httpRoute.parentRefs is missing", "such as [{name: my-gateway}]"],
    ),
    (
        "a time-out in other units",
        {"gateway": {"httpRoute": {"timeouts": {"request": "10 min"}}}},
        ["/gateway/httpRoute/timeouts/request"],
    ),
    (
        "a pool without its picker",
        {"gateway": {"inferencePool": {"enabled": True}}},
        ["gateway.inferencePool.endpointPicker.name is missing"],
    ),
    (
        "an unknown failure mode",
        {"gateway": {"inferencePool": {"endpointPicker": {"failureMode": "Retry"}}}},
        ["/gateway/inferencePool/endpointPicker/failureMode", "'FailOpen', 'FailClose'"],
    ),
    (
        "RDMA claims of no class",
        {"dra": {"enabled": True}, "rdma": {"enabled": True}},
        ["dra.rdma.deviceClassName is missing: the DeviceClass of RDMA devices"],
    ),
    (
        "GPU claims of no class",
        {"dra": {"enabled": True, "gpu": {"deviceClassName": ""}}},
        ["dra.gpu.deviceClassName is missing", "such as gpu.nvidia.com"],
    ),
    (
        "an attribute without its domain",
        {"dra": {"matchAttribute": "pcieRoot"}},
        ["/dra/matchAttribute"],
    ),
    (
        "an unknown queue system",
        {"gateway": {"queue": {"system": "slurm"}}},
        ["/gateway/queue/system", "'none', 'kueue', 'kai', 'volcano'"],
    ),
    (
        "a queue of nobody",
        {"target": {"queue": {"name": "team"}}},
        ["target.queue.name=team without target.queue.system: say whose queue that is"],
    ),
    (
        "a system without its queue",
        {"draft": {"pools": {"small": {"queue": {"system": "kueue"}}}}},
        ["draft.pools.small.queue.name is missing: the queue of draft.pools.small.queue.system=k"],
    ),
    (
        "another system's pod group",
        {"gateway": {"queue": {"system": "kai", "name": "q", "podGroup": "pg"}}},
        ["gateway.queue.podGroup=pg with gateway.queue.system=kai", "volcano alone"],
    ),
    (
        "a collector over gRPC",
        {"tracing": {"otlpEndpoint": "collector:4317"}},
        ["/tracing/otlpEndpoint"],
    ),
    (
        "a collector without a port",
        {"tracing": {"otlpEndpoint": "http://collector"}},
        ["/tracing/otlpEndpoint"],
    ),
    (
        "two collectors",
        {
            "tracing": {"otlpEndpoint": "http://collector:4318"},
            "gateway": {"flags": {"otlp_endpoint": "http://other:4318"}},
        },
        ["gateway.flags.otlp_endpoint: with tracing.otlpEndpoint the chart sets --otlp_endpoint"],
    ),
    (
        "nine draft models",
        {
            "draft": {
                "pools": {
                    f"p{i}": {"model": {"name": f"m{i}", "hostPath": {"path": "/m"}}}
                    for i in range(8)
                }
            }
        },
        ["draft.pools name 9 draft models: a target uses 8 at most"],
    ),
]


@pytest.mark.parametrize(("values", "words"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
def test_nonsense_is_refused(values: dict[str, Any], words: list[str]) -> None:
    status, out, errors = template("laptop", SECRET, values)
    assert status != 0, out
    assert out == ""
    for word in words:
        assert word in errors, errors


def test_no_values_at_all_are_refused_by_name() -> None:
    status, _, errors = template(None)
    assert status != 0
    assert "target.model has no source" in errors, errors
