"""A control plane and what tests do with it: helm, kubectl, waiting."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rendered_chart import CHART, RELEASE, TOOLS, profile

SCRIPT = Path(__file__).parent / "control-plane.sh"
# Nodes of an InfiniBand cluster, as device plugins would describe them.
NODES = {"KUBE_NODES": "5", "KUBE_NODE_RESOURCES": "nvidia.com/gpu=8,rdma/hca=16"}
# The controllers look at a metric every 15 s otherwise.
QUICK = {"KUBE_CONTROLLER_MANAGER_ARGS": "--horizontal-pod-autoscaler-sync-period=1s"}


def is_built() -> bool:
    where = subprocess.run([SCRIPT, "where"], check=True, capture_output=True, text=True)
    return Path(where.stdout.strip()).is_dir()


def wait_until(condition: Callable[[], Any], what: str, seconds: float = 60.0) -> Any:
    """Polls until `condition` is true, and returns what it was."""
    deadline = time.monotonic() + seconds
    while not (last := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"still not so after {seconds:.0f} s: {what}")
        time.sleep(0.2)
    return last


def wait_for(wanted: object, read: Callable[..., object], *arguments: object, what: str) -> None:
    """Polls until `read` of the arguments gives what is wanted."""
    wait_until(lambda: read(*arguments) == wanted, what)


@dataclass
class ControlPlane:
    """Programs that speak to it, and their environment."""

    environment: dict[str, str]

    def run(
        self, *command: str | Path, text: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env=self.environment, input=text, capture_output=True, text=True, timeout=300
        )

    def kubectl(self, *arguments: str, text: str | None = None) -> str:
        done = self.run("kubectl", *arguments, text=text)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def apply(self, *documents: dict[str, Any]) -> None:
        self.kubectl("apply", "-f", "-", text=yaml.safe_dump_all(documents))

    @contextlib.contextmanager
    def namespace(self, name: str, security: str = "privileged") -> Iterator[Space]:
        """A namespace with a claim for models; it goes with all that is in it."""
        labels = {"pod-security.kubernetes.io/enforce": security}
        self.apply(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}},
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": "models", "namespace": name},
                "spec": {
                    "accessModes": ["ReadOnlyMany"],
                    "resources": {"requests": {"storage": "1Gi"}},
                },
            },
        )
        try:
            for made in ("serviceaccount/default", "configmap/kube-root-ca.crt"):
                self.kubectl("-n", name, "wait", made, "--for=create")
            yield Space(self, name)
        finally:
            self.kubectl("delete", "namespace", name, "--wait=false")


@dataclass
class Space:
    """One namespace, and the one release in it."""

    plane: ControlPlane
    name: str

    def kubectl(self, *arguments: str) -> str:
        return self.plane.kubectl("-n", self.name, *arguments)

    def get(self, kind: str, name: str = "", *arguments: str) -> dict[str, Any]:
        full = [f"{RELEASE}-specfabric{name}"] if name else []
        return json.loads(self.kubectl("get", kind, *full, *arguments, "-o", "json"))

    def helm(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return self.plane.run(TOOLS / "helm", "--namespace", self.name, *arguments)

    def must(self, *arguments: str | Path) -> str:
        done = self.helm(*arguments)
        assert done.returncode == 0, (
            f"helm {arguments}: {done.stderr}\n{self.kubectl('get', 'pods')}"
        )
        return done.stdout

    def install(self, name: str, *more: str) -> None:
        self.must("install", RELEASE, CHART, "-f", profile(name), "--wait", "--timeout=120s", *more)

    def upgrade(self, *more: str) -> None:
        self.must("upgrade", RELEASE, CHART, "--reuse-values", "--wait", "--timeout=120s", *more)

    def uninstall(self) -> None:
        self.must("uninstall", RELEASE, "--wait", "--timeout=120s")

    def everything(self) -> set[str]:
        """Every object of the namespace by kind and name, but for what is written about them."""
        told = self.plane.kubectl(
            "api-resources", "--namespaced", "--verbs=list,delete", "--output=name"
        )
        kinds = [k for k in told.split() if not re.match(r"(events|leases)\b", k)]
        return set(self.kubectl("get", ",".join(kinds), "-o", "name").split())

    def ready(self, kind: str, name: str) -> int:
        return self.get(kind, name)["status"].get("readyReplicas", 0)

    def images(self, component: str) -> set[str]:
        """Images of the living pods of a role."""
        pods = self.get("pods", "", f"-lapp.kubernetes.io/component={component}")["items"]
        return {
            container["image"]
            for pod in pods
            if "deletionTimestamp" not in pod["metadata"]
            for container in pod["spec"]["containers"]
        }

    def members(self, service: str) -> int:
        """How many addresses a headless service has: what `dns:///` finds."""
        slices = self.get(
            "endpointslices", "", f"-lkubernetes.io/service-name={RELEASE}-specfabric{service}"
        )["items"]
        return sum(
            endpoint["conditions"]["ready"] for s in slices for endpoint in s["endpoints"] or []
        )


class Watch(threading.Thread):
    """Remembers the fewest ready gateways and targets that there were."""

    def __init__(self, space: Space) -> None:
        super().__init__()
        self.space = space
        self.done = threading.Event()
        self.gateways: list[int] = []
        self.targets: list[int] = []

    def run(self) -> None:
        while not self.done.is_set():
            self.gateways.append(self.space.members("-gateway"))
            self.targets.append(self.space.members("-targets"))

    def __enter__(self) -> Watch:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.done.set()
        self.join()


@contextlib.contextmanager
def control_plane(folder: Path) -> Iterator[ControlPlane]:
    """Starts one, with the custom resources that the chart can make, and ends it."""
    started = subprocess.run(
        [SCRIPT, "up", folder],
        env={**os.environ, **NODES, **QUICK},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert started.returncode == 0, "the control plane did not start: see above"
    try:
        exports = re.fullmatch(r"export KUBECONFIG=(\S+) PATH=(\S+):\$PATH\n", started.stdout)
        assert exports, started.stdout
        path = f"{exports[2]}:{os.environ['PATH']}"
        home = {"HELM_CACHE_HOME": f"{folder}/helm", "HELM_CONFIG_HOME": f"{folder}/helm"}
        plane = ControlPlane({**os.environ, "KUBECONFIG": exports[1], "PATH": path, **home})
        plane.kubectl("apply", "--server-side", "-f", f"{TOOLS}/crds")
        # Of one that has no status yet kubectl says so, instead of waiting for it.
        established = ("kubectl", "wait", "--for=condition=Established", "crd", "--all")
        wait_until(
            lambda: plane.run(*established).returncode == 0, "all custom resources are known"
        )
        yield plane
    finally:
        subprocess.run([SCRIPT, "down", folder], check=True)
