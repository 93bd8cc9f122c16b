"""What is in the container image, and the file that builds it, without building one.

The last step, scripts/install, runs for real; the file itself is read by hadolint and by us.
tests/package builds and runs the image.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from cluster import BINARY
from rendered_chart import CHART, ROOT

CONTAINERFILE = ROOT / "Containerfile"
RUNTIME = ROOT / "requirements" / "debian-runtime.txt"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root folder that scripts/install has filled."""
    root = tmp_path_factory.mktemp("image")
    subprocess.run(
        [ROOT / "scripts/install", "--build", BINARY.parent, "--destdir", root], check=True
    )
    return root


def libraries(program: Path) -> dict[str, str]:
    """What the loader finds for a program, without the caller's environment."""
    told = subprocess.run(
        ["env", "-i", "ldd", program], check=True, capture_output=True, text=True
    ).stdout
    assert "not found" not in told, told
    return dict(re.findall(r"^\s*(\S+) => (/\S+)", told, re.M))


def test_the_installed_program_runs(installed: Path) -> None:
    for arguments, word in ((["--version"], "specfabric "), (["perftest", "--help"], "am_lat")):
        done = subprocess.run(
            ["env", "-i", installed / "usr/local/bin/specfabric", *arguments],
            capture_output=True,
            text=True,
            cwd="/",
        )
        assert done.returncode == 0, done.stderr
        assert word in done.stdout


def test_it_needs_nothing_of_where_it_was_built(installed: Path) -> None:
    for program in ("specfabric", "specfabric-perftest"):
        found = libraries(installed / "usr/local/bin" / program)
        for name, path in found.items():
            own = Path(path).resolve().is_relative_to(installed)
            system = str(Path(path).resolve()).startswith(("/usr/lib/", "/lib/"))
            assert own or system, f"{name} => {path}"
    assert "libtorch_cpu.so" in libraries(installed / "usr/local/bin/specfabric")


def test_the_licences_are_installed(installed: Path) -> None:
    documents = installed / "usr/local/share/doc/specfabric"
    for name in ("LICENSE", "NOTICE", "third_party.md"):
        assert (documents / name).is_file()
    texts = {folder.name for folder in (documents / "licenses").iterdir()}
    assert {"crates", "rust-std", "libboost1.81-dev"} <= texts
    # Each library that is installed beside the programs came in a Python package with its licence.
    assert any(name.startswith("torch-") for name in texts), texts
    assert any(name.startswith("nvidia_cuda_runtime-") for name in texts), texts


def closure(packages: set[str]) -> set[str]:
    """The packages and all they depend on, of those that are installed here."""
    told = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Package}\t${Provides}\t${Depends}, ${Pre-Depends}\n"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    depends: dict[str, set[str]] = {}
    providers: dict[str, set[str]] = {}
    for line in told.splitlines():
        name, provides, needs = line.split("\t")
        depends[name] = set(re.findall(r"(?:^|[,|]) *([a-z0-9][a-z0-9+.-]*)", needs))
        for provided in re.findall(r"(?:^|,) *([a-z0-9][a-z0-9+.-]*)", provides):
            providers.setdefault(provided, set()).add(name)
    out: set[str] = set()
    new = packages
    while new:
        out |= new
        needed = set().union(*(depends.get(p, set()) for p in new))
        new = needed.union(*(providers.get(p, set()) for p in needed)) - out
    return out


def owner_of(file: Path) -> str:
    """The package, which may know the file by its place before /lib became /usr/lib."""
    for name in (file, Path("/") / file.relative_to("/usr")):
        found = subprocess.run(["dpkg", "-S", name], capture_output=True, text=True)
        if found.returncode == 0:
            return found.stdout.split(":")[0]
    raise AssertionError(f"no package has {file}")


def test_the_images_packages_hold_the_systems_libraries(installed: Path) -> None:
    packages = closure(set(RUNTIME.read_text().split()))
    for program in ("specfabric", "specfabric-perftest"):
        for name, path in libraries(installed / "usr/local/bin" / program).items():
            real = Path(path).resolve()
            if real.is_relative_to(installed):
                continue
            owner = owner_of(real)
            assert owner in packages, f"{name} is in {owner}, which the image does not install"


def test_a_missing_build_is_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [ROOT / "scripts/install", "--build", tmp_path, "--destdir", tmp_path / "out"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert f"{tmp_path}/specfabric is not there" in done.stderr


def hadolint(file: Path) -> tuple[int, str]:
    # hadolint lies where pip puts programs.
    done = subprocess.run(
        [Path(sys.executable).parent / "hadolint", "--no-color", file],
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


def test_hadolint_finds_nothing(tmp_path: Path) -> None:
    status, told = hadolint(CONTAINERFILE)
    assert status == 0, told
    careless = tmp_path / "Containerfile"
    careless.write_text(CONTAINERFILE.read_text().replace("WORKDIR /src", "WORKDIR src"))
    assert hadolint(careless)[0] != 0


def test_the_file_names_what_is_there() -> None:
    text = CONTAINERFILE.read_text()
    assert re.findall(r" AS (\S+)$", text, re.M)[-2:] == ["cuda", "cpu"], "the last is the default"
    copied = [
        source
        for line in re.findall(r"^COPY (?!--from)(.*)$", text, re.M)
        for source in line.split()[:-1]
    ]
    for source in copied:
        assert (ROOT / source).exists(), source
    for list_name in re.findall(r"debian-[a-z]+\.txt", text):
        assert (ROOT / "requirements" / list_name).is_file(), list_name


def test_the_image_runs_as_the_chart_expects() -> None:
    text = CONTAINERFILE.read_text()
    values = (CHART / "values.yaml").read_text()
    [uid] = re.findall(r"^USER (\d+):\d+$", text, re.M)
    assert f"runAsUser: {uid}\n" in values
    # The chart's scripts: fetch_model.py and complete.py.
    assert "python3" in RUNTIME.read_text().split()
