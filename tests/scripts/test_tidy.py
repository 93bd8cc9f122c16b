"""scripts/tidy.py batches sources that can be compiled as one, and reports each finding once."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMMAND = "/usr/bin/c++ -DNAME=1 -I{root} {more} -O3 -Wall -std=c++20 -o a.o -c {root}/base/{file}"


@pytest.fixture
def tidy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, for a repository of its own in tmp_path."""
    spec = importlib.util.spec_from_file_location("tidy", ROOT / "scripts" / "tidy.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "tidy", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    (tmp_path / "base").mkdir()
    return module


def write(folder: Path, **files: str) -> list[Path]:
    paths = [folder / "base" / name.replace("_", ".") for name in files]
    for path, text in zip(paths, files.values(), strict=True):
        path.write_text(text)
    return paths


def batches_of(tidy: ModuleType, sources: list[Path], more: dict[str, str]) -> list[set[str]]:
    flags = {
        source: tidy.parse_command(
            COMMAND.format(root=tidy.ROOT, file=source.name, more=more.get(source.name, ""))
        )
        for source in sources
    }
    return [{path.name for path in batch} for batch in tidy.make_batches(sources, flags)]


def test_sources_with_names_of_their_own_go_together(tidy: ModuleType, tmp_path: Path) -> None:
    sources = write(
        tmp_path,
        a_cc="namespace x {\nconstexpr int kOne = 1;\n}\n",
        b_cc="namespace x {\nint Add(int a, int b) {\n  int kOne = 1;\n}\n}\n",
    )
    assert batches_of(tidy, sources, {}) == [{"a.cc", "b.cc"}]


@pytest.mark.parametrize(
    "text",
    [
        "constexpr int kOne = 1;\n",
        "std::vector<int> Add(int b) {\n",
        "struct Sum {\n",
        "using Sum = int;\n",
        "TEST(AddTest, Works) {\n",
        "#define ADD 1\n",
    ],
)
def test_sources_that_define_the_same_name_do_not(
    tidy: ModuleType, tmp_path: Path, text: str
) -> None:
    sources = write(tmp_path, a_cc=text, b_cc=text)
    assert batches_of(tidy, sources, {}) == [{"a.cc"}, {"b.cc"}]


def test_a_name_of_a_header_that_the_other_does_not_include(
    tidy: ModuleType, tmp_path: Path
) -> None:
    sources = write(
        tmp_path,
        a_cc='#include "base/a.h"\n',
        b_cc="struct Sum {\n",
        a_h='#include "base/c.h"\n',
        c_h="struct Sum {\n",
    )
    assert batches_of(tidy, sources[:2], {}) == [{"a.cc"}, {"b.cc"}]


def test_only_sources_with_the_same_flags_go_together(tidy: ModuleType, tmp_path: Path) -> None:
    sources = write(tmp_path, a_cc="", b_cc="", c_cc="")
    assert batches_of(tidy, sources, {"b.cc": "-mavx2", "c.cc": "-DMORE"}) == [
        {"a.cc", "c.cc"},
        {"b.cc"},
    ]
    assert batches_of(tidy, sources, {"c.cc": "-isystem /other"}) == [{"a.cc", "b.cc"}, {"c.cc"}]


def test_a_batch_is_split_by_where_the_errors_are(tidy: ModuleType, tmp_path: Path) -> None:
    a, b, c, header = write(tmp_path, a_cc='#include "base/a.h"\n', b_cc="", c_cc="", a_h="")
    assert tidy.split([a, b, c], {c}) == ([a, b], [c])
    assert tidy.split([a, b, c], {header}) == ([b, c], [a])
    assert tidy.split([a, b, c], {Path("/usr/include/x.h")}) == ([a], [b, c])


def test_a_finding_of_a_header_is_reported_once(tidy: ModuleType) -> None:
    header = f"{tidy.ROOT}/a.h:3:1: warning: bad [check]"
    source = f"{tidy.ROOT}/b.cc:4:1: warning: worse [check]"
    first = f"{header}\n  int x;\n{tidy.ROOT}/a.h:1:1: note: here\n"
    second = f"{source}\n"
    assert tidy.findings([first + second, first]) == {header: first, source: second}


def test_reports_without_a_finding_of_ours(tidy: ModuleType) -> None:
    assert tidy.findings([""]) == {}
    assert tidy.findings(["/usr/include/a.h:3:1: warning: bad [check]\n"]) == {}


def test_a_unity_file_stands_for_what_it_includes(tidy: ModuleType, tmp_path: Path) -> None:
    unity = tmp_path / "Unity" / "unity_0_cxx.cxx"
    unity.parent.mkdir()
    unity.write_text('/* made */\n#include "/r/a.cc"\n#include "/r/b.cc"\n')
    assert tidy.sources_of(unity) == [Path("/r/a.cc"), Path("/r/b.cc")]
    assert tidy.sources_of(Path("/r/c.cc")) == [Path("/r/c.cc")]
