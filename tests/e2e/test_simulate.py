"""`specfabric simulate`: what it prints, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cluster import run

FAST = ["--requests=40", "--output_tokens=50", "--prompt_tokens=20"]


def test_more_drafts_at_every_rate() -> None:
    done = run(["simulate", *FAST, "--rate=1,20", "--num_drafts=0,1,3", "--json"])
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["rate"], row["drafts"]) for row in rows] == [
        (rate, drafts) for rate in (1, 20) for drafts in (0, 1, 3)
    ]
    for row in rows:
        assert row["requests"] == 40
        assert row["ttft_seconds"]["p50"] <= row["ttft_seconds"]["p99"]
        assert (row["accepted_per_round"] > 0.5) == (row["drafts"] > 0)
    plain, drafted = rows[0], rows[1]
    assert drafted["tpot_seconds"]["p50"] < 0.8 * plain["tpot_seconds"]["p50"]


def test_a_trace_instead_of_a_rate(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("seconds,prompt,output\n0,10,5\n1.5,20,7\n")
    done = run(["simulate", f"--workload_trace={trace}", "--num_drafts=1", "--json"])
    assert done.returncode == 0, done.stderr
    (row,) = (json.loads(line) for line in done.stdout.splitlines())
    assert row["output_tokens"] == 12


def test_many_targets_share_a_pool() -> None:
    load = ["--requests=640", "--output_tokens=50", "--prompt_tokens=20", "--rate=100000"]
    small = ["--num_targets=1", "--num_drafts=3", "--requests=10"]
    large = ["--num_targets=64", "--num_drafts=192"]
    rows = []
    for size in (small, large):
        done = run(["simulate", *load, *size, "--json"])
        assert done.returncode == 0, done.stderr
        rows.append(json.loads(done.stdout))
    one, many = rows
    assert many["targets"] == 64
    assert many["output_tokens"] > 60 * one["output_tokens"] / 1.3
    # Ten requests for each target in both; the last ones of 640 end a little later.
    assert many["tokens_per_second"] > 0.7 * 64 * one["tokens_per_second"]


def test_the_table_has_a_row_for_each() -> None:
    done = run(["simulate", *FAST, "--rate=1", "--num_drafts=0,2"])
    assert done.returncode == 0, done.stderr
    assert [line.split()[:3] for line in done.stdout.splitlines()[2:]] == [
        ["1", "1", "0"],
        ["1", "1", "2"],
    ]


def test_a_drafter_of_states_on_its_targets_device_and_beyond() -> None:
    # The same trees everywhere: by default they are as deep as pays in each place.
    trees = ["--speculation=always", "--tree=1,1,1"]
    load = [*FAST, *trees, "--rate=1", "--drafter=eagle3", "--state_shape=5x1024", "--json"]
    rows = []
    for place in ("turns", "shared", "apart"):
        done = run(["simulate", *load, "--num_drafts=1", f"--draft_place={place}"])
        assert done.returncode == 0, done.stderr
        rows.append(json.loads(done.stdout))
    turns, shared, remote = rows
    for beside in (turns, shared):
        assert beside["accepted_per_round"] > 0.5
        assert beside["states_sent"] == 0
    assert remote["state_bytes"] == remote["states_sent"] * 5 * 1024 * 2
    assert remote["states_sent"] > remote["output_tokens"]
    assert remote["exposed_draft_seconds"] > turns["exposed_draft_seconds"] > 0


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--rate=0", "--rate=0: allowed are numbers from"),
        ("--rate=1,x", "--rate=1,x: allowed are numbers from"),
        ("--num_targets=0", "--num_targets=0: allowed are numbers from 1"),
        ("--draft_router=best", "--draft_router=best: allowed are affinity, round_robin"),
        ("--ahead=uniform", "--ahead=uniform: allowed are true and false"),
        ("--ahead_nodes=0", "--ahead_nodes=0: allowed are 1 to 255"),
        ("--num_drafts=-1", "--num_drafts=-1: allowed are numbers from 0"),
        ("--drafter=mtp", "--drafter=mtp: allowed are model, pard, eagle3 and dspark"),
        ("--draft_place=near", "--draft_place=near: allowed are apart, turns and shared"),
        ("--state_shape=3", "--state_shape=3: allowed are LAYERSxHIDDEN"),
        ("--state_bandwidth=x", "--state_bandwidth=x: allowed are"),
        ("--acceptance=1.5", "--acceptance=1.5: allowed are 0 to 1"),
        ("--requests=0", "--requests=0: allowed are 1"),
        ("--tree=best:x", "--tree=best:x: tree policy"),
        ("--workload_trace=/nowhere", "--workload_trace=/nowhere: cannot be read"),
        ("--step_row=-1us", "--step_row=-1us: allowed are durations from 0 to 1h"),
        ("--kv_blocks=x", "kv_blocks"),
    ],
)
def test_bad_flags(flag: str, said: str) -> None:
    done = run(["simulate", flag])
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_target_has_one_drafter_on_its_device() -> None:
    done = run(["simulate", "--draft_place=turns", "--num_targets=2", "--num_drafts=3"])
    assert done.returncode == 2
    said = "--num_drafts=3 with --num_targets=2 and --draft_place=turns: allowed are 0 and 2"
    assert said in done.stderr


def test_a_bad_trace_names_its_line(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("0,10,5\n1,10\n")
    done = run(["simulate", f"--workload_trace={trace}"])
    assert done.returncode == 2
    assert "line 2 is '1,10'" in done.stderr
