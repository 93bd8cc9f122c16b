"""llama.cpp beside us: its source, its programs, and checkpoints in its own format.

It is built once, with everything that this processor has, from the source distribution of
llama-cpp-python at the version that scripts/versions.env pins.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GGUF_TYPES = {"float32": "f32", "bfloat16": "bf16"}


def pinned_version(name: str) -> str:
    """A pin of scripts/versions.env."""
    for line in (ROOT / "scripts" / "versions.env").read_text().splitlines():
        key, _, value = line.partition("=")
        if key == name:
            return value
    raise KeyError(name)


def fetch(work: Path) -> Path:
    """The source tree of llama.cpp that the pinned llama-cpp-python carries."""
    version = pinned_version("LLAMA_CPP_PYTHON_VERSION")
    tree = work / f"llama_cpp_python-{version}" / "vendor" / "llama.cpp"
    if tree.is_dir():
        return tree
    package = f"llama-cpp-python=={version}"
    print(f"fetching the source distribution of {package} ...", file=sys.stderr)
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "-q", "--no-deps"]
        + ["--no-binary", "llama-cpp-python", "-d", str(work), package],
        check=True,
    )
    (archive,) = work.glob("llama_cpp_python-*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(work)  # Debian 12's Python has no `filter` for it yet
    archive.unlink()
    return tree


def build(work: Path, jobs: int, *programs: str) -> list[Path]:
    """Its programs of these names, such as llama-bench, built where they are not yet."""
    folder = work / "llama.cpp-build"
    paths = [folder / "bin" / program for program in programs]
    missing = [path.name for path in paths if not path.exists()]
    if missing:
        print(f"building {' and '.join(missing)} (minutes) ...", file=sys.stderr)
        options = {
            "CMAKE_BUILD_TYPE": "Release",
            "BUILD_SHARED_LIBS": "OFF",
            "GGML_NATIVE": "ON",
            "LLAMA_BUILD_APP": "OFF",
            "LLAMA_BUILD_EXAMPLES": "ON",
            "LLAMA_BUILD_SERVER": "ON",
            "LLAMA_USE_PREBUILT_UI": "OFF",  # a download
            "LLAMA_BUILD_TESTS": "OFF",
            "LLAMA_OPENSSL": "OFF",
        }
        if shutil.which("ccache"):
            options |= {f"CMAKE_{c}_COMPILER_LAUNCHER": "ccache" for c in ("C", "CXX")}
        definitions = [f"-D{name}={value}" for name, value in options.items()]
        source = ["-S", str(fetch(work)), "-B", str(folder)]
        configure = ["cmake", *source, "-G", "Ninja", *definitions]
        subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
        subprocess.run(
            ["cmake", "--build", str(folder), f"-j{jobs}", "--target", *missing], check=True
        )
    return paths


# Runs llama.cpp's converter on a tokenizer whose pre-tokenizer it has no name for: ours splits as
# GPT-2's does. Arguments: the tree, then the converter's own.
_CONVERT = """
import runpy, sys
tree = sys.argv.pop(1)
sys.path[:0] = [tree, tree + "/gguf-py"]
from conversion.base import TextModel
TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
runpy.run_path(tree + "/convert_hf_to_gguf.py", run_name="__main__")
"""


def convert(work: Path, checkpoint: Path, dtype: str) -> Path:
    """The checkpoint as llama.cpp reads it, made again when its weights are newer."""
    gguf = work / f"{'-'.join(checkpoint.resolve().parts[1:])}-{dtype}.gguf"
    weights = max(path.stat().st_mtime for path in checkpoint.glob("*.safetensors"))
    if not gguf.exists() or gguf.stat().st_mtime < weights:
        subprocess.run(
            [sys.executable, "-c", _CONVERT, str(fetch(work)), str(checkpoint)]
            + ["--outfile", str(gguf), "--outtype", GGUF_TYPES[dtype]],
            check=True,
            capture_output=True,
        )
    return gguf
