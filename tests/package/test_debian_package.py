"""The Debian package, made by CPack of the build that is tested and installed in a clean Debian.

No systemd runs in a chroot: its own analysis checks the unit, whose command line is then run with
the unit's environment and credentials, by a user of its own without privileges, on a read-only
root, with the unit's filter of system calls.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

import containers
import plain_http
from cluster import BINARY, DRAFT, TARGET, free_address, wait_until
from containers import Confinement, Container, Image
from exposition import value_of
from rendered_chart import Document

UNIT = "usr/lib/systemd/system/specfabric@.service"
EXAMPLES = "usr/share/doc/specfabric/examples"
ROLES = ("draft", "target", "gateway")
# One of those that systemd gives to units of DynamicUser.
DYNAMIC_USER = 61200


@pytest.fixture(scope="module")
def package(image: Image) -> Path:
    """The file, beside the images."""
    config = BINARY.parent / "CPackConfig.cmake"
    assert config.is_file(), f"{config} is not there: configured before there was a package"
    folder = image.storage.folder / "package"
    subprocess.run(["cpack", "--config", config, "-B", folder], check=True, capture_output=True)
    shutil.rmtree(folder / "_CPack_Packages")
    [file] = folder.iterdir()
    return file


@dataclass
class Installed:
    container: str
    root: Path


@pytest.fixture(scope="module")
def installed(image: Image, package: Path) -> Iterator[Installed]:
    with image.storage.container("localhost/specfabric-base") as (name, root):
        shutil.copy(package, root / "tmp/specfabric.deb")
        image.storage.run_apt(
            name,
            "apt-get -q update && apt-get install -qy --no-install-recommends /tmp/specfabric.deb",
        )
        yield Installed(name, root)
        # The last of all: what it leaves behind.
        (root / "etc/specfabric/by_hand").write_text("an administrator's")
        image.storage.run_apt(name, "apt-get purge -qy specfabric")
        left = {file.name for file in (root / "etc/specfabric").iterdir()}
        assert "by_hand" in left
        assert "join_secret" not in left
        assert not (root / UNIT).exists()
        assert not (root / "usr/bin/specfabric").exists()


def field(package: Path, name: str) -> str:
    told = subprocess.run(
        ["dpkg-deb", "--field", package, name], check=True, capture_output=True, text=True
    )
    return told.stdout.strip()


def test_it_says_what_it_is(package: Path) -> None:
    version = subprocess.run([BINARY, "--version"], check=True, capture_output=True, text=True)
    assert version.stdout.split() == ["specfabric", field(package, "Version")]
    assert field(package, "Package") == "specfabric"
    # Of every library, at least the version that was linked; none of what is beside the programs.
    depends = dict(
        re.findall(r"(?:^|, )([a-z0-9.+-]+)(?: \(>= ([^)]+)\))?", field(package, "Depends"))
    )
    assert {"libc6", "libstdc++6", "libssl3", "libucx0", "libabsl20220623"} <= set(depends)
    assert depends["libucx0"]
    assert not [name for name in depends if "torch" in name or "cuda" in name]


def test_it_is_installed_whole(image: Image, installed: Installed) -> None:
    told = image.storage.run_apt(
        installed.container, "dpkg --verify specfabric && dpkg -s specfabric && ldconfig"
    )
    assert "Status: install ok installed" in told
    version = image.storage.run_apt(installed.container, "/usr/bin/specfabric --version")
    assert version.startswith("specfabric ")
    documents = installed.root / "usr/share/doc/specfabric"
    for name in ("copyright", "LICENSE", "NOTICE", "third_party.md", "licenses/crates"):
        assert (documents / name).exists(), name
    secret = installed.root / "etc/specfabric/join_secret"
    assert re.fullmatch("[0-9a-f]{64}", secret.read_text())
    assert secret.stat().st_mode & 0o777 == 0o600


def verified(unit: str, folder: Path, program: Path) -> tuple[int, str]:
    """What systemd says of a unit, beside its own."""
    units = folder / "usr/lib/systemd/system"
    shutil.copytree("/usr/lib/systemd/system", units, symlinks=True)
    (units / "specfabric@.service").write_text(unit)
    (folder / "usr/bin").mkdir()
    shutil.copy(program, folder / "usr/bin")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", f"--root={folder}", "specfabric@target.service"],
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


def test_systemd_takes_the_unit(installed: Installed, tmp_path: Path) -> None:
    unit = (installed.root / UNIT).read_text()
    program = installed.root / "usr/bin/specfabric"
    assert verified(unit, tmp_path / "as_it_is", program) == (0, "")
    for name, (right, wrong) in {
        "key": ("ProtectHome=", "ProtectHone="),
        "value": ("Type=exec", "Type=exce"),
        "program": ("/usr/bin/specfabric", "/usr/bin/specfabrics"),
    }.items():
        assert right in unit
        _, told = verified(unit.replace(right, wrong), tmp_path / name, program)
        assert told.strip(), f"{wrong} is taken"


@dataclass
class Unit:
    """How an instance of the unit runs, as systemd reads it."""

    command: list[str]
    environment: dict[str, str]
    credentials: dict[str, str]
    system_calls: Document


def instance(root: Path, name: str, credentials_folder: str) -> Unit:
    text = (root / UNIT).read_text().replace("%i", name).replace("%d", credentials_folder)
    settings = re.findall(r"^([A-Za-z]+)=(.*)$", text, re.M)
    values: dict[str, list[str]] = {}
    for key, value in settings:
        values.setdefault(key, []).append(value)
    lines = list(values["Environment"])
    for file in values["EnvironmentFile"]:
        lines += (root / file.lstrip("/")).read_text().splitlines()
    environment = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    [command] = values["ExecStart"]
    words = [environment[w[1:]] if w.startswith("$") else w for w in command.split()]
    assert values["CapabilityBoundingSet"] == [""]
    assert values["NoNewPrivileges"] == ["yes"]
    assert values["ProtectSystem"] == ["strict"]
    [calls] = values["SystemCallFilter"]
    return Unit(
        words,
        environment,
        dict(line.split(":", 1) for line in values["LoadCredential"]),
        containers.system_calls_of(calls),
    )


@pytest.fixture(scope="module")
def services(
    installed: Installed, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """The three roles by their examples, with free ports; the addresses of HTTP and admin pages."""
    folder = tmp_path_factory.mktemp("services")
    template = containers.template(folder)
    here = {f"127.0.0.1:{port}": free_address() for port in (7100, 7200, 8000, 9101, 9102)}
    credentials = folder / "credentials"
    credentials.mkdir()
    with ExitStack() as stack:
        for role in ROLES:
            flags = (installed.root / EXAMPLES / f"{role}.env").read_text()
            for address, free in here.items():
                flags = flags.replace(address, free)
            (installed.root / "etc/specfabric" / f"{role}.env").write_text(flags)
            unit = instance(installed.root, role, "/run/credentials")
            for name, source in unit.credentials.items():
                file = credentials / name
                shutil.copy(installed.root / source.lstrip("/"), file)
                shutil.chown(file, DYNAMIC_USER)
                file.chmod(0o400)
            mounts = [
                containers.bind(TARGET, "/srv/models/target"),
                containers.bind(DRAFT, "/srv/models/draft"),
                containers.bind(credentials, "/run/credentials"),
                containers.in_memory("/tmp"),
            ]
            config = containers.configuration(
                template,
                installed.root,
                unit.command,
                [f"{name}={value}" for name, value in unit.environment.items()],
                mounts,
                Confinement(
                    user=DYNAMIC_USER,
                    group=DYNAMIC_USER,
                    further_groups=[],
                    capabilities=[],
                    no_new_privileges=True,
                    read_only=True,
                    system_calls=unit.system_calls,
                ),
            )
            running: Container = stack.enter_context(containers.started(folder, role, config))
            assert running.status()["Uid"].split() == [str(DYNAMIC_USER)] * 4
        http, target, draft = (here[f"127.0.0.1:{port}"] for port in (8000, 9101, 9102))
        wait_until(
            lambda: plain_http.status_of(f"http://{http}/readyz") == 200, "the gateway is ready"
        )
        wait_until(
            lambda: value_of(target, "specfabric_target_draft_workers") == 1,
            "the target has its draft worker",
        )
        yield {"gateway": http, "target": target, "draft": draft}


def test_the_units_serve_the_demo_models(services: dict[str, str]) -> None:
    answer = plain_http.post(
        f"http://{services['gateway']}/v1/completions",
        json={"model": "target", "prompt": "import os\n", "max_tokens": 24, "temperature": 0},
        timeout=60,
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == 24
    assert answer.json()["choices"][0]["text"].count("import") > 1
