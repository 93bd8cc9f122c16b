"""A pool's drafter: which pods have the target's model too, from where, and apart from theirs."""

from __future__ import annotations

import itertools

import pytest
import yaml

from rendered_chart import (
    SECRET,
    Document,
    find,
    pod_spec,
    render,
    roles,
    template,
)
from test_profiles import hub, kubeconform

SOURCES = ("pvc", "hostPath", "hub")
PAIRS = list(itertools.product(SOURCES, repeat=2))  # the draft's model, the target's
NAME = "m"  # of the draft's model and the target's: the chart has to keep them apart


def model(kind: str, whose: str) -> Document:
    """A model, with null for the sources that a profile has."""
    sources: Document = {
        "pvc": {"claimName": "models", "path": f"of/{whose}"},
        "hostPath": {"path": f"/srv/{whose}"},
        "hub": hub(whose),
    }
    return {"name": NAME, **dict.fromkeys(SOURCES), kind: sources[kind]}


def eagle3(own: str, target: str) -> Document:
    """Values of the laptop's profile: the kinds of source of the two models."""
    small = {"drafter": "eagle3", "model": model(own, "own")}
    return {"target": {"model": model(target, "target")}, "draft": {"pools": {"small": small}}}


def draft_of(*values: Document) -> Document:
    return pod_spec(find(render("laptop", *values), "Deployment", "-draft-small"))


def mounted(spec: Document, container: Document, folder: str) -> tuple[Document, Document]:
    """The one mount there, and its volume."""
    [mount] = [m for m in container["volumeMounts"] if m["mountPath"] == folder]
    [volume] = [v for v in spec["volumes"] if v["name"] == mount["name"]]
    return mount, volume


@pytest.mark.parametrize("drafter", ["dflash", "dspark", "mtp"])
def test_drafters_that_read_states_are_alike_to_the_chart(drafter: str) -> None:
    like = eagle3("pvc", "pvc")
    other = eagle3("pvc", "pvc")
    other["draft"]["pools"]["small"]["drafter"] = drafter
    assert draft_of(other) == draft_of(like)


@pytest.mark.parametrize(("own", "target"), PAIRS)
def test_an_eagle3_pool_has_both_models(own: str, target: str) -> None:
    spec = draft_of(eagle3(own, target))
    [container] = spec["containers"]
    assert {f"--model=/models/{NAME}", f"--target_model=/target/{NAME}"} <= set(container["args"])
    for kind, whose, folder in (
        (own, "own", f"/models/{NAME}"),
        (target, "target", f"/target/{NAME}"),
    ):
        mount, volume = mounted(spec, container, folder)
        assert mount["readOnly"] is True
        assert mount.get("subPath") == (f"of/{whose}" if kind == "pvc" else None)
        if kind == "pvc":
            assert volume["persistentVolumeClaim"] == {"claimName": "models", "readOnly": True}
        elif kind == "hostPath":
            assert volume["hostPath"] == {"path": f"/srv/{whose}", "type": "Directory"}
        else:
            assert volume["emptyDir"] == {"sizeLimit": "50Gi"}
    inits = spec.get("initContainers", [])
    fetched = [w for kind, w in ((own, "own"), (target, "target")) if kind == "hub"]
    assert len(inits) == len(fetched)
    for init, whose in zip(inits, fetched, strict=True):
        assert f"--repository=org/{whose}" in init["args"]
        assert "--without_weights" not in init["args"], "the embedding and the head are weights"
        [folder] = [a.split("=")[1] for a in init["args"] if a.startswith("--folder=")]
        assert folder == {"own": f"/models/{NAME}", "target": f"/target/{NAME}"}[whose]
        mount, volume = mounted(spec, init, folder)
        assert not mount.get("readOnly")
        assert volume == mounted(spec, container, folder)[1]
        assert "configMap" in mounted(spec, init, "/opt/scripts")[1]


def assert_apart(spec: Document) -> None:
    """What Kubernetes refuses, or never starts, and no schema says."""

    def once(names: list[str]) -> None:
        assert len(set(names)) == len(names), names

    volumes = [v["name"] for v in spec["volumes"]]
    once(volumes)
    claims = [v["persistentVolumeClaim"] for v in spec["volumes"] if "persistentVolumeClaim" in v]
    once([claim["claimName"] for claim in claims])
    containers = spec["containers"] + spec.get("initContainers", [])
    once([c["name"] for c in containers])
    for container in containers:
        once([m["mountPath"] for m in container["volumeMounts"]])
        assert {m["name"] for m in container["volumeMounts"]} <= set(volumes)


@pytest.mark.parametrize(("own", "target"), PAIRS)
def test_the_two_models_are_apart(own: str, target: str) -> None:
    status, out, errors = template("laptop", SECRET, eagle3(own, target))
    assert status == 0, errors
    status, told = kubeconform(out)
    assert status == 0, told
    for document in roles([d for d in yaml.safe_load_all(out) if d]):
        assert_apart(pod_spec(document))


def test_what_is_not_apart_is_noticed() -> None:
    """Otherwise the test above could not fail."""
    spec = draft_of(eagle3("pvc", "hostPath"))
    assert_apart(spec)
    volumes, container = spec["volumes"], spec["containers"][0]
    claim = {**next(v for v in volumes if v["name"] == "model"), "name": "again"}
    mounts = [{**m, "mountPath": "/same"} for m in container["volumeMounts"]]
    for wrong in (
        {"volumes": [*volumes, volumes[-1]]},
        {"volumes": [*volumes, claim]},
        {"volumes": [v for v in volumes if v["name"] != "target-model"]},
        {"containers": [container, container]},
        {"containers": [{**container, "volumeMounts": mounts}]},
    ):
        with pytest.raises(AssertionError):
            assert_apart({**spec, **wrong})


def test_another_claim_is_another_volume() -> None:
    other = {"target": {"model": {"pvc": {"claimName": "others"}}}}
    spec = draft_of(eagle3("pvc", "pvc"), other)
    claims = {
        mounted(spec, spec["containers"][0], f"/{folder}/{NAME}")[1]["persistentVolumeClaim"][
            "claimName"
        ]
        for folder in ("models", "target")
    }
    assert claims == {"models", "others"}


def test_pard_and_model_need_nothing_of_the_target() -> None:
    plain = render("laptop")
    for drafter in ("pard", "model"):
        assert render("laptop", {"draft": {"pools": {"small": {"drafter": drafter}}}}) == plain
    assert "--target_model" not in yaml.safe_dump(plain)


def test_a_pool_goes_before_the_default() -> None:
    default = {"draft": {"defaults": {"drafter": "eagle3"}}}
    flag = "--target_model=/target/target"
    assert flag in draft_of(default)["containers"][0]["args"]
    own = {"draft": {"pools": {"small": {"drafter": "pard"}}}}
    assert draft_of(default, own) == draft_of()


def test_a_drafter_changes_its_own_pool_alone() -> None:
    before = render("laptop")
    after = render("laptop", {"draft": {"pools": {"small": {"drafter": "eagle3"}}}})
    changed = [
        new["metadata"]["name"] for old, new in zip(before, after, strict=True) if old != new
    ]
    assert changed == ["fabric-specfabric-draft-small"]


def test_the_layers_may_be_set_and_without_eagle3_the_target_too() -> None:
    layers = {"draft": {"pools": {"small": {"flags": {"state_layers": "2,16,29"}}}}}
    args = draft_of(eagle3("hostPath", "hostPath"), layers)["containers"][0]["args"]
    assert "--state_layers=2,16,29" in args
    by_hand = {"draft": {"pools": {"small": {"flags": {"target_model": "/m"}}}}}
    args = draft_of(by_hand)["containers"][0]["args"]
    assert [a for a in args if "target_model" in a] == ["--target_model=/m"]
