#!/usr/bin/env python3
"""Whether every kernel of a CUDA build can be launched, from its compiled objects: needs no GPU.

A launch fails on a GPU alone where a block asks for more registers or shared memory than a
processor has, so each kernel's are read from the machine code and held against its largest block:
the one that its launch bound allows, or 1,024 threads where it has none. Fails, naming the kernel,
where

- registers x threads of that block exceed 65,536, as the GPU allocates them,
- a kernel of ours has no launch bound,
- a kernel of ours keeps values in local memory, such as spilled registers, but for arrays that
  LOCAL_ARRAYS tells of,
- static and dynamic shared memory exceed 227 KiB,
- a source asks for dynamic shared memory that LAUNCHES does not tell of, or a table is outdated.

    tests/cuda/launch_check.py BUILD [--cuobjdump PROGRAM]
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# The H100's and H200's (CUDA C++ Programming Guide, "Compute Capabilities"); those that limit a
# launch are also the A100's and B200's, but for an A100's 163 KiB of shared memory.
WARP = 32
PROCESSOR_THREADS = 2048
PROCESSOR_BLOCKS = 32
PROCESSOR_SHARED = 228 << 10
BLOCK_THREADS = 1024
BLOCK_SHARED = 227 << 10
BLOCK_RESERVED_SHARED = 1 << 10  # of every block, for the system
REGISTERS = 65_536  # of a block, and of a processor, which has a quarter of them for each scheduler
SCHEDULERS = 4
REGISTERS_AT_ONCE = 256  # allocated to a warp in such pieces


@dataclass(frozen=True)
class Launch:
    """What a kernel's machine code does not tell of its launches."""

    source: str  # of the launch
    kernel: str  # as `shorten` names it, without template arguments
    shared: int  # dynamic shared memory at most, in bytes
    evidence: str  # of `shared` and `threads`: must stand in the source, spaces aside
    threads: int = 0  # of the largest block; 0: the launch bound says


LAUNCHES = (
    # Two blocks of the largest tile, with what the system reserves, take at most 164 KiB.
    Launch(
        "model/cuda/tree_attention_kernel.cuh",
        "flashinfer::BatchPrefillWithPagedKVCacheKernel",
        (164 << 10) // 2 - 1024,
        "static_assert(2 * (kShared + 1024) <= size_t{164} * 1024);",
    ),
    # FlashInfer's own kernel has no launch bound.
    Launch(
        "model/cuda/tree_attention_kernel.cuh",
        "flashinfer::PersistentVariableLengthMergeStatesKernel",
        4 * 4 * 128 * 4 + 128 * 4,
        "static constexpr uint32_t kValues = 4; static constexpr uint32_t kThreads = 128;"
        " static constexpr uint32_t kStages = 4;",
        threads=128,
    ),
    # Two blocks, with what the system reserves, take at most a processor's.
    Launch(
        "model/cuda/tree_attention_split_kernel.cu",
        "SplitAttend",
        (228 << 10) // 2 - 1024,
        "static_assert(kBlocksAtOnce<kHeadDim, kTiles> >= 2);",
    ),
    # Of the largest tile four stages of 256 lines of 64 bytes.
    Launch(
        "model/cuda/tiled_product.cu",
        "TiledProduct",
        4 * 256 * 64,
        "using Tile128 = TileShape<128, 128, 64, 64, 4>;",
    ),
    # Three stages of 64 rows and six blocks of inputs, 64 bytes of each.
    Launch(
        "model/cuda/streamed_product.cu",
        "StreamedProduct",
        3 * 6 * 64 * 64,
        "using Rows64 = StreamShape<64, 1, 6>;",
    ),
)


@dataclass(frozen=True)
class LocalArray:
    """What a kernel has a reason to keep in local memory: an array that it indexes by what only its
    launch tells, or a few registers that are spilled to have more blocks on a processor.
    """

    source: str
    kernel: str  # as of Launch
    most: int  # bytes of local memory that it explains
    evidence: str  # likewise


LOCAL_ARRAYS: tuple[LocalArray, ...] = (
    # Of 64 rows: two registers, four on an A100, for two blocks on a processor, whose products took
    # 5 % less.
    LocalArray(
        "model/cuda/streamed_product.cu",
        "StreamedProduct",
        16,
        "static constexpr int kBlocks = kWarpTiles == 1 ? 2 : 1;",
    ),
    # Of 16 lines, on an A100: six registers, of the walk with tails, for as many blocks as there
    # are without it.
    LocalArray(
        "model/cuda/tree_attention_split_kernel.cu",
        "SplitAttend",
        24,
        "if (view_.item().row == kSharedLeavesAndTails) {",
    ),
)


@dataclass(frozen=True)
class Kernel:
    """A kernel's machine code for one architecture."""

    name: str  # mangled
    arch: str  # "sm_90a"
    registers: int  # of a thread
    local: int  # bytes of local memory of a thread
    shared: int  # static, in bytes
    bound: int = 0  # threads of its launch bound; 0: it has none


def parse_resources(listing: str, arch: str) -> list[Kernel]:
    """The kernels of a listing of `cuobjdump --dump-resource-usage`."""
    kernels = []
    for name, usage in re.findall(r"Function (\S+?):?\s+(REG:.*)", listing):
        sizes = {key: int(value) for key, value in re.findall(r"([A-Z]+):(\d+)", usage)}
        # STACK holds local arrays and spilled registers, LOCAL what lies outside of a stack.
        local = sizes["STACK"] + sizes["LOCAL"]
        kernels.append(Kernel(name, arch, sizes["REG"], local, sizes["SHARED"]))
    return kernels


# Of the sections .nv.info.KERNEL: attributes of a format, a number and a value.
FORMAT_SIZED = 4  # the value's bytes are counted; otherwise there are two
ATTRIBUTE_MAX_THREADS = 5


def max_threads(info: bytes) -> int:
    """The threads that a .nv.info section allows; 0: it does not say."""
    at = 0
    while at + 4 <= len(info):
        form, attribute, size = struct.unpack_from("<BBH", info, at)
        at += 4
        if form != FORMAT_SIZED:
            continue
        if attribute == ATTRIBUTE_MAX_THREADS:
            x, y, z = struct.unpack_from("<III", info, at)
            return x * y * z
        at += size
    return 0


def sections(elf: bytes) -> Iterator[tuple[str, bytes]]:
    """The sections of a 64-bit little-endian ELF file, by name."""
    if elf[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit little-endian ELF file")
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    entry_size, count, names_index = struct.unpack_from("<HHH", elf, 0x3A)
    entries = []
    for i in range(count):
        name, _, _, _, offset, size = struct.unpack_from("<IIQQQQ", elf, table + i * entry_size)
        entries.append((name, offset, size))
    _, names_at, names_size = entries[names_index]
    names = elf[names_at : names_at + names_size]
    for name, offset, size in entries:
        yield names[name : names.index(b"\0", name)].decode(), elf[offset : offset + size]


def launch_bounds(elf: bytes) -> dict[str, int]:
    """Threads of the launch bound by mangled name; 0: the kernel has none."""
    prefix = ".nv.info."
    return {
        name.removeprefix(prefix): max_threads(content)
        for name, content in sections(elf)
        if name.startswith(prefix)
    }


def read_object(cuobjdump: str, path: Path) -> list[Kernel]:
    """The kernels of a compiled .cu file, of all its architectures."""
    kernels = []
    with tempfile.TemporaryDirectory() as folder:
        extracted = subprocess.run(
            [cuobjdump, "-xelf", "all", str(path.resolve())],
            cwd=folder,
            check=False,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        if "does not contain device code" in extracted.stdout:
            return []
        extracted.check_returncode()
        for cubin in sorted(Path(folder).iterdir()):
            arch = re.search(r"sm_\d+[a-z]?", cubin.name)
            if arch is None:
                raise ValueError(f"{path}: no architecture in the name of {cubin.name}")
            listing = subprocess.run(
                [cuobjdump, "--dump-resource-usage", str(cubin)],
                check=True,
                text=True,
                stdout=subprocess.PIPE,
            ).stdout
            bounds = launch_bounds(cubin.read_bytes())
            kernels += [
                replace(kernel, bound=bounds[kernel.name])
                for kernel in parse_resources(listing, arch[0])
            ]
    return kernels


def shorten(demangled: str) -> str:
    """Without return type, parameters and our namespaces: "Attend<float>"."""
    name = demangled.replace("(anonymous namespace)::", "")
    depth = 0
    for i, letter in enumerate(name):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth == 0:
            name = name[:i]
            break
    name = name.removeprefix("void ")
    return re.sub(r"specfabric::(\w+::)*(?=\w)", "", name)


def demangle(names: Iterable[str]) -> dict[str, str]:
    wanted = list(dict.fromkeys(names))
    told = subprocess.run(
        ["c++filt"], input="\n".join(wanted), check=True, text=True, stdout=subprocess.PIPE
    ).stdout
    return dict(zip(wanted, told.splitlines(), strict=True))


@dataclass(frozen=True)
class Row:
    """A kernel beside its largest block."""

    kernel: Kernel
    short: str
    ours: bool
    threads: int
    shared: int  # static and dynamic

    @property
    def warps(self) -> int:
        return -(-self.threads // WARP)

    @property
    def blocks_by_registers(self) -> int:
        """Of a processor: each scheduler holds whole warps, in registers of its own."""
        pieces = -(-self.kernel.registers * WARP // REGISTERS_AT_ONCE)
        warps = REGISTERS // SCHEDULERS // (max(pieces, 1) * REGISTERS_AT_ONCE) * SCHEDULERS
        return warps // self.warps

    @property
    def blocks_by_threads(self) -> int:
        return min(PROCESSOR_BLOCKS, PROCESSOR_THREADS // (self.warps * WARP))

    @property
    def blocks_by_shared(self) -> int:
        return min(PROCESSOR_BLOCKS, PROCESSOR_SHARED // (self.shared + BLOCK_RESERVED_SHARED))


def is_named(short: str, kernel: str) -> bool:
    return short.split("<", 1)[0] == kernel


def make_row(kernel: Kernel, demangled: str, launches: Sequence[Launch]) -> Row:
    short = shorten(demangled)
    launch = next((told for told in launches if is_named(short, told.kernel)), None)
    threads = kernel.bound or (launch.threads if launch else 0) or BLOCK_THREADS
    dynamic = launch.shared if launch else 0
    ours = re.search(r"\bspecfabric::", demangled.split("<", 1)[0]) is not None
    return Row(kernel, short, ours, threads, kernel.shared + dynamic)


def faults(row: Row, arrays: Sequence[LocalArray] = ()) -> list[str]:
    """Why a kernel fails the check."""
    kernel = row.kernel
    explained = max([0, *(told.most for told in arrays if is_named(row.short, told.kernel))])
    found = []
    if row.blocks_by_registers < 1:
        found.append(
            f"a block of {row.threads} threads takes {kernel.registers} registers a thread: "
            f"allowed are {REGISTERS:,} in all"
        )
    if row.ours and not kernel.bound:
        found.append("has no launch bound (__launch_bounds__ of its largest block)")
    if row.ours and kernel.local > explained:
        found.append(
            f"keeps {kernel.local} bytes a thread in local memory: spilled registers, or an array "
            "that LOCAL_ARRAYS should tell of"
        )
    if row.shared > BLOCK_SHARED:
        found.append(f"takes {row.shared:,} bytes of shared memory: allowed are {BLOCK_SHARED:,}")
    return [f"{row.short} ({kernel.arch}): {fault}" for fault in found]


def squeezed(text: str) -> str:
    return " ".join(text.split())


def table_faults(
    rows: Sequence[Row],
    sources: dict[str, str],
    launches: Sequence[Launch],
    arrays: Sequence[LocalArray] = (),
) -> list[str]:
    """Where the tables do not tell what the sources and the kernels are like."""
    found = []
    entries: list[Launch | LocalArray] = [*launches, *arrays]
    for entry in entries:
        table_name = "LAUNCHES" if isinstance(entry, Launch) else "LOCAL_ARRAYS"
        if squeezed(entry.evidence) not in squeezed(sources.get(entry.source, "")):
            found.append(f"{entry.source} no longer says '{entry.evidence}': see {table_name}")
        if not any(is_named(row.short, entry.kernel) for row in rows):
            found.append(f"there is no kernel {entry.kernel}: see {table_name}")
    told = {launch.source for launch in launches}
    for source, text in sources.items():
        asks = re.search(r"\bshared_bytes\s*=|<<<[^>]*,[^>]*,|\bDynamicShared\(", text)
        if asks and source not in told:
            found.append(f"{source} asks for dynamic shared memory: LAUNCHES must say how much")
    return found


def table(rows: Sequence[Row]) -> str:
    """One line a kernel, of the newest Hopper architecture in the build, or else of any."""
    archs = sorted({row.kernel.arch for row in rows}, key=lambda arch: ("sm_90" not in arch, arch))
    shown = sorted((row for row in rows if row.kernel.arch == archs[0]), key=lambda row: row.short)
    head = ("regs", "local", "shared", "threads", "by regs", "threads", "shared", "blocks")
    lines = [f"{archs[0]:<64}" + "".join(f"{title:>8}" for title in head)]
    for row in shown:
        limits = (row.blocks_by_registers, row.blocks_by_threads, row.blocks_by_shared)
        threads = f"{row.threads}{'' if row.kernel.bound else '?'}"
        cells = (row.kernel.registers, row.kernel.local, row.shared, threads, *limits, min(limits))
        name = row.short if len(row.short) < 64 else row.short[:60] + "..."
        lines.append(f"{name:<64}" + "".join(f"{cell:>8}" for cell in cells))
    return "\n".join(lines)


def compiled_objects(build: Path) -> list[Path]:
    """The objects that nvcc makes of .cu files in this build."""
    objects = []
    for entry in json.loads((build / "compile_commands.json").read_text()):
        words = shlex.split(entry["command"])
        compilers = [word for word in words[:8] if Path(word).name == "nvcc"]
        if entry["file"].endswith(".cu") and compilers:
            objects.append(Path(entry["directory"]) / words[words.index("-o") + 1])
    return objects


def read_sources() -> dict[str, str]:
    folders = (ROOT / name / "cuda" for name in ("model", "verification"))
    return {
        str(path.relative_to(ROOT)): path.read_text()
        for folder in folders
        for path in sorted(folder.iterdir())
        if path.suffix in (".cc", ".cu", ".cuh", ".h")
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Can every kernel of a CUDA build be launched?")
    parser.add_argument("build", type=Path)
    parser.add_argument("--cuobjdump", default="cuobjdump")
    args = parser.parse_args()
    objects = compiled_objects(args.build)
    if not objects:
        print(f"launch_check: {args.build} compiles no kernels with nvcc", file=sys.stderr)
        return 2
    if missing := [path for path in objects if not path.is_file()]:
        print(f"launch_check: {missing[0]} is not built yet: build all first", file=sys.stderr)
        return 2
    with ThreadPoolExecutor(2) as pool:
        read = pool.map(lambda path: read_object(args.cuobjdump, path), objects)
        kernels = [kernel for of_object in read for kernel in of_object]
    names = demangle(kernel.name for kernel in kernels)
    rows = [make_row(kernel, names[kernel.name], LAUNCHES) for kernel in kernels]
    print(table(rows))
    print(
        "regs, local memory: of a thread; shared: bytes, static and dynamic; threads: of the"
        " largest block\n(?: no launch bound); blocks: of a processor, by each limit and in all"
    )
    found = [fault for row in rows for fault in faults(row, LOCAL_ARRAYS)]
    found += table_faults(rows, read_sources(), LAUNCHES, LOCAL_ARRAYS)
    for fault in found:
        print(f"launch_check: {fault}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
