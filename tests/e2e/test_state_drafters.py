"""Drafters that read the target's hidden states: what travels, what is lost, who is refused."""

from __future__ import annotations

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cluster import (
    BINARY,
    DRAFTERS,
    TARGET,
    Cluster,
    Member,
    free_address,
    run,
    start_cluster,
    started,
    wait_until,
)
from exposition import value_of
from prompts import PROMPTS

EAGLE = DRAFTERS["eagle3"]
KINDS = ("eagle3", "dspark")
GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "return_token_ids": True}
LONG_PROMPT = "".join(PROMPTS)[:3000]


def row_bytes(kind: str) -> int:
    """Of a position's states: of each layer that the drafter reads, in bfloat16."""
    config = json.loads((DRAFTERS[kind] / "config.json").read_text())
    if kind == "eagle3":
        layers = config["eagle_aux_hidden_state_layer_ids"]
    else:
        layers = config["dflash_config"]["target_layer_ids"]
    return 2 * len(layers) * json.loads((TARGET / "config.json").read_text())["hidden_size"]


def sent(target: Member) -> tuple[float, float]:
    """Positions and bytes of hidden states that the target has sent."""
    return (
        value_of(target.admin, "specfabric_hidden_states_sent_total"),
        value_of(target.admin, "specfabric_hidden_states_sent_bytes_total"),
    )


def speculation(answer: dict[str, Any]) -> dict[str, Any]:
    return answer["usage"]["speculation"]


def tokens(answer: dict[str, Any]) -> list[int]:
    return answer["choices"][0]["token_ids"]


def accepted_a_round(answer: dict[str, Any]) -> float:
    counts = speculation(answer)
    return counts["accepted"] / counts["rounds"]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[int]]:
    """What the target says without drafts."""
    with start_cluster(tmp_path_factory.mktemp("plain") / "up.log", drafts=0) as cluster:
        return {
            prompt: tokens(cluster.complete(prompt=prompt, max_tokens=60, **GREEDY))
            for prompt in (LONG_PROMPT, *PROMPTS[:8])
        }


@pytest.mark.parametrize("kind", KINDS)
def test_each_committed_token_travels_once(
    plain: dict[str, list[int]], kind: str, tmp_path: Path
) -> None:
    with start_cluster(tmp_path / "up.log", draft_model=DRAFTERS[kind], drafts=1) as cluster:
        (target,), (draft,) = cluster.targets, cluster.drafts
        answer = cluster.complete(prompt=LONG_PROMPT, max_tokens=60, **GREEDY)
        positions, size = sent(target)
        received = "specfabric_draft_hidden_states_total"
        wait_until(lambda: value_of(draft.admin, received) == positions, "all have come")
        for lost in ("dropped_total", "lost_total"):
            name = f"specfabric_draft_hidden_states_{lost}"
            labels = {"reason": "invalid"} if lost == "dropped_total" else {}
            assert value_of(draft.admin, name, **labels) == 0
        assert value_of(target.admin, "specfabric_hidden_states_dropped_total") == 0
    assert tokens(answer) == plain[LONG_PROMPT]
    # The last round's tokens end the text: nobody drafts after them.
    whole = answer["usage"]["prompt_tokens"] + 60
    assert whole - 12 <= positions < whole
    assert size == positions * row_bytes(kind)
    assert accepted_a_round(answer) > 0.5


@pytest.mark.parametrize("kind", KINDS)
def test_a_cached_prefix_starts_cold(
    plain: dict[str, list[int]], kind: str, tmp_path: Path
) -> None:
    with start_cluster(tmp_path / "up.log", draft_model=DRAFTERS[kind], drafts=1) as cluster:
        answers = [cluster.complete(prompt=LONG_PROMPT, max_tokens=60, **GREEDY) for _ in range(2)]
    cached = answers[1]["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached > 0.9 * answers[1]["usage"]["prompt_tokens"]
    for answer in answers:
        assert tokens(answer) == plain[LONG_PROMPT]
        assert accepted_a_round(answer) > 0.3


def all_at_once(cluster: Cluster) -> dict[str, list[int]]:
    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(
            lambda prompt: cluster.complete(prompt=prompt, max_tokens=60, **GREEDY), PROMPTS[:8]
        )
        return {prompt: tokens(answer) for prompt, answer in zip(PROMPTS, answers, strict=False)}


@pytest.mark.parametrize("kind", KINDS)
def test_preempted_sequences_go_on(plain: dict[str, list[int]], kind: str, tmp_path: Path) -> None:
    extra = ["--kv_blocks=24", "--max_context=256"]
    with start_cluster(
        tmp_path / "up.log", draft_model=DRAFTERS[kind], drafts=1, extra=extra
    ) as cluster:
        answers = all_at_once(cluster)
        assert value_of(cluster.targets[0].admin, "specfabric_preemptions_total") > 0
    assert answers == {prompt: plain[prompt] for prompt in PROMPTS[:8]}


@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_killed_while_a_prompt_is_read(
    plain: dict[str, list[int]], kind: str, tmp_path: Path
) -> None:
    """Its states are gone with it; the other worker starts cold."""
    extra = ["--max_step_tokens=64"]  # many steps for the prompt
    with (
        start_cluster(
            tmp_path / "up.log", draft_model=DRAFTERS[kind], drafts=2, extra=extra
        ) as cluster,
        ThreadPoolExecutor(1) as pool,
    ):
        (target,) = cluster.targets
        asked = pool.submit(cluster.complete, prompt=LONG_PROMPT, max_tokens=60, **GREEDY)
        wait_until(lambda: sent(target)[0] > 0, "the first states are on their way")
        busy = max(
            cluster.drafts,
            key=lambda draft: value_of(draft.admin, "specfabric_draft_hidden_states_total"),
        )
        cluster.kill(busy)
        assert tokens(asked.result()) == plain[LONG_PROMPT]
        assert (
            tokens(cluster.complete(prompt=LONG_PROMPT, max_tokens=60, **GREEDY))
            == (plain[LONG_PROMPT])
        )


def test_a_drafter_needs_the_target_whose_embedding_it_shares() -> None:
    ended = run(["draft", f"--model={EAGLE}", f"--listen={free_address()}"])
    assert ended.returncode == 2
    (line,) = ended.stderr.strip().splitlines()[-1:]
    assert "--target_model" in line


@pytest.mark.parametrize(
    ("layers", "said"),
    [("1,3", "3"), ("1,3,99", "number of layers, 6"), ("1,x,3", "--state_layers=1,x,3")],
)
def test_layers_by_hand_are_checked(layers: str, said: str) -> None:
    command = ["draft", f"--model={EAGLE}", f"--target_model={TARGET}"]
    ended = run([*command, f"--listen={free_address()}", f"--state_layers={layers}"])
    assert ended.returncode == 2
    assert said in ended.stderr.strip().splitlines()[-1]


def test_other_layers_cost_acceptance_but_no_text(
    plain: dict[str, list[int]], tmp_path: Path
) -> None:
    extra = ["--state_layers=6,0,6"]
    answers = []
    for flags in ([], extra):
        log = tmp_path / f"up{len(flags)}.log"
        with start_cluster(log, draft_model=EAGLE, drafts=1, extra=flags) as cluster:
            answers.append({p: cluster.complete(prompt=p, max_tokens=60, **GREEDY) for p in plain})
    for some in answers:
        assert {prompt: tokens(answer) for prompt, answer in some.items()} == plain
    right, wrong = (sum(map(accepted_a_round, some.values())) for some in answers)
    assert wrong < 0.9 * right


def test_a_target_of_several_stages_refuses_it_in_one_line(tmp_path: Path) -> None:
    command = ["generate", f"--model={TARGET}", f"--draft_model={EAGLE}", "--pipeline_stages=2"]
    ended = run([*command, "--prompt=def", "--max_tokens=4"])
    assert ended.returncode == 2, ended.stderr
    assert "--pipeline_stages=2" in ended.stderr.strip().splitlines()[-1]
    # Roles that are started one by one find it out when they meet.
    listen, admin = free_address(), free_address()
    draft = ["draft", f"--model={EAGLE}", f"--target_model={TARGET}", f"--listen={listen}"]
    target = ["target", f"--model={TARGET}", "--pipeline_stages=2", f"--drafts={listen}"]
    with (
        started(tmp_path / "draft.log", draft),
        started(
            tmp_path / "target.log",
            [*target, f"--listen={free_address()}", f"--admin_listen={admin}"],
        ) as process,
    ):
        wait_until(lambda: "2 pipeline stages" in process.log_text(), "the target says why")


@pytest.mark.parametrize("kind", KINDS)
def test_a_target_that_sends_wrong_states_is_drafted_for(kind: str, tmp_path: Path) -> None:
    listen, admin = free_address(), free_address()
    vocabulary = json.loads((TARGET / "config.json").read_text())["vocab_size"]
    command = [
        "draft",
        f"--model={DRAFTERS[kind]}",
        f"--target_model={TARGET}",
        f"--listen={listen}",
    ]
    hostile = BINARY.parent / "tests" / "e2e" / "hostile_states"
    with started(tmp_path / "draft.log", [*command, f"--admin_listen={admin}"]):
        ended = subprocess.run(
            [str(hostile), listen, str(vocabulary), str(row_bytes(kind) // 2)],
            capture_output=True,
            text=True,
            timeout=90,
        )
        assert ended.returncode == 0, ended.stderr
        dropped = "specfabric_draft_hidden_states_dropped_total"
        assert value_of(admin, dropped, reason="invalid") >= 6
        assert value_of(admin, dropped, reason="no_room") >= 1
        assert value_of(admin, "specfabric_draft_hidden_states_lost_total") >= 4
