"""tests/cuda/launch_check.py finds what a GPU would refuse to launch, in made-up machine code."""

from __future__ import annotations

import importlib.util
import struct
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

# As cuobjdump prints it of an object of two kernels.
LISTING = """
Resource usage:
 Common:
  GLOBAL:0
 Function _ZN10specfabric11VerifyTreesEPf:
  REG:96 STACK:0 SHARED:2080 LOCAL:0 CONSTANT[0]:1180 TEXTURE:0 SURFACE:0 SAMPLER:0
 Function _ZN10specfabric4WalkEPf:
  REG:20 STACK:24 SHARED:0 LOCAL:0 CONSTANT[0]:924 TEXTURE:0 SURFACE:0 SAMPLER:0
"""
VERIFY = "specfabric::verification::cuda::(anonymous namespace)::VerifyTrees(float*)"


@pytest.fixture(scope="module")
def check() -> ModuleType:
    path = Path(__file__).with_name("launch_check.py")
    spec = importlib.util.spec_from_file_location("launch_check", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["launch_check"] = module
    spec.loader.exec_module(module)
    return module


def info(bound: int) -> bytes:
    """A .nv.info section: an attribute without a size, one of eight bytes, and the launch bound."""
    before = struct.pack("<BBH", 3, 0x1B, 255) + struct.pack("<BBHII", 4, 0x17, 8, 0, 0)
    return before + (struct.pack("<BBHIII", 4, 5, 12, bound, 1, 1) if bound else b"")


def elf(content: dict[str, bytes]) -> bytes:
    """An ELF file of these sections, and the one of their names."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name in content) + b".shstrtab\0"
    body, entries, at = b"", b"", 64
    for name, data in [*content.items(), (".shstrtab", names)]:
        begin = names.index(name.encode() + b"\0")
        entries += struct.pack("<IIQQQQIIQQ", begin, 1, 0, 0, at + len(body), len(data), 0, 0, 1, 0)
        body += data
    count = len(content) + 1
    head = (
        b"\x7fELF\x02\x01" + bytes(10) + struct.pack("<HHIQQQI", 2, 190, 1, 0, 0, at + len(body), 0)
    )
    head += struct.pack("<HHHHHH", 64, 0, 0, 64, count, count - 1)
    return head + body + entries


def test_a_listing_is_read(check: ModuleType) -> None:
    verify, walk = check.parse_resources(LISTING, "sm_90a")
    assert verify == check.Kernel("_ZN10specfabric11VerifyTreesEPf", "sm_90a", 96, 0, 2080)
    assert walk.local == 24


@pytest.mark.parametrize("bound", [0, 256, 1024])
def test_launch_bounds_are_read(check: ModuleType, bound: int) -> None:
    cubin = elf({".text.Walk": b"abc", ".nv.info.Walk": info(bound), ".nv.info": b"\0" * 12})
    assert check.launch_bounds(cubin) == {"Walk": bound}


def test_other_files_are_no_machine_code(check: ModuleType) -> None:
    with pytest.raises(ValueError, match="ELF"):
        check.launch_bounds(b"#!/bin/sh\n" + bytes(100))


def test_too_many_registers_for_the_largest_block(check: ModuleType) -> None:
    """VerifyTrees, launched with up to 1,024 threads, could not be."""
    kernel = check.parse_resources(LISTING, "sm_90a")[0]
    found = check.faults(check.make_row(kernel, VERIFY, ()))
    assert found == [
        "VerifyTrees (sm_90a): a block of 1024 threads takes 96 registers a thread: allowed are "
        "65,536 in all",
        "VerifyTrees (sm_90a): has no launch bound (__launch_bounds__ of its largest block)",
    ]
    assert check.faults(check.make_row(replace(kernel, bound=512), VERIFY, ())) == []


@pytest.mark.parametrize(
    ("registers", "threads", "can"),
    [
        (64, 1024, True),
        (65, 1024, False),
        (65, 896, True),
        # 64,480 registers, but they are given to warps in pieces of 256.
        (65, 992, False),
        (255, 256, True),
    ],
)
def test_registers_are_allocated_in_pieces(
    check: ModuleType, registers: int, threads: int, can: bool
) -> None:
    kernel = check.Kernel("k", "sm_90a", registers, 0, 0, bound=threads)
    assert bool(check.faults(check.make_row(kernel, VERIFY, ()))) != can


def test_local_memory_is_a_fault_of_ours_alone(check: ModuleType) -> None:
    kernel = check.Kernel("k", "sm_90a", 32, 16, 0, bound=128)
    row = check.make_row(kernel, VERIFY, ())
    (fault,) = check.faults(row)
    assert fault.startswith("VerifyTrees (sm_90a): keeps 16 bytes a thread in local memory")
    array = check.LocalArray("a.cu", "VerifyTrees", 16, "float sums[4];")
    assert check.faults(row, (array,)) == []
    assert check.faults(row, (replace(array, most=8),)) == [fault]
    assert check.faults(row, (replace(array, kernel="Verify"),)) == [fault]
    assert check.table_faults([row], {"a.cu": "float sums[8];"}, (), (array,)) == [
        "a.cu no longer says 'float sums[4];': see LOCAL_ARRAYS"
    ]
    theirs = "void flashinfer::Merge<float, specfabric::model::cuda::T>(float*)"
    assert check.faults(check.make_row(kernel, theirs, ())) == []


def test_dynamic_shared_memory_counts(check: ModuleType) -> None:
    kernel = check.Kernel("k", "sm_90a", 32, 0, 200 << 10, bound=128)
    assert check.faults(check.make_row(kernel, VERIFY, ())) == []
    launch = check.Launch("a.cu", "VerifyTrees", 28 << 10, "")
    (fault,) = check.faults(check.make_row(kernel, VERIFY, (launch,)))
    assert fault == (
        "VerifyTrees (sm_90a): takes 233,472 bytes of shared memory: allowed are 232,448"
    )


def test_blocks_of_a_processor(check: ModuleType) -> None:
    kernel = check.Kernel("k", "sm_90a", 72, 0, 47 << 10, bound=256)
    row = check.make_row(kernel, VERIFY, ())
    # 2,304 registers a warp: 7 warps a scheduler, 28 in all.
    assert (row.blocks_by_registers, row.blocks_by_threads, row.blocks_by_shared) == (3, 8, 4)
    assert "VerifyTrees" in check.table([row])


def test_the_table_of_launches_is_held_against_the_sources(check: ModuleType) -> None:
    kernel = check.Kernel("k", "sm_90a", 32, 0, 0, bound=128)
    rows = [check.make_row(kernel, VERIFY, ())]
    launch = check.Launch("a.cu", "VerifyTrees", 1024, "kBytes = 1024;")
    right = {"a.cu": "options.shared_bytes = kBytes; constexpr int kBytes =\n  1024;"}
    assert check.table_faults(rows, right, (launch,)) == []
    assert check.table_faults(rows, {"a.cu": "kBytes = 2048;"}, (launch,)) == [
        "a.cu no longer says 'kBytes = 1024;': see LAUNCHES"
    ]
    assert check.table_faults([], right, (launch,)) == [
        "there is no kernel VerifyTrees: see LAUNCHES"
    ]
    assert check.table_faults(rows, right, ()) == [
        "a.cu asks for dynamic shared memory: LAUNCHES must say how much"
    ]


@pytest.mark.parametrize(
    ("demangled", "short"),
    [
        (VERIFY, "VerifyTrees"),
        (
            "void specfabric::model::cuda::(anonymous namespace)::Attend<float>(specfabric::A)",
            "Attend<float>",
        ),
        (
            "void flashinfer::Merge<4u, specfabric::model::cuda::T<(int)2>, float>(float*)",
            "flashinfer::Merge<4u, T<(int)2>, float>",
        ),
    ],
)
def test_names_are_shortened(check: ModuleType, demangled: str, short: str) -> None:
    assert check.shorten(demangled) == short
