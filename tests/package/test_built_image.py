"""The image, built: what is in it, and the chart's pods run from it as the chart asks for them.

Of a rendered pod nothing is changed but addresses; its volumes are folders of this machine. The C++
is that of the build that is tested, and comes in by scripts/install; test_compiled_image.py
compiles it in the image.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

import cluster
import containers
import plain_http
from cluster import DRAFT, TARGET, free_address, wait_until
from containers import Container, Image
from exposition import value_of
from rendered_chart import (
    ROOT,
    Document,
    Stand,
    addresses_here,
    main_container,
    pod_spec,
    render,
    roles,
)

PROMPT, MAX_TOKENS = "import os\n", 48
# So that a round waits for the draft, whatever that costs.
ALWAYS_DRAFTED = {"target": {"flags": {"speculation": "always", "ngram_lookup": False}}}
MODELS = {"target": TARGET, "draft": DRAFT}


@pytest.fixture(scope="module")
def parts(image: Image) -> list[Document]:
    """Of the image as it was built, before a container makes places for its mounts."""
    told = subprocess.run(
        [ROOT / "scripts/image_contents.py", image.root, "--json"],
        check=True,
        capture_output=True,
        text=True,
    )
    return json.loads(told.stdout)


def test_its_parts_are_reported(image: Image, parts: list[Document]) -> None:
    """Their sizes add up to the image's, and there is no part without a licence text."""
    by_name = {part["name"]: part for part in parts}
    for name in ("specfabric", "specfabric-perftest", "libucx0", "ibverbs-providers", "python3"):
        assert by_name[name]["megabytes"] > 0, name
    whole = subprocess.run(["du", "-s", "-B1", image.root], capture_output=True, text=True)
    assert sum(part["megabytes"] for part in parts) == pytest.approx(
        int(whole.stdout.split()[0]) / 1e6, rel=0.01
    )
    assert by_name["files of no part"]["megabytes"] < 30
    assert all(part["licences"] for part in parts if part["kind"] != "other")
    [told] = re.findall(r"^all +([0-9.]+)$", image.report, re.M)
    assert float(told) == pytest.approx(sum(part["megabytes"] for part in parts), rel=0.01)


def test_a_part_without_a_licence_text_is_named(image: Image, tmp_path: Path) -> None:
    small = tmp_path / "root"
    for name in ("var/lib/dpkg", "usr/share/doc/libucx0", "usr/share/doc/bash"):
        shutil.copytree(image.root / name, small / name, symlinks=True)
    (small / "usr/share/doc/bash/copyright").unlink()
    done = subprocess.run(
        [ROOT / "scripts/image_contents.py", small], capture_output=True, text=True
    )
    assert done.returncode == 1
    lacking = done.stderr.partition(": no licence text of: ")[2].strip().split(", ")
    assert "bash" in lacking
    assert "libucx0" not in lacking


def test_a_folder_that_is_no_image_is_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [ROOT / "scripts/image_contents.py", tmp_path], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert str(tmp_path) in done.stderr


def test_nothing_of_this_machine_is_in_it(image: Image) -> None:
    """Registries' settings were mounted while it was built; the files there are packages' own."""
    settings = image.root / "etc/apt/apt.conf.d"
    assert {file.name for file in settings.iterdir()} == {"01autoremove", "70debconf"}
    assert "Acquire" not in (settings / "01autoremove").read_text()
    own = (image.root / "etc/ssl/certs/ca-certificates.crt").read_text()
    known = {
        file.read_text().strip()
        for file in (image.root / "usr/share/ca-certificates").rglob("*.crt")
    }
    found = re.findall(r"-----BEGIN.*?END CERTIFICATE-----", own, re.S)
    assert found
    assert set(found) <= known
    for name in ("pip.conf", "resolv.conf", "hostname"):
        file = image.root / "etc" / name
        assert not file.exists() or file.read_text() == "", name
    assert {file.name for file in (image.root / "root").iterdir()} <= {".bashrc", ".profile"}


def test_it_says_how_it_runs(image: Image) -> None:
    told = json.loads(image.storage.buildah("inspect", "--type", "image", image.name))
    config = told["OCIv1"]["config"]
    assert config["User"] == "65532:65532"
    assert config["Entrypoint"] == ["specfabric"]
    assert config["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"


@pytest.mark.parametrize(
    ("pinned", "told"),
    [("true", "debian.sources"), ("yes", "PINNED=yes: allowed are true and false")],
)
def test_a_base_without_a_snapshot_is_refused(image: Image, pinned: str, told: str) -> None:
    """Unless it is said that packages need not be pinned: it was, where this image was built."""
    arguments = ["BASE=localhost/specfabric-base", f"PINNED={pinned}"]
    with pytest.raises(AssertionError) as failed:
        image.storage.buildah(
            *("bud", "--isolation", "chroot", "--target", "base"),
            *(f"--build-arg={argument}" for argument in arguments),
            *("--file", ROOT / "Containerfile", ROOT / "requirements"),
        )
    assert told in str(failed.value)


@dataclass
class Pods:
    """The laptop profile's roles, each a container of the image."""

    containers: dict[str, Container]
    admin: dict[str, str]
    http: str


def mounts_of(pod: Document, models: dict[str, Path], secret: Path) -> list[Document]:
    """A pod's volumes, as folders of this machine."""
    kinds = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = []
    for mount in main_container({"kind": "Pod", "spec": pod})["volumeMounts"]:
        volume, place = kinds[mount["name"]], mount["mountPath"]
        if "emptyDir" in volume:
            mounts.append(containers.in_memory(place))
        elif "hostPath" in volume:
            assert mount["readOnly"]
            mounts.append(containers.bind(models[Path(volume["hostPath"]["path"]).name], place))
        else:
            assert volume["secret"]["defaultMode"] == 0o440
            mounts.append(containers.bind(secret, place))
    return mounts


@pytest.fixture(scope="module")
def secret(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The join secret's volume, as a node makes it: readable by the pod's group alone."""
    folder = tmp_path_factory.mktemp("join")
    file = folder / "join_secret"
    file.write_text("0123456789abcdef")
    file.chmod(0o440)
    shutil.chown(file, group=65532)
    folder.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def pods(
    image: Image,
    parts: list[Document],
    secret: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Pods]:
    folder = tmp_path_factory.mktemp("pods")
    template = containers.template(folder)
    listen = {role: free_address() for role in ("target", "draft", "gateway")}
    admin = {role: free_address() for role in listen}
    running: dict[str, Container] = {}
    with ExitStack() as stack:
        for document in roles(render("laptop", ALWAYS_DRAFTED)):
            pod, container = pod_spec(document), main_container(document)
            role = container["name"]
            stand = Stand(addresses_here(container, listen, admin))
            config = containers.configuration(
                template,
                image.root,
                [*container["command"], *stand.in_place(container["args"])],
                [f"{entry['name']}={entry['value']}" for entry in container["env"]],
                mounts_of(pod, MODELS, secret),
                containers.confinement_of(pod),
            )
            running[role] = stack.enter_context(containers.started(folder, role, config))
        for role in running:
            address = listen["gateway"] if role == "gateway" else admin[role]

            def is_ready(address: str = address) -> bool:
                return plain_http.status_of(f"http://{address}/readyz") == 200

            wait_until(is_ready, f"{role} is ready")
        wait_until(
            lambda: value_of(admin["target"], "specfabric_target_draft_workers") == 1,
            "the target has its draft worker",
        )
        yield Pods(running, admin, listen["gateway"])


def test_the_pods_answer_a_completion(pods: Pods) -> None:
    """With the text of the same build outside of any container, and with the draft's help."""
    answer = plain_http.post(
        f"http://{pods.http}/v1/completions",
        json={"model": "target", "prompt": PROMPT, "max_tokens": MAX_TOKENS, "temperature": 0},
        timeout=60,
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == MAX_TOKENS
    alone = ["generate", f"--model={TARGET}", "--dtype=float32", "--json"]
    alone += [f"--prompt={PROMPT}", f"--max_tokens={MAX_TOKENS}"]
    outside = cluster.run(alone)
    assert outside.returncode == 0, outside.stderr
    assert answer.json()["choices"][0]["text"] == json.loads(outside.stdout)["text"]
    assert value_of(pods.admin["target"], "specfabric_draft_replies_total", status="ok") > 0


@pytest.mark.parametrize("role", ["gateway", "target", "draft"])
def test_a_pod_has_no_privileges(pods: Pods, role: str) -> None:
    """As the kernel says of its process, and as a further process in it finds."""
    container = pods.containers[role]
    status = container.status()
    assert status["Uid"].split() == ["65532"] * 4
    assert status["Gid"].split() == ["65532"] * 4
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[name], 16) == 0, name
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"
    for place in ("/", "/usr/local/bin", "/var/tmp"):
        refused = container.execute("touch", f"{place}/written")
        assert refused.returncode != 0, place
        assert "Read-only file system" in refused.stderr
    assert container.execute("touch", "/tmp/written").returncode == 0
