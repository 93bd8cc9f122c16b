#!/usr/bin/env python3
"""Makes what kubeconform and a test cluster need, from the Go modules that define the resources.

FOLDER/schemas gets one JSON schema a kind: Kubernetes' own from its OpenAPI description, and those
of the custom resources that the chart makes. FOLDER/crds gets these resources' definitions.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

PREFIX = "#/definitions/"
OPERATOR = "github.com/prometheus-operator/prometheus-operator"
CRDS = {
    (OPERATOR, "PROMETHEUS_OPERATOR_VERSION"): [
        "example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml",
        "example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml",
    ],
    ("github.com/kedacore/keda/v2", "KEDA_VERSION"): [
        "config/crd/bases/keda.sh_scaledobjects.yaml"
    ],
    ("sigs.k8s.io/gateway-api", "GATEWAY_API_VERSION"): [
        "config/crd/standard/gateway.networking.k8s.io_httproutes.yaml"
    ],
    ("sigs.k8s.io/gateway-api-inference-extension", "INFERENCE_EXTENSION_VERSION"): [
        "config/crd/bases/inference.networking.k8s.io_inferencepools.yaml"
    ],
    ("sigs.k8s.io/lws", "LWS_VERSION"): [
        "config/crd/bases/leaderworkerset.x-k8s.io_leaderworkersets.yaml",
        "config/crd/bases/disaggregatedset.x-k8s.io_disaggregatedsets.yaml",
    ],
}


def module(path: str, version_variable: str) -> Path:
    """Where the Go module lies, after fetching it where it does not."""
    version = os.environ[version_variable]
    told = subprocess.run(
        ["go", "mod", "download", "-json", f"{path}@v{version}"],
        check=True,
        stdout=subprocess.PIPE,
        cwd="/",
    )
    return Path(json.loads(told.stdout)["Dir"])


def references(node: Any) -> set[str]:
    if isinstance(node, list):
        return set().union(*map(references, node))
    if not isinstance(node, dict):
        return set()
    own = {node["$ref"].removeprefix(PREFIX)} if isinstance(node.get("$ref"), str) else set()
    return own.union(*map(references, node.values()))


def strict(node: Any) -> Any:
    """A copy that refuses fields nobody has described, and knows numbers that may be text."""
    if isinstance(node, list):
        return [strict(item) for item in node]
    if not isinstance(node, dict):
        return node
    either = node.get("format") == "int-or-string" or node.get("x-kubernetes-int-or-string")
    if either:
        return {"type": ["integer", "number", "string"]}
    copy = {
        key: strict(value)
        for key, value in node.items()
        if key not in ("description", "format") and not key.startswith("x-kubernetes-")
    }
    if "properties" in node and isinstance(node["properties"], dict):
        # A property may itself be called format or description.
        copy["properties"] = {name: strict(value) for name, value in node["properties"].items()}
        if not node.get("x-kubernetes-preserve-unknown-fields"):
            copy.setdefault("additionalProperties", False)
    return copy


def kubernetes_schemas(swagger: Path, to: Path) -> None:
    definitions = json.loads(swagger.read_text())["definitions"]
    quantity = "io.k8s.apimachinery.pkg.api.resource.Quantity"
    shapes = {name: strict(shape) for name, shape in definitions.items()}
    shapes[quantity] = {"type": ["string", "number"]}
    for name, shape in definitions.items():
        for kind in shape.get("x-kubernetes-group-version-kind", []):
            needed, wanted = set(), {name}
            while wanted:
                needed |= wanted
                wanted = set().union(*(references(shapes[n]) for n in wanted)) - needed
            group = kind["group"].split(".")[0]
            parts = (
                [kind["kind"], group, kind["version"]] if group else [kind["kind"], kind["version"]]
            )
            schema = {**shapes[name], "definitions": {n: shapes[n] for n in sorted(needed)}}
            (to / f"{'-'.join(parts).lower()}.json").write_text(json.dumps(schema))


def custom_schemas(crd: Path, to: Path) -> None:
    definition = yaml.safe_load(crd.read_text())
    spec = definition["spec"]
    group = spec["group"].split(".")[0]
    for version in spec["versions"]:
        schema = strict(version["schema"]["openAPIV3Schema"])
        schema["properties"]["metadata"] = {"type": "object"}
        name = f"{spec['names']['kind']}-{group}-{version['name']}.json".lower()
        (to / name).write_text(json.dumps(schema))


def main() -> None:
    folder = Path(sys.argv[1])
    schemas, crds = folder / "schemas", folder / "crds"
    for made in (schemas, crds):
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir(parents=True)
    kubernetes = module("k8s.io/kubernetes", "KUBE_VERSION")
    kubernetes_schemas(kubernetes / "api/openapi-spec/swagger.json", schemas)
    for (path, version), files in CRDS.items():
        source = module(path, version)
        for file in files:
            copied = crds / Path(file).name
            copied.write_text((source / file).read_text())
            custom_schemas(copied, schemas)


if __name__ == "__main__":
    main()
