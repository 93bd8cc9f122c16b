"""GPUs and network devices as drivers would publish them, for the scheduler to allocate."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

from kube import ControlPlane

PCIE_ROOT = "resource.kubernetes.io/pcieRoot"
API = "resource.k8s.io/v1"
PER_NODE = 8
# Two roots a node, with four GPUs and four network devices on each; a third one with devices that
# are near to no GPU.
CLASSES = {"gpu.example.com": [0, 1], "nic.example.com": [0, 1], "far-nic.example.com": [2]}


def device(driver: str, index: int, roots: list[int]) -> dict[str, Any]:
    root = roots[index * len(roots) // PER_NODE]
    return {
        "name": f"{driver.split('.')[0]}-{index}",
        "attributes": {PCIE_ROOT: {"string": f"pci0000:{root:02x}"}},
    }


def device_class(driver: str) -> dict[str, Any]:
    chosen = {"cel": {"expression": f"device.driver == '{driver}'"}}
    return {
        "apiVersion": API,
        "kind": "DeviceClass",
        "metadata": {"name": driver},
        "spec": {"selectors": [chosen]},
    }


def resource_slice(driver: str, roots: list[int], node: str) -> dict[str, Any]:
    return {
        "apiVersion": API,
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-{driver}"},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [device(driver, index, roots) for index in range(PER_NODE)],
        },
    }


@contextlib.contextmanager
def devices(plane: ControlPlane) -> Iterator[dict[tuple[str, str, str], str]]:
    """Publishes them on all nodes; gives each one's PCIe root, by driver, pool and name."""
    nodes = plane.kubectl("get", "nodes", "-o", "jsonpath={.items[*].metadata.name}").split()
    slices = [resource_slice(d, roots, node) for d, roots in CLASSES.items() for node in nodes]
    plane.apply(*map(device_class, CLASSES), *slices)
    try:
        yield {
            (one["spec"]["driver"], one["spec"]["pool"]["name"], d["name"]): d["attributes"][
                PCIE_ROOT
            ]["string"]
            for one in slices
            for d in one["spec"]["devices"]
        }
    finally:
        plane.kubectl("delete", "deviceclasses", *CLASSES)
        plane.kubectl("delete", "resourceslices", *(one["metadata"]["name"] for one in slices))


def allocations(claims: str) -> list[list[tuple[str, str, str]]]:
    """Of claims as kubectl prints them: the devices of each, by driver, pool and name."""
    out = []
    for claim in json.loads(claims)["items"]:
        results = (
            claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
        )
        out.append([(r["driver"], r["pool"], r["device"]) for r in results])
    return out
