"""Containers without an engine's daemon: images by buildah, processes in them by runc.

runc is what Kubernetes' nodes run. It does what buildah's own chroot cannot: a read-only root,
and no new privileges. Processes share the machine's network and have all other namespaces of
their own; no limits are set, and volumes are folders of this machine.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster import Process, wait_until
from rendered_chart import ROOT, Document

RUNTIME = "runc"
# What a node's runtime leaves a container that drops nothing.
DEFAULT_CAPABILITIES = [
    "CAP_AUDIT_WRITE",
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_MKNOD",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_RAW",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_CHROOT",
]
PROFILE = Path("/usr/share/containers/seccomp.json")
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def lacking() -> str:
    """Why images cannot be built on this machine; empty where they can."""
    if os.geteuid() != 0:
        return "building an image takes root"
    if "VERSION_CODENAME=bookworm" not in Path("/etc/os-release").read_text():
        return "the image holds what is built here, and is Debian 12"
    return ""


def _checked(command: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **(environment or {})}
    )
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout.strip()


@dataclass
class Storage:
    """buildah's images and containers, in a folder of their own."""

    folder: Path
    apt_settings: Path

    @classmethod
    def make(cls, folder: Path, in_memory: bool = False) -> Storage:
        """`in_memory` is where the machine has much to spare: the disk is most of the time else."""
        available = re.findall(r"^MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text(), re.M)
        if in_memory and int(available[0]) > 10e6:
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8g", "tmpfs", folder])
        settings = folder / "apt.conf"
        told = _checked(["apt-config", "dump"]).splitlines()
        kept = [line for line in told if re.match("Acquire::(?!IndexTargets)", line)]
        settings.write_text("\n".join([*kept, 'DPkg::Options:: "--force-unsafe-io";', ""]))
        return cls(folder, settings)

    def build(self, *options: str | Path) -> str:
        """Runs scripts/image; what it reports."""
        environment = {"STORAGE_DRIVER": "", "BUILDAH_ISOLATION": "chroot"}
        command = [ROOT / "scripts/image", "--storage", self.folder, *options]
        return _checked(command, {**environment, "TMPDIR": str(self.folder)})

    def buildah(self, *arguments: str | Path) -> str:
        own: list[str | Path] = ["--root", self.folder / "images", "--runroot", self.folder / "run"]
        return _checked(["buildah", *own, *arguments])

    @contextlib.contextmanager
    def container(self, image: str) -> Iterator[tuple[str, Path]]:
        """A container of the image, by its name and its root folder."""
        name = self.buildah("from", "--pull=never", image)
        try:
            yield name, Path(self.buildah("mount", name))
        finally:
            self.buildah("rm", name)

    def remove(self) -> None:
        """Ends with the folder gone: some gigabytes, which pytest would keep."""
        self.buildah("rm", "--all")
        if os.path.ismount(self.folder):
            _checked(["umount", self.folder])
        shutil.rmtree(self.folder)

    def run_apt(self, container: str, command: str) -> str:
        """A command of the shell, with this machine's settings of apt as scripts/image has them."""
        mount = f"{self.apt_settings}:/etc/apt/apt.conf.d/01autoremove:ro"
        run: list[str | Path] = ["run", "--isolation", "chroot", "--volume", mount, container]
        return self.buildah(
            *run, "--", "env", "DEBIAN_FRONTEND=noninteractive", "sh", "-c", command
        )


@dataclass
class Image:
    """The image cpu with the programs of the build that is tested."""

    storage: Storage
    report: str
    name: str
    container: str
    root: Path


def default_system_calls() -> Document:
    """The profile RuntimeDefault for a container without capabilities, as the runtime reads it."""
    profile = json.loads(PROFILE.read_text())
    [names] = [a for a in profile["archMap"] if a["architecture"] == "SCMP_ARCH_X86_64"]
    rules = []
    for rule in profile["syscalls"]:
        includes = rule["includes"]
        if includes.get("caps") or "amd64" not in includes.get("arches", ["amd64"]):
            continue
        rules.append({key: rule[key] for key in ("names", "action", "args") if rule[key]})
        if "errnoRet" in rule:
            rules[-1]["errnoRet"] = rule["errnoRet"]
    return {
        "defaultAction": profile["defaultAction"],
        "defaultErrnoRet": profile["defaultErrnoRet"],
        "architectures": [names["architecture"], *names["subArchitectures"]],
        "syscalls": rules,
    }


def system_calls_of(group: str) -> Document:
    """A unit's SystemCallFilter=GROUP, as the runtime reads it: any other call ends the process."""
    told = _checked(["systemd-analyze", "syscall-filter"])
    groups = {
        name: [word for word in re.findall(r"^    (\S+)", text, re.M) if word != "#"]
        for name, text in re.findall(r"^(@\S+)\n((?:    .*\n)*)", f"{told}\n", re.M)
    }

    def expanded(name: str) -> Iterator[str]:
        for word in groups[name]:
            yield from expanded(word) if word.startswith("@") else [word]

    names = sorted({*expanded(group), *expanded("@default")})
    return {
        "defaultAction": "SCMP_ACT_KILL_PROCESS",
        "architectures": ["SCMP_ARCH_X86_64"],
        "syscalls": [{"names": names, "action": "SCMP_ACT_ALLOW"}],
    }


@dataclass
class Confinement:
    """Who a process is, and what it may do."""

    user: int
    group: int
    further_groups: list[int]
    capabilities: list[str]
    no_new_privileges: bool
    read_only: bool
    system_calls: Document | None


def confinement_of(pod: Document) -> Confinement:
    """As a pod of one container asks for it."""
    assert platform.machine() == "x86_64"
    whole, own = pod["securityContext"], pod["containers"][0]["securityContext"]
    assert whole["runAsNonRoot"], "the chart's pods are of no root"
    dropped = own.get("capabilities", {}).get("drop", [])
    kept = [] if "ALL" in dropped else [c for c in DEFAULT_CAPABILITIES if c[4:] not in dropped]
    kept += [f"CAP_{name}" for name in own.get("capabilities", {}).get("add", [])]
    by_default = whole.get("seccompProfile", {}).get("type") == "RuntimeDefault"
    return Confinement(
        user=whole["runAsUser"],
        group=whole["runAsGroup"],
        further_groups=[whole["fsGroup"]],
        capabilities=kept,
        no_new_privileges=not own.get("allowPrivilegeEscalation", True),
        read_only=own.get("readOnlyRootFilesystem", False),
        system_calls=default_system_calls() if by_default else None,
    )


def bind(source: Path, destination: str) -> Document:
    """A read-only mount of a file or folder of this machine."""
    options = ["rbind", "ro", "nosuid", "nodev"]
    return {"destination": destination, "type": "bind", "source": str(source), "options": options}


def in_memory(destination: str) -> Document:
    options = ["nosuid", "nodev", "mode=1777"]
    return {"destination": destination, "type": "tmpfs", "source": "tmpfs", "options": options}


def configuration(
    template: Document,
    root: Path,
    arguments: Sequence[str],
    environment: Sequence[str],
    mounts: Sequence[Document],
    confinement: Confinement,
) -> Document:
    """The runtime's config.json, from what `runc spec` proposes."""
    config = copy.deepcopy(template)
    config["root"] = {"path": str(root), "readonly": confinement.read_only}
    kinds = ("bounding", "effective", "inheritable", "permitted", "ambient")
    config["process"] |= {
        "terminal": False,
        "user": {
            "uid": confinement.user,
            "gid": confinement.group,
            "additionalGids": confinement.further_groups,
        },
        "args": list(arguments),
        "env": [PATH, *environment],
        "capabilities": dict.fromkeys(kinds, confinement.capabilities),
        "noNewPrivileges": confinement.no_new_privileges,
    }
    config["mounts"] += mounts
    namespaces = config["linux"]["namespaces"]
    config["linux"]["namespaces"] = [n for n in namespaces if n["type"] != "network"]
    if confinement.system_calls is not None:
        config["linux"]["seccomp"] = confinement.system_calls
    return config


@dataclass
class Container:
    """A process that the runtime runs; its output is in `process.log`."""

    name: str
    state: Path
    process: Process

    def runtime(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [RUNTIME, "--root", str(self.state), *arguments]
        return subprocess.run(command, capture_output=True, text=True)

    def execute(self, *command: str) -> subprocess.CompletedProcess[str]:
        """A further process in it, confined as the first."""
        return self.runtime("exec", self.name, *command)

    def status(self) -> dict[str, str]:
        """What /proc says of its first process."""
        state = json.loads(self.runtime("state", self.name).stdout)
        lines = Path(f"/proc/{state['pid']}/status").read_text().splitlines()
        return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


@contextlib.contextmanager
def started(folder: Path, name: str, config: Document) -> Iterator[Container]:
    """Runs a container, which must end with status 0 when it is asked to.

    `folder` is for its state and log; names are the machine's, as cgroups are.
    """
    bundle = folder / name
    bundle.mkdir()
    (bundle / "config.json").write_text(json.dumps(config))
    name = f"specfabric-test-{os.getpid()}-{name}"
    state = folder / "state"
    command = [RUNTIME, "--root", str(state), "run", "--bundle", str(bundle), name]
    log = bundle / "log"
    with log.open("wb") as errors:
        popen = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors
        )
    container = Container(name, state, Process(command, log, popen))
    try:
        wait_until(
            lambda: (
                popen.poll() is not None or '"running"' in container.runtime("state", name).stdout
            ),
            f"{name} runs",
        )
        assert popen.poll() is None, container.process.log_text()
        yield container
        assert container.process.stop() == 0, container.process.log_text()
    finally:
        container.runtime("delete", "--force", name)
        popen.wait()


def template(folder: Path) -> Document:
    """What `runc spec` proposes."""
    subprocess.run([RUNTIME, "spec", "--bundle", folder], check=True)
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    (folder / "config.json").unlink()
    return config
