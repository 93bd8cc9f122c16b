"""The parts of the check that need no server: what they run, and which rows come of it."""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpucheck.programs import Programs, tool
from gpucheck.runner import Failed, Missing, Part
from gpucheck.table import Results, Row

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
PREFILL_TOKENS = 2048
PROMPTS = ("class Stack:", "for i in range(10):")
# A program of ours ends by itself before its part is cut, with what it has.
MARGIN_SECONDS = 3.0
# By far, as its reference on the CPU is.
SLOWEST_TEST = "cuda_tree_attention_test"


@dataclass(frozen=True)
class Settings:
    """What is run, and on what."""

    programs: Programs
    device: str = "cuda"
    models: tuple[str, ...] = ("random:llama-1b", "random:llama-8b", "random:qwen3-8b")
    rows: tuple[int, ...] = ROWS
    prefill: int = PREFILL_TOKENS
    numerics: tuple[str, ...] = ("--batches=1,8", "--tokens=20")  # flags of numerics_bench
    clients: tuple[int, ...] = (1, 8, 32, 64)
    serving_seconds: float = 2.0  # of load at each number of clients
    serving_width: int = 0  # columns of the widened target's MLPs; 0: a 2.4 GB model
    env: dict[str, str] = field(default_factory=dict)


def objects(lines: list[dict[str, Any]]) -> Callable[[str], None]:
    """Adds what a line of output says in JSON, if it does."""

    def take(line: str) -> None:
        if line.startswith("{"):
            try:
                lines.append(json.loads(line))
            except ValueError:
                return

    return take


def peaks(part: Part, settings: Settings) -> None:
    """Copies within the device and a large matrix product: the limits of what follows."""
    found: list[dict[str, Any]] = []
    script = settings.programs.script("gpucheck", "torch_pass.py")
    status = part.run(
        [sys.executable, script, "--peaks", f"--device={settings.device}"],
        objects(found),
        settings.env,
    )
    if status == 3:
        raise Missing("no torch that finds a GPU")
    facts, results = part.results.facts, part.results
    for line in found:
        facts["device"] = line["device"]
        if line["bench"] == "copy":
            facts["copy_gb_per_s"] = line["gb_per_s"]
            results.add(Row("copy within the device", line["gb_per_s"], "GB/s"))
        elif line["bench"] == "read":
            results.add(
                Row("read by torch.max", line["gb_per_s"], "GB/s", facts["copy_gb_per_s"], "copy")
            )
        else:
            facts["peak_tflops"] = line["tflops"]
            results.add(Row("large matrix product, bfloat16", line["tflops"], "TFLOP/s"))
    if status != 0:
        raise Failed(f"torch_pass.py ended with {status}")


def run_tests(
    part: Part,
    settings: Settings,
    tests: Sequence[Path],
    row: tuple[str, str],
    under: Sequence[str],
) -> None:
    """Each under a command; `row`: what is counted, and its unit."""
    good, bad = 0, []
    try:
        for test in tests:
            if part.run([*under, test, "--gtest_brief=1"], env=settings.env) == 0:
                good += 1
            else:
                bad.append(test.name)
    finally:
        part.results.add(Row(row[0], good, row[1], len(tests), "in all"))
    if bad:
        raise Failed(", ".join(bad))


def kernel_tests(part: Part, settings: Settings) -> None:
    """Kernels and whole passes against the CPU's."""
    tests = sorted(settings.programs.tests(), key=lambda path: path.name == SLOWEST_TEST)
    run_tests(part, settings, tests, ("tests of kernels and passes", "passed"), [])


def sanitizer(part: Part, settings: Settings) -> None:
    """graph_cache_test breaks a capture on purpose, so errors of API calls are not reported."""
    memcheck = [tool("compute-sanitizer"), "--error-exitcode", "9", "--report-api-errors", "no"]
    # The captures first, then as many as there is time for.
    tests = sorted(
        settings.programs.tests(),
        key=lambda path: (path.name != "cuda_graph_cache_test", path.stat().st_size),
    )
    run_tests(part, settings, tests, ("tests under compute-sanitizer", "clean"), memcheck)


def texts(part: Part, settings: Settings) -> None:
    """Greedy, sampled and speculative texts in float32: the same on the GPU and on the CPU."""
    target, draft = settings.programs.model("target"), settings.programs.model("draft")
    reader = settings.programs.model("eagle3")  # of hidden states
    program = settings.programs.find("specfabric")
    always = ["--speculation=always", "--ngram_lookup=false", "--max_draft_wait=60s"]
    speculative = [f"--draft_model={draft}", *always]
    sampled = ["--temperature=1", "--seed=7"]
    forms = {
        "greedy": [],
        "sampled": sampled,
        "with a draft": speculative,
        "with a reader of hidden states": [f"--draft_model={reader}", *always],
        "rejection": [*speculative, *sampled, "--verification=rejection", "--sampled_tree=2,1"],
    }

    def generate(device: str, prompt: str, arguments: Sequence[str]) -> str:
        said: list[str] = []
        command: list[str | Path] = [
            program,
            "generate",
            f"--model={target}",
            "--dtype=float32",
            "--max_tokens=48",
        ]
        command += [f"--device={device}", "--ignore_eos", "--log_level=error", "--json"]
        part.check([*command, f"--prompt={prompt}", *arguments], said.append, settings.env, True)
        answers = [json.loads(line) for line in said if line.startswith("{")]
        if not answers:
            raise Failed(f"no answer to '{prompt}'")
        return str(answers[-1]["text"])

    same, bad, count = 0, [], 0
    try:
        for prompt in PROMPTS:
            for name, arguments in forms.items():
                count += 1
                expected = generate("cpu", prompt, arguments)
                if generate(settings.device, prompt, arguments) == expected:
                    same += 1
                else:
                    bad.append(f"{name} after '{prompt}'")
                part.say(f"{same} of {count} texts are the CPU's")
    finally:
        in_all = len(PROMPTS) * len(forms)
        part.results.add(Row("texts that are the CPU's", same, "texts", in_all, "in all"))
    if bad:
        raise Failed(", ".join(bad))


def kernels(part: Part, settings: Settings) -> None:
    """What kernels read a second beside a copy of the same run."""

    def take(line: str) -> None:
        match = re.fullmatch(r"(\S.*?) +([\d.]+) +(\d+) +([\d.]+)", line)
        if match is None:
            return
        name, (ms, rate, ratio) = match[1], (float(match[i]) for i in (2, 3, 4))
        if name == "copy within the device":
            part.results.facts.setdefault("copy_gb_per_s", rate)
            return
        copy = rate / ratio if ratio else None
        part.results.add(Row(f"kernel: {name}", rate, "GB/s", copy, "copy", ratio, f"{ms} ms"))

    part.check([settings.programs.find("kernel_bench")], take, settings.env)


def torch_passes(part: Part, settings: Settings) -> None:
    """Passes as torch operations in a CUDA graph, which `passes` is held against."""
    script = settings.programs.script("gpucheck", "torch_pass.py")
    if "copy_gb_per_s" not in part.results.facts and settings.device == "cuda":
        raise Missing("no torch that finds a GPU")
    known: dict[str, float] = part.results.facts.setdefault("torch_ms", {})

    def take(line: str) -> None:
        found: list[dict[str, Any]] = []
        objects(found)(line)
        for fields in found:
            known[f"{fields['model']} {fields['rows']}"] = fields["median_ms"]

    for model in settings.models:
        command: list[str | Path] = [sys.executable, script, f"--device={settings.device}"]
        command += ["--model", model.removeprefix("random:")]
        rows = [str(n) for n in settings.rows if n in (1, 8, 64, 512)]
        part.check([*command, "--rows", ",".join(rows)], take, settings.env)


def add_pass(results: Results, found: dict[str, Any]) -> None:
    """Rows of one line of step_bench."""
    model, rows, ms = found["model"], found["rows"], found["median_ms"]
    copy, peak = results.facts.get("copy_gb_per_s"), results.facts.get("peak_tflops")
    if found["kind"] == "prefill":
        # Two operations a row and weight of two bytes; the head is for the last row alone.
        limit = peak * 1e12 / (found["weight_bytes"] - found["head_bytes"]) if peak else None
        figure = 1e3 * rows / ms
        results.add(
            Row(f"{model}: prompt of {rows}", figure, "tokens/s", limit, "large matrix product")
        )
        return
    limit = found["weight_bytes"] / copy / 1e6 if copy else None
    what = f"{model}: pass of {rows}"
    results.add(Row(what, ms, "ms", limit, "weights read once"))
    torch_ms = results.facts.get("torch_ms", {}).get(f"{model} {rows}")
    if torch_ms is not None:
        results.add(Row(what, ms, "ms", torch_ms, "torch in a CUDA graph"))


def passes(part: Part, settings: Settings, model: str) -> None:
    """A pass by its rows, and a prompt."""
    found: list[dict[str, Any]] = []
    command: list[str | Path] = [
        settings.programs.find("step_bench"),
        f"--device={settings.device}",
        "--json",
    ]
    command += [f"--model={model}", "--rows=" + ",".join(map(str, settings.rows))]
    command += [f"--prefill={settings.prefill}"]
    command += [f"--budget={max(part.left() - MARGIN_SECONDS, 1):.1f}"]

    def take(line: str) -> None:
        before = len(found)
        objects(found)(line)
        for fields in found[before:]:
            add_pass(part.results, fields)
        if loaded := re.search(r"s to load: ([\d.]+) GB/s", line):
            part.results.add(Row(f"{model}: weights loaded", float(loaded[1]), "GB/s", 5, "goal"))

    part.check(command, take, settings.env)
    if not found:
        raise Failed("step_bench told of no pass")


def numerics(part: Part, settings: Settings) -> None:
    """How often logits depend on their batch, and what it costs that they do not."""
    command: list[str | Path] = [
        settings.programs.find("numerics_bench"),
        f"--device={settings.device}",
    ]
    command += [f"--model={settings.models[0]}", *settings.numerics]
    command += [f"--budget={max(part.left() - MARGIN_SECONDS, 1):.1f}"]
    worst, costs = 0.0, []

    def take(line: str) -> None:
        nonlocal worst
        words = line.split()
        if len(words) != 9 or words[3] not in ("yes", "no"):
            return
        if words[3] == "yes":
            costs.append(float(words[5]))
            worst = max(worst, float(words[6]))

    part.check(command, take, settings.env)
    if not costs:
        raise Failed("numerics_bench told of no batch")
    part.results.add(
        Row("rows whose logits depend on their batch", worst, "%", note="with --batch_invariant")
    )
    part.results.add(Row("a pass with --batch_invariant", max(costs), "times", 1, "without"))
    if worst > 0:
        raise Failed(f"{worst} % of rows depend on their batch")


def summarise_profile(lines: Sequence[str]) -> list[tuple[str, int, float, float]]:
    """Of ncu's CSV, for each kernel: launches, microseconds and bytes in all; the longest first."""
    begin = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if begin is None:
        return []
    # By the letter that its unit begins with: nsecond or ns, byte, Kbyte, ...
    micros = {"n": 1e-3, "u": 1.0, "m": 1e3, "s": 1e6}
    sizes = {"b": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}
    kernels_found: dict[str, list[float]] = {}
    for entry in csv.DictReader(lines[begin:]):
        name = re.sub(r"\(.*", "", entry["Kernel Name"]).split("::")[-1]
        totals = kernels_found.setdefault(name, [0, 0.0, 0.0])
        value = float(entry["Metric Value"].replace(",", ""))
        unit = entry["Metric Unit"][0].lower()
        if entry["Metric Name"].startswith("gpu__time_duration"):
            totals[0] += 1
            totals[1] += value * micros[unit]
        else:
            totals[2] += value * sizes[unit]
    summary = [(name, int(n), us, b) for name, (n, us, b) in kernels_found.items()]
    return sorted(summary, key=lambda entry: -entry[2])


def profile(part: Part, settings: Settings) -> None:
    """Nsight Compute's times of passes by kernel, one after the other: shares count."""
    command: list[str | Path] = [tool("ncu"), "--csv", "--clock-control", "none"]
    command += ["--metrics", "gpu__time_duration.sum,dram__bytes.sum", "--launch-count", "250"]
    command += ["--kernel-name", "regex:Product|Norm|Attend|Place|Embed"]
    command += [settings.programs.find("step_bench"), f"--device={settings.device}"]
    command += [
        f"--model={settings.models[0]}",
        "--rows=1",
        "--repeats=1",
        "--trial_seconds=0",
        "--cuda_graphs=false",
    ]
    lines: list[str] = []
    status = part.run(command, lines.append, settings.env, quiet=True)
    summary = summarise_profile(lines)
    if not summary:
        told = next((line for line in lines if "==ERROR==" in line), "no kernel was profiled")
        raise Missing(f"{told} (status {status})")
    in_all = sum(us for _, _, us, _ in summary)
    copy = part.results.facts.get("copy_gb_per_s")
    for name, launches, us, bytes_moved in summary[:12]:
        note = f"{launches} launches"
        if copy and us:
            note += f", {bytes_moved / us / 1e3 / copy:.2f} of copy bandwidth"
        part.results.add(Row(f"profile: {name}", us, "us", in_all, "of the launches", note=note))
