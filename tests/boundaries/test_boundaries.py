"""The repository obeys its table of folders, and the check sees what breaks it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

import check_includes
from check_includes import ALLOWED, SOURCE_SUFFIXES, check

ROOT = Path(__file__).resolve().parents[2]


def test_no_source_includes_what_its_folder_may_not_know() -> None:
    assert [str(v) for v in check(ROOT)] == []


def test_the_check_reads_real_sources() -> None:
    """An empty walk would pass the test above; every folder of the table must hold sources."""
    for folder in ALLOWED:
        sources = [p for p in (ROOT / folder).rglob("*") if p.suffix in SOURCE_SUFFIXES]
        assert sources, f"{folder}/ holds no C++ source"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the sources that a test may spoil."""
    for folder in (*ALLOWED, "app"):
        if (ROOT / folder).is_dir():
            shutil.copytree(ROOT / folder, tmp_path / folder)
    return tmp_path


@pytest.mark.parametrize(
    ("path", "line", "complaint"),
    [
        ("base/planted.h", '#include "metrics/families.h"', "base/ may use no other folder"),
        ("speculation/planted.cc", "#include <torch/torch.h>", "may not use libtorch"),
        ("sampling/planted.cc", "#include <mutex>", "may not use threads and clocks"),
        ("scheduler/planted.cc", '#  include "transport/fabric.h"', "scheduler/ may use"),
        ("scheduler/planted.cc", "#include <thread>", "may not use threads and clocks"),
        ("transport/planted.h", '#include "schemas/codec.h"', "transport/ may use"),
        ("transport/planted.h", '#include "metrics/registry.h"', "transport/ may use base"),
        ("target/planted.h", "#include <torch/torch.h>", "may not use libtorch"),
        ("transport/planted.h", "#include <ATen/ATen.h>", "may not use libtorch"),
        ("schemas/planted.h", "#include <ucp/api/ucp.h>", "may not use UCX"),
        ("model/planted.cu", "#include <flatbuffers/flatbuffers.h>", "may not use FlatBuffers"),
        ("model/planted.cu", '#include "scheduler/scheduler.h"', "model/ may use base"),
        ("link/planted.h", '#include "target/engine.h"', "link/ may use"),
        ("draft/planted.cc", '#include "target/engine.h"', "draft/ may use"),
        ("target/planted.cc", '#include "gateway/http.h"', "target/ may use"),
        ("gateway/planted.cc", "#include <c10/util/Exception.h>", "may not use libtorch"),
        ("tokenizer/planted.cc", "#include <prometheus/counter.h>", "may not use prometheus-cpp"),
        ("gateway/planted.cc", '#include "app/flags.h"', "nothing may include app/"),
        ("app/planted.cc", '#include "tests/helpers.h"', "nothing may include tests/"),
        ("target/planted.cc", '#include "engine.h"', "start at the repository's root"),
        ("helpers/planted.cc", "", "ALLOWED does not name"),
    ],
)
def test_a_planted_violation_is_seen(copy: Path, path: str, line: str, complaint: str) -> None:
    before = len(check(copy))
    planted = copy / path
    planted.parent.mkdir(exist_ok=True)
    planted.write_text(f"// Planted by a test.\n{line}\n")
    violations = check(copy)
    assert len(violations) == before + 1
    found = [str(v) for v in violations if "planted" in str(v) or "helpers" in str(v)]
    assert len(found) == 1
    assert complaint in found[0]


def test_allowed_includes_are_not_reported(copy: Path) -> None:
    before = check(copy)
    for path, line in {
        "scheduler/planted.cc": '#include "speculation/token_tree.h"\n#include <vector>',
        "model/planted.cu": '#include "base/status.h"\n#include <torch/torch.h>',
        "transport/planted.h": '#include "base/clock.h"\n#include <ucp/api/ucp.h>',
        "gateway/planted.h": '#include "link/peer.h"\n#include <boost/asio.hpp>',
        "app/planted.h": '#include "target/engine.h"\n#include <torch/torch.h>',
    }.items():
        (copy / path).parent.mkdir(exist_ok=True)
        (copy / path).write_text(line + "\n")
    assert check(copy) == before


def test_a_permission_that_no_source_uses_is_reported(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(check_includes.ALLOWED, "transport", {"base", "metrics"})
    assert [str(v) for v in check(copy)] == [
        "transport:0: metrics/: transport/ may use metrics/ and does not"
    ]
    (copy / "transport" / "planted.h").write_text('#include "metrics/registry.h"\n')
    assert check(copy) == []


def test_a_library_that_no_source_uses_is_reported(copy: Path) -> None:
    for path in (copy / "metrics").iterdir():
        text = path.read_text()
        path.write_text(re.sub(r"#\s*include\s*.prometheus/.*", "", text))
    assert [str(v) for v in check(copy)] == [
        "metrics:0: prometheus-cpp: metrics/ may use prometheus-cpp and does not"
    ]


def test_a_linked_library_needs_the_permission_too(copy: Path) -> None:
    lists = copy / "transport" / "CMakeLists.txt"
    lists.write_text(lists.read_text().replace("DEPS sf_base", "DEPS sf_base sf_metrics", 1))
    assert [str(v) for v in check(copy)] == [
        "transport/CMakeLists.txt:0: sf_metrics: "
        "sf_transport links it, and transport/ may not use metrics/"
    ]
