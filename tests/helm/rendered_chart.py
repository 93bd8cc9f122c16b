"""Renders the chart with Helm itself, for tests to look at what comes out."""

from __future__ import annotations

import copy
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

import setup_script

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "helm" / "specfabric"
PROFILES = sorted(path.stem for path in (CHART / "profiles").glob("*.yaml"))
RELEASE, NAMESPACE, KUBE_VERSION = "fabric", "llm", "1.34.4"
SECRET = {"joinSecret": {"value": "not-a-secret-but-the-same-each-time"}}

Document = dict[str, Any]


TOOLS = setup_script.folder("deploy")  # where `scripts/setup --deploy` puts its programs


def profile(name: str) -> Path:
    return CHART / "profiles" / f"{name}.yaml"


def merged(base: Document, *over: Document) -> Document:
    """`base` with each of `over` laid upon it, as Helm does with several values files."""
    out = copy.deepcopy(base)
    for values in over:
        for key, value in values.items():
            if isinstance(value, dict) and isinstance(out.get(key), dict):
                out[key] = merged(out[key], value)
            else:
                out[key] = copy.deepcopy(value)
    return out


def run_helm(*arguments: str | Path, values: Document | None = None) -> tuple[int, str, str]:
    """Exit status, output and errors of one call."""
    command: list[str | Path] = [TOOLS / "helm", *arguments]
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        if values is not None:
            yaml.safe_dump(values, file)
            file.flush()
            command += ["--values", file.name]
        done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def template(
    base: str | None, *over: Document, kube_version: str = KUBE_VERSION
) -> tuple[int, str, str]:
    arguments: list[str | Path] = ["template", RELEASE, CHART, "--namespace", NAMESPACE]
    arguments += ["--kube-version", kube_version]
    if base is not None:
        arguments += ["--values", profile(base)]
    return run_helm(*arguments, values=merged({}, *over))


def render(base: str | None, *over: Document) -> list[Document]:
    """What the chart makes of a profile and further values."""
    status, out, errors = template(base, SECRET, *over)
    assert status == 0, errors
    return [document for document in yaml.safe_load_all(out) if document]


def find_all(documents: list[Document], kind: str) -> list[Document]:
    return [document for document in documents if document["kind"] == kind]


def find(documents: list[Document], kind: str, name: str) -> Document:
    """The one object of that kind and name (without the release's)."""
    full = f"{RELEASE}-specfabric{name}"
    found = [d for d in find_all(documents, kind) if d["metadata"]["name"] == full]
    assert len(found) == 1, f"{len(found)} of {kind} {full}"
    return found[0]


def pod_spec(document: Document) -> Document:
    """The pod of a Pod, or of what makes pods."""
    return document["spec"] if document["kind"] == "Pod" else document["spec"]["template"]["spec"]


def pods(documents: list[Document]) -> list[Document]:
    """All objects that are pods or make some."""
    return [d for d in documents if d["kind"] in ("Deployment", "StatefulSet", "Pod")]


def main_container(document: Document) -> Document:
    return pod_spec(document)["containers"][0]


def roles(documents: list[Document]) -> list[Document]:
    """What runs SpecFabric's roles, without the pods of `helm test`."""
    return [
        d for d in pods(documents) if "helm.sh/hook" not in d["metadata"].get("annotations", {})
    ]


@dataclass
class Stand:
    """What a container's names are here."""

    names: dict[str, str]

    def in_place(self, arguments: list[str]) -> list[str]:
        out = []
        for argument in arguments:
            for name, here in self.names.items():
                argument = argument.replace(name, here)
            out.append(argument)
        return out


def addresses_here(
    container: Document, listen: dict[str, str], admin: dict[str, str]
) -> dict[str, str]:
    """What a role's addresses, and its peers' names, are where all pods share one network."""
    role = container["name"]
    ports = {p["name"]: p["containerPort"] for p in container["ports"]}
    own = next(port for name, port in ports.items() if name != "admin")
    return {
        f"0.0.0.0:{own}": listen[role],
        f"0.0.0.0:{ports['admin']}": admin[role],
        "dns:///fabric-specfabric-targets:7100": listen["target"],
        "dns:///fabric-specfabric-drafts:7200": listen["draft"],
    }
