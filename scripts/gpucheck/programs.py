"""Where the programs of a build are: in a build tree, or in an unpacked archive of one."""

from __future__ import annotations

import importlib.util
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from gpucheck.runner import Missing

# The folders of a build tree; an archive has all in one, but for the tests.
FOLDERS = ("", "bench/cuda", "bench/decode", "bench/numerics")
TESTS = ("tests/cuda", "tests")


@dataclass(frozen=True)
class Programs:
    """`root` has scripts/ and models/, `build` the programs."""

    root: Path
    build: Path

    def find(self, name: str) -> Path:
        for folder in FOLDERS:
            path = self.build / folder / name
            if path.is_file() and os.access(path, os.X_OK):
                return path
        raise Missing(f"no {name} in {self.build}")

    def tests(self) -> list[Path]:
        """Those that need a GPU."""
        for folder in TESTS:
            found = sorted((self.build / folder).glob("cuda_*_test"))
            found = [path for path in found if not path.name.endswith("_emulated_test")]
            if found:
                return found
        raise Missing(f"no tests of kernels in {self.build}")

    def model(self, name: str) -> Path:
        path = self.root / "models" / name
        if not (path / "config.json").is_file():
            raise Missing(f"no model in {path}")
        return path

    def script(self, *names: str) -> Path:
        return self.root.joinpath("scripts", *names)


def tool(name: str) -> str:
    """A program of the machine."""
    path = shutil.which(name)
    if path is None:
        raise Missing(f"no {name} on this machine")
    return path


def library_path(root: Path) -> str:
    """LD_LIBRARY_PATH, with an archive's libraries and those of this Python's packages: where a
    build's own folders of libraries are not on this machine.
    """
    folders = [os.environ.get("LD_LIBRARY_PATH", "")]
    folders += [
        str(path) for path in (root / "lib", root / "ucx", root / "ucx/ucx") if path.is_dir()
    ]
    for name, pattern in (("nvidia", "*/lib"), ("torch", "lib")):
        spec = importlib.util.find_spec(name)
        for place in (spec.submodule_search_locations or []) if spec else []:
            folders += [str(path) for path in sorted(Path(place).glob(pattern))]
    return ":".join(folder for folder in folders if folder)
