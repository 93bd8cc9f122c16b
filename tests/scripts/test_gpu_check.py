"""scripts/gpu_check, with made-up programs in place of a CUDA build."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "scripts"))

from gpucheck.parts import add_pass, summarise_profile  # noqa: E402
from gpucheck.serving import spans  # noqa: E402
from gpucheck.table import PartResult, Results, Row, render  # noqa: E402
from gpucheck.transport import rendezvous_wires  # noqa: E402

STEP = """#!/bin/bash
echo "step_bench: random:tiny: 0.1 s to open, 0.2 s to load: 7.50 GB/s" >&2
echo '{"bench": "step", "model": "random:tiny", "kind": "pass", "rows": 8, "context": 200,'\
' "median_ms": 2.0, "least_ms": 1.5, "repeats": 3, "weight_bytes": 4000000000, "head_bytes": 0}'
echo "$@" >"$(dirname "$0")/step_arguments"
"""
NUMERICS = """#!/bin/bash
echo "batch  form  rows batch_invariant ms a pass  ratio  logits %  greedy % sampled %"
echo "    8 plain     8 yes                 1.500   1.25      %s      0.00      0.00"
echo "    8 plain     8 no                  1.200   1.00    100.00      0.00      0.00"
"""
KERNELS = """#!/bin/bash
printf 'NVIDIA H200\\n%-32s %10s %10s %10s\\n' "" ms GB/s "of copy"
printf '%-32s %10.3f %10.0f %10.2f\\n' "copy within the device" .5 4000 1
printf '%-32s %10.3f %10.0f %10.2f\\n' "arg-max" .025 1240 .31
"""
PASSING = "#!/bin/bash\nexit 0\n"


def write(build: Path, **programs: str) -> Path:
    """A build in one folder, as an archive has it: tests__a_test is tests/a_test there."""
    (build / "tests").mkdir(parents=True, exist_ok=True)
    for name, text in programs.items():
        path = build / name.replace("__", "/").replace("specfabric_perf", "specfabric-perf")
        path.write_text(text)
        path.chmod(0o755)
    return build


class Run:
    """What came of one run."""

    def __init__(self, build: Path, *arguments: str, timeout: float = 60) -> None:
        self.out = build / "out.json"
        script = ROOT / "scripts" / "gpu_check"
        command: list[str | Path] = [sys.executable, script, build, "--out", self.out]
        done = subprocess.run(
            [*command, "--models=random:tiny", *arguments],
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout,
            check=False,
        )
        self.status, self.output = done.returncode, done.stdout
        self.results: dict[str, Any] = json.loads(self.out.read_text())

    def part(self, name: str) -> dict[str, Any]:
        (found,) = (part for part in self.results["parts"] if part["name"].startswith(name))
        return dict(found)

    def row(self, what: str) -> dict[str, Any]:
        found = [row for row in self.results["rows"] if row["what"].startswith(what)]
        exact = [row for row in found if row["what"] == what]
        (row,) = exact or found
        return dict(row)


def is_running(pid: int) -> bool:
    """Not so where it has ended, though nobody has asked for its status yet."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in ("Z", "X")


def test_one_table_and_one_file(tmp_path: Path) -> None:
    build = write(
        tmp_path,
        step_bench=STEP,
        numerics_bench=NUMERICS.replace("%s", "0.00"),
        kernel_bench=KERNELS,
        tests__cuda_a_test=PASSING,
        tests__cuda_b_test=PASSING,
        tests__cuda_b_emulated_test="#!/bin/bash\nexit 7\n",
    )
    run = Run(build, "--only=tests,passes,kernels,numerics", "--rows=8")
    assert run.status == 0, run.output
    assert [part["status"] for part in run.results["parts"]] == ["ok"] * 4
    assert run.row("tests of kernels")["ratio"] == 1
    assert run.row("random:tiny: pass of 8")["figure"] == 2.0
    assert run.row("random:tiny: weights loaded")["ratio"] == 1.5
    assert run.row("kernel: arg-max")["ratio"] == 0.31
    assert run.row("a pass with --batch_invariant")["figure"] == 1.25
    assert "--rows=8" in (build / "step_arguments").read_text()
    table = run.output[run.output.index("\nwhat ") :]
    assert "kernel: arg-max" in table
    assert table.rstrip().endswith("gpu_check: passed")


def test_what_fails_is_named(tmp_path: Path) -> None:
    build = write(
        tmp_path,
        numerics_bench=NUMERICS.replace("%s", "2.50"),
        tests__cuda_a_test=PASSING,
        tests__cuda_b_test="#!/bin/bash\necho broken\nexit 1\n",
    )
    run = Run(build, "--only=tests,numerics")
    assert run.status == 1
    assert run.part("tests")["status"] == "failed"
    assert run.part("tests")["detail"] == "cuda_b_test"
    assert run.row("tests of kernels")["figure"] == 1
    assert "2.5 % of rows" in run.part("numerics")["detail"]
    assert "gpu_check: failed: tests, numerics" in run.output


def test_what_takes_too_long_is_cut_with_what_it_had(tmp_path: Path) -> None:
    # A program that does not end when it is asked to, nor what it started.
    stubborn = STEP + f"trap '' TERM\nsleep 300 &\necho $! >{tmp_path}/sleeper\nwait\nsleep 300\n"
    build = write(tmp_path, step_bench=stubborn, tests__cuda_a_test=PASSING)
    begin = time.monotonic()
    run = Run(build, "--only=passes,tests", "--budget=2")
    assert time.monotonic() - begin < 20
    assert run.status == 0, run.output
    assert run.part("passes")["status"] == "cut"
    assert run.row("random:tiny: pass of 8")["figure"] == 2.0
    assert run.part("tests")["status"] == "ok"
    assert "not whole: passes" in run.output
    assert not is_running(int((tmp_path / "sleeper").read_text()))


def test_the_time_of_all_parts_is_limited(tmp_path: Path) -> None:
    build = write(tmp_path, tests__cuda_a_test="#!/bin/bash\nsleep 300\n", kernel_bench=KERNELS)
    run = Run(build, "--only=tests,kernels", "--total=1")
    assert run.part("tests")["status"] == "cut"
    assert run.part("kernels")["status"] == "cut"
    assert run.part("kernels")["detail"] == "no time was left in all"


def test_what_is_not_there_is_left_out(tmp_path: Path) -> None:
    run = Run(write(tmp_path, tests__cuda_a_test=PASSING), "--only=passes,kernels,tests")
    assert run.status == 0, run.output
    assert run.part("passes")["status"] == "missing"
    assert "step_bench" in run.part("passes")["detail"]
    assert run.part("tests")["status"] == "ok"


def test_ended_from_outside_it_shows_what_it_has(tmp_path: Path) -> None:
    slow = '#!/bin/bash\ntouch "$(dirname "$0")/begun"\nsleep 300\n'
    build = write(tmp_path, kernel_bench=KERNELS, numerics_bench=slow)
    out = tmp_path / "out.json"
    process = subprocess.Popen(
        [sys.executable, ROOT / "scripts" / "gpu_check", build, "--out", out, "--only=ker,tex,num"],
        text=True,
        stdout=subprocess.PIPE,
    )
    while not (tmp_path / "begun").exists() and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGTERM
    assert "kernel: arg-max" in output[output.index("\nwhat ") :]
    assert json.loads(out.read_text())["parts"][0]["status"] == "ok"


def test_unknown_parts_are_refused(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "gpu_check", tmp_path, "--only=nothing"],
        text=True,
        stderr=subprocess.PIPE,
        check=False,
    )
    assert done.returncode == 2
    assert "--list" in done.stderr


def test_the_parts_fit_into_six_minutes() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "gpu_check", "--list", ROOT],
        text=True,
        stdout=subprocess.PIPE,
        check=True,
    )
    budgets = [float(line.split()[-2]) for line in done.stdout.splitlines()]
    assert len(budgets) >= 12
    assert sum(budgets) <= 350


# A server that answers as a gateway does, and counts a pass of 1 ms for each token.
SERVER = """#!/usr/bin/env python3
import http.server, json, sys, threading

if sys.argv[1] == "generate":
    print(json.dumps({"text": " pass"}))
    sys.exit()
flags = dict(word.lstrip("-").split("=", 1) for word in sys.argv[2:] if "=" in word)
if "fail" in flags.get("draft_model", "") and flags["num_drafts"] == "1":
    sys.exit("no memory for the draft")
passes = 0


class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self, text):
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def do_POST(self):
        global passes
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        passes += body["max_tokens"]
        self.answer(json.dumps({"usage": {"completion_tokens": body["max_tokens"]}}))

    def do_GET(self):
        name = "specfabric_round_span_seconds"
        self.answer("".join(
            f'{name}_sum{{span="{span}"}} {passes * s}\\n{name}_count{{span="{span}"}} {passes}\\n'
            for span, s in (("forward", 1e-6), ("plan", 1e-7))))

    def log_message(self, *_):
        pass


host, port = flags["listen"].split(":")
server = http.server.ThreadingHTTPServer((host, int(port)), Handler)
print(json.dumps({"target": [{"admin": flags["listen"], "pid": 1, "listen": ""}]}), flush=True)
server.serve_forever()
"""


def test_serving_and_texts(tmp_path: Path) -> None:
    build = write(tmp_path, specfabric=SERVER)
    width = json.loads((ROOT / "models/target/config.json").read_text())["intermediate_size"]
    run = Run(build, "--only=serving,texts", "--clients=1,8", f"--serving_width={width}")
    assert run.status == 0, run.output
    for form in ("lookup", "draft", "default"):
        row = run.row(f"serving, 8 clients: {form}")
        assert row["figure"] > 0
        assert row["against"] == "plain"
    between = run.row("serving, 1 clients: plain: between")
    assert 0 < between["figure"] < between["limit"]
    assert "plan" in between["note"]
    assert run.row("texts that are the CPU's")["ratio"] == 1


PERFTEST = """#!/bin/bash
if [[ $1 == -p ]]; then
  echo "specfabric-perftest: listening on 127.0.0.1:7" >&2
  exec sleep 300
fi
bytes=$(sed -E 's/.* --nodes ([0-9]+) --vocab ([0-9]+) .*/2 * \\1 * \\2/' <<<"$*")
echo "{\\"p50_us\\": $((bytes / 100000)), \\"transport\\": \\"sysv/memory\\","\
" \\"payload_transport\\": \\"cuda_ipc/cuda\\"}"
"""
UCX_PERFTEST = """#!/usr/bin/env python3
import socket, sys, time

if sys.argv[1] == "-p":
    server = socket.create_server(("127.0.0.1", int(sys.argv[2])))
    time.sleep(300)
prefix = "[1.2] [host:7:0] |"
print(prefix, "active message by ucp_am_send* from cuda/GPU0 |")
print(prefix, "0..inf | (?) rendezvous zero-copy read from remote | cuda_ipc/cuda |")
print("Final:                100     20.500   21.000   21.000   1000.0 1000.0 100 100")
"""


def test_transport_beside_ucx(tmp_path: Path) -> None:
    build = write(tmp_path, specfabric_perftest=PERFTEST, ucx_perftest=UCX_PERFTEST)
    run = Run(build, "--only=transport")
    assert run.status == 0, run.output
    row = run.row("cuda memory to another process: logits of 4.1 MB")
    assert (row["figure"], row["limit"]) == (41, 20.5)
    assert row["note"] == "over cuda_ipc/cuda; ucx_perftest over cuda_ipc/cuda"
    # 29.5 MB more took 294 us more.
    assert run.row("the same beyond 4.1 MB")["figure"] == pytest.approx(100, rel=0.02)


def test_wires_are_read_from_tables_of_protocols() -> None:
    # As UCX 1.22 prints them: a title in two rows, a heading, rows by size.
    lines = [
        "+------------------------------------------------------------+",
        "| perftest intra-node cfg#0                                  |",
        "| active message by ucp_am_send* from cuda/GPU0              |",
        "+---------+-------------------------------+------------------+",
        "|  Range  |          Description          |      Config      |",
        "+---------+-------------------------------+------------------+",
        "| 0..8184 | multi-frag copy-in            | sysv/memory      |",
        "| 8K..inf | (?) rendezvous zero-copy read | cuda_ipc/cuda    |",
        "+---------+-------------------------------+------------------+",
        "| perftest intra-node cfg#0                                  |",
        "| active message by ucp_am_send*(multi) from host memory     |",
        "+---------+-------------------------------+------------------+",
        "|  Range  |          Description          |      Config      |",
        "| 8K..inf | (?) rendezvous zero-copy read | cma/memory       |",
        "+---------+-------------------------------+------------------+",
    ]
    prefixed = [f"[1795725233.249587] [vm:20081:0]   {line}" for line in lines]
    assert rendezvous_wires(prefixed, "cuda") == ["cuda_ipc/cuda"]
    assert rendezvous_wires(prefixed * 2, "host") == ["cma/memory"]


def test_passes_are_held_against_the_peaks() -> None:
    results = Results(facts={"copy_gb_per_s": 4000, "peak_tflops": 800})
    results.facts["torch_ms"] = {"random:llama-8b 8": 6.0}
    line = {"model": "random:llama-8b", "kind": "pass", "rows": 8, "median_ms": 5.0}
    weights = {"weight_bytes": 16e9, "head_bytes": 1e9}
    add_pass(results, {**line, **weights})
    assert [(row.limit, row.ratio) for row in results.rows] == [(4.0, 1.25), (6.0, 5 / 6)]
    add_pass(results, {**line, **weights, "kind": "prefill", "rows": 2048, "median_ms": 100.0})
    assert results.rows[2].figure == 20480
    assert results.rows[2].limit == pytest.approx(800e12 / 15e9)


def test_torch_passes_run_on_a_cpu() -> None:
    script = ROOT / "scripts" / "gpucheck" / "torch_pass.py"
    command: list[str | Path] = [sys.executable, script, "--device=cpu", "--model=tiny"]
    command += ["--rows=1,3", "--context=5"]
    done = subprocess.run(
        [*command, "--peaks", "--copied=1048576", "--width=64"],
        text=True,
        stdout=subprocess.PIPE,
        check=True,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["bench"] for line in lines] == ["copy", "read", "product", "torch", "torch"]
    assert [line["rows"] for line in lines[3:]] == [1, 3]
    assert all(line["median_ms"] > 0 for line in lines[3:])


def test_a_profile_is_summarised_by_kernel() -> None:
    head = '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'
    lines = [
        "==PROF== Connected",
        head,
        '"0","void specfabric::Norm<float>(Args)","gpu__time_duration.sum","nsecond","2,000"',
        '"0","void specfabric::Norm<float>(Args)","dram__bytes.sum","Kbyte","16"',
        '"1","gemm(int)","gpu__time_duration.sum","us","9"',
        '"2","void specfabric::Norm<float>(Args)","gpu__time_duration.sum","us","1"',
    ]
    assert summarise_profile(lines) == [("gemm", 1, 9.0, 0.0), ("Norm<float>", 2, 3.0, 16e3)]
    assert summarise_profile(["==ERROR== no permission"]) == []


def test_spans_are_read_from_metrics() -> None:
    name = "specfabric_round_span_seconds"
    text = f'{name}_bucket{{span="forward",le="1"}} 4\n{name}_sum{{span="forward"}} 0.5\n'
    text += f'{name}_count{{span="forward"}} 4\n{name}_sum{{span="plan"}} 0.1\n'
    assert spans(text) == {"forward": (0.5, 4.0)}


def test_the_table() -> None:
    results = Results(rows=[Row("a pass", 4.9, "ms", 3.38, "weights read once")])
    results.parts.append(PartResult("passes", "cut", 20, 20))
    head, line, _, part = render(results).splitlines()
    assert head.split() == ["what", "figure", "limit", "ratio"]
    assert " ".join(line.split()) == "a pass 4.9 ms 3.38 weights read once 1.45"
    assert part == "cut     passes (20 of 20 s)"
