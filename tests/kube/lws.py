"""The controller of LeaderWorkerSets and DisaggregatedSets, as it is, beside the control plane.

Its webhooks are asked on loopback, because a control plane without a network has no Services.
"""

from __future__ import annotations

import base64
import contextlib
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from kube import ControlPlane, wait_until

# Admitted by the webhook that is registered last.
PROBE = """
apiVersion: disaggregatedset.x-k8s.io/v1
kind: DisaggregatedSet
metadata: {name: probe, namespace: default}
spec:
  roles:
    - &role
      name: one
      spec: {leaderWorkerTemplate: {workerTemplate: {spec: {containers: [{name: c, image: c}]}}}}
    - {<<: *role, name: two}
"""


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def webhooks(manifests: Path, port: int, authority: bytes) -> list[dict[str, Any]]:
    """The controller's webhooks, by address instead of by Service."""
    configurations = list(yaml.safe_load_all(manifests.read_text()))
    for configuration in configurations:
        configuration["metadata"]["name"] = f"lws-{configuration['metadata']['name']}"
        for webhook in configuration["webhooks"]:
            path = webhook["clientConfig"]["service"]["path"]
            webhook["clientConfig"] = {
                "url": f"https://127.0.0.1:{port}{path}",
                "caBundle": base64.b64encode(authority).decode(),
            }
            if "pods" in webhook["rules"][0]["resources"]:  # its own alone, as installed elsewhere
                mine = {"key": "leaderworkerset.sigs.k8s.io/name", "operator": "Exists"}
                webhook["objectSelector"] = {"matchExpressions": [mine]}
    return configurations


@contextlib.contextmanager
def leader_worker_sets(plane: ControlPlane, folder: Path) -> Iterator[None]:
    """Runs the controller, its log and certificate in the folder."""
    programs = Path(plane.environment["PATH"].split(":")[0])
    certificate = folder / "tls.crt"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=lws"]
        + ["-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
        + ["-keyout", str(folder / "tls.key"), "-out", str(certificate)],
        check=True,
        capture_output=True,
    )
    port, health = free_ports(2)
    configuration = {
        "apiVersion": "config.lws.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "internalCertManagement": {"enable": False},
        "leaderElection": {"leaderElect": False},
        "metrics": {"bindAddress": "0"},
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "webhook": {"host": "127.0.0.1", "port": port, "certDir": str(folder)},
    }
    (folder / "lws.yaml").write_text(yaml.safe_dump(configuration))
    hooks = webhooks(programs / "lws-webhooks.yaml", port, certificate.read_bytes())
    with (folder / "lws.log").open("w") as log:
        process = subprocess.Popen(
            [programs / "lws", f"--config={folder}/lws.yaml"],
            env=plane.environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        plane.apply(*hooks)

        def is_served() -> bool:
            assert process.poll() is None, (folder / "lws.log").read_text()
            return (
                plane.run("kubectl", "create", "--dry-run=server", "-f", "-", text=PROBE).returncode
                == 0
            )

        wait_until(is_served, "the controller of LeaderWorkerSets is there")
        yield
    finally:
        for hook in hooks:
            plane.kubectl("delete", hook["kind"], hook["metadata"]["name"])
        process.terminate()
        process.wait(timeout=30)
