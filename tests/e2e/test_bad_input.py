"""Bad input ends in one clear line: at the command line, or as OpenAI's error JSON over HTTP."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import make
from cluster import DRAFT, TARGET, Cluster, Process, free_address, run, wait_until

CONTEXT = 2048


def refusal(arguments: list[str], status: int = 2, test_hooks: str = "") -> str:
    """The one line on standard error with which the program refuses `arguments`."""
    result = run(arguments, test_hooks=test_hooks)
    assert result.returncode == status, f"{result.returncode}\n{result.stderr}"
    assert result.stdout == ""
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    return lines[0]


def target_arguments(model: Path) -> list[str]:
    return ["target", f"--model={model}", f"--listen={free_address()}", "--dtype=float32"]


def draft_arguments(model: Path) -> list[str]:
    return ["draft", f"--model={model}", f"--listen={free_address()}", "--dtype=float32"]


ROLES: list[Callable[[Path], list[str]]] = [target_arguments, draft_arguments]


@pytest.mark.parametrize("arguments_for", ROLES)
def test_missing_checkpoint(arguments_for: Callable[[Path], list[str]], tmp_path: Path) -> None:
    line = refusal(arguments_for(tmp_path / "nowhere"))
    assert str(tmp_path / "nowhere") in line


@pytest.mark.parametrize("arguments_for", ROLES)
def test_folder_without_weights(arguments_for: Callable[[Path], list[str]], tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    shutil.copy(TARGET / "config.json", folder)
    assert "safetensors" in refusal(arguments_for(folder))


@pytest.mark.parametrize("keep", [0, 7, 1000, -1000])
def test_truncated_weights(keep: int, tmp_path: Path) -> None:
    folder = tmp_path / "cut"
    shutil.copytree(DRAFT, folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:keep])
    assert "model.safetensors" in refusal(target_arguments(folder))


def test_missing_shard(checkpoints: Path, tmp_path: Path) -> None:
    folder = tmp_path / "gap"
    shutil.copytree(checkpoints / "llama-gqa-tied-shards", folder)
    shard = sorted(folder.glob("model-*.safetensors"))[1]
    shard.unlink()
    assert shard.name in refusal(target_arguments(folder))


def test_missing_tensor(tmp_path: Path) -> None:
    """The weights of a model with fewer layers than its configuration says."""

    def add_layer(config: dict[str, Any]) -> None:
        config["num_hidden_layers"] += 1

    folder = make.make_broken(DRAFT, tmp_path / "layers", add_layer)
    assert "model.layers.2." in refusal(target_arguments(folder))


def test_unsupported_architecture(tmp_path: Path) -> None:
    def rename(config: dict[str, Any]) -> None:
        config["architectures"] = ["GPT2LMHeadModel"]
        config["model_type"] = "gpt2"

    line = refusal(target_arguments(make.make_broken(DRAFT, tmp_path / "gpt2", rename)))
    assert "GPT2LMHeadModel" in line or "gpt2" in line
    assert "LlamaForCausalLM" in line or "llama" in line, "it does not say what is allowed"


def test_unsupported_rope(tmp_path: Path) -> None:
    def change(config: dict[str, Any]) -> None:
        config["rope_parameters"] = {"rope_type": "longrope", "rope_theta": 10000.0}

    line = refusal(target_arguments(make.make_broken(DRAFT, tmp_path / "rope", change)))
    assert "longrope" in line


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "generation_config.json"),
        ('{"temperature": "warm"}', "'temperature' must be a number from 0 to 2"),
        ('{"top_k": -5}', "'top_k'"),
    ],
)
def test_malformed_generation_config(text: str, said: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(DRAFT, folder)
    (folder / "generation_config.json").write_text(text)
    common = [f"--model={folder}", "--listen=127.0.0.1:0"]
    for arguments in (
        ["gateway", *common, f"--targets={free_address()}"],
        ["up", *common, "--dtype=float32"],
    ):
        assert said in refusal(arguments)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"architectures": 3}'])
def test_malformed_configuration(text: str, tmp_path: Path) -> None:
    folder = make.make_broken(DRAFT, tmp_path / "config", lambda _: None)
    (folder / "config.json").write_text(text)
    assert "config.json" in refusal(target_arguments(folder))


def test_vocabularies_that_differ(checkpoints: Path) -> None:
    line = refusal(
        [
            "up",
            f"--model={TARGET}",
            f"--draft_model={checkpoints / 'llama-plain'}",
            f"--listen={free_address()}",
            "--num_drafts=1",
        ]
    )
    assert "4096" in line
    assert "512" in line


@pytest.fixture
def taken() -> Iterator[str]:
    """An address on which somebody else listens."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield f"127.0.0.1:{other.getsockname()[1]}"


@pytest.fixture
def broken_model(tmp_path: Path) -> Path:
    """A checkpoint that can be read up to its weights and its tokenizer."""
    folder = tmp_path / "broken_model"
    folder.mkdir()
    shutil.copy(TARGET / "config.json", folder)
    return folder


# Every role that listens, and every flag that says where.
LISTENERS = [
    ("up", "listen", ["--num_drafts=0"]),
    ("up", "admin_listen", ["--num_drafts=0", "--listen=127.0.0.1:0"]),
    ("gateway", "listen", ["--targets=127.0.0.1:1"]),
    ("gateway", "admin_listen", ["--targets=127.0.0.1:1", "--listen=127.0.0.1:0"]),
    ("target", "listen", []),
    ("target", "admin_listen", ["--listen=127.0.0.1:0"]),
    (
        "target",
        "group_listen",
        ["--listen=127.0.0.1:0", "--tensor_parallel=2", "--group_processes=2"],
    ),
    ("rank", "admin_listen", ["--join=127.0.0.1:1"]),
    ("draft", "listen", []),
    ("draft", "admin_listen", ["--listen=127.0.0.1:0"]),
]


@pytest.mark.parametrize(("role", "flag", "more"), LISTENERS)
def test_a_port_in_use_is_told_before_the_model_is_loaded(
    role: str, flag: str, more: list[str], taken: str, broken_model: Path
) -> None:
    """The checkpoint has nothing to load: a line about that would have come too late."""
    line = refusal([role, f"--model={broken_model}", f"--{flag}={taken}", *more], status=1)
    assert f"--{flag}: cannot listen on {taken}: Address already in use" in line


def test_the_port_of_perftest_in_use(taken: str) -> None:
    port = taken.rpartition(":")[2]
    for extra in ([], ["--threaded"]):
        assert taken in refusal(["perftest", "-p", port, *extra], status=1)


def test_one_port_for_two_listeners(broken_model: Path) -> None:
    address = free_address()
    both = [f"--model={broken_model}", f"--listen={address}", f"--admin_listen={address}"]
    assert address in refusal(["up", *both, "--num_drafts=0"], status=2)
    for role in ("target", "draft"):
        assert f"--admin_listen: cannot listen on {address}" in refusal([role, *both], status=1)


def test_two_that_start_at_once_on_one_port(tmp_path: Path) -> None:
    """The later one ends at once, however long the first takes to load."""
    address = free_address()
    arguments = ["draft", f"--model={DRAFT}", f"--listen={address}", "--dtype=float32"]
    processes = [Process.start(arguments, tmp_path / f"{i}.log") for i in range(2)]
    try:
        wait_until(
            lambda: any(p.popen.poll() is not None for p in processes), "one of them has ended"
        )
        [loser] = [p for p in processes if p.popen.poll() is not None]
        assert loser.popen.returncode == 1, loser.log_text()
        [line] = loser.log_text().splitlines()
        assert f"--listen: cannot listen on {address}" in line
    finally:
        for process in processes:
            process.stop()


def test_a_build_for_cpus_says_so_where_a_gpu_is_asked_for() -> None:
    command = ["target", f"--model={TARGET}", f"--listen={free_address()}", "--device=cuda"]
    assert "no kernels for GPUs" in refusal(command, status=1)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["serve"], "serve"),
        (["target", "--listen=127.0.0.1:0"], "model"),
        (["target", f"--model={TARGET}", "--dtype=int3"], "int3"),
        (["target", f"--model={TARGET}", "--device=tpu"], "tpu"),
        (
            ["target", f"--model={TARGET}", "--device=cuda", "--reference_kernels=true"],
            "the reference kernels are CPUs'",
        ),
        (
            ["target", f"--model={TARGET}", "--disable_features=peer_sums,graphs"],
            "--disable_features=peer_sums,graphs: 'graphs': allowed are cuda_graphs, ",
        ),
        (["draft", f"--model={DRAFT}", "--disable_features=x"], "'x': allowed are cuda_graphs, "),
        (
            ["target", f"--model={TARGET}", "--gpu_memory_fraction=1.1"],
            "--gpu_memory_fraction=1.1: allowed are 0.01 to 1",
        ),
        (["target", f"--model={TARGET}", "--tensor_parallel=0"], "0"),
        (["target", f"--model={TARGET}", "--listen=nonsense"], "nonsense"),
        (["target", f"--model={TARGET}", "--no_such_flag=1"], "no_such_flag"),
        (
            ["target", "--modle=x"],
            "--modle: no such flag; did you mean --model? `specfabric target",
        ),
        (["up", "--draft-modle=x"], "--draft_modle: no such flag; did you mean --draft_model?"),
        (["draft", "--tensor-paralel=2"], "--tensor_paralel: no such flag; `specfabric draft"),
        (["gatway"], "'gatway' is not a role; did you mean gateway?"),
        (["help", "darft"], "'darft' is not a role; did you mean draft?"),
        (["perf-test"], "did you mean perftest?"),
        (["--model=x"], "'--model=x' is not a role; `specfabric help` lists them"),
        (["perftest", "--vocabs=3"], "--vocabs: no such flag; did you mean --vocab?"),
        (
            ["perftest", "--require-rdma=perhaps"],
            "--require_rdma=perhaps: allowed are true and false",
        ),
        (["generate", f"--model={TARGET}", "--prompt=x", "--max_tokens=-1"], "-1"),
        (["generate", f"--model={TARGET}", "--prompt=x", "--temperature=-2"], "-2"),
        (["up", f"--model={TARGET}", "--num_drafts=1"], "draft_model"),
        (["generate", f"--model={TARGET}", "--prompt=x", "--simulated_rtt=-1ms"], "-1"),
        (
            ["gateway", f"--model={TARGET}", "--targets=a:1", "--simulated_rtt=2s"],
            "--simulated_rtt=2s: allowed are durations from 0 to 1s",
        ),
        (
            ["draft", f"--model={DRAFT}", "--silence_timeout=-1s"],
            "allowed are durations from 0 to 24h with their unit",
        ),
        (
            ["gateway", f"--model={TARGET}", "--targets=a:1", "--spin=x"],
            "with their unit, such as 50ms or 5s, or auto",
        ),
        (
            ["gateway", f"--model={TARGET}", "--targets=a:1", "--cors_origins=http://a, b.example"],
            "--cors_origins: 'b.example' is no origin; allowed are scheme://host",
        ),
        (
            ["gateway", f"--model={TARGET}", "--targets=a:1", "--api_key_file=/nowhere"],
            "--api_key_file=/nowhere: cannot read: No such file",
        ),
        (
            ["gateway", f"--model={TARGET}", "--targets=a:1", "--tls_cert=/nowhere"],
            "--tls_key is missing: --tls_cert and --tls_key go together",
        ),
        (
            ["up", f"--model={TARGET}", "--tls_cert=/nowhere", "--tls_key=/nowhere"],
            "--tls_cert=/nowhere: cannot read: No such file",
        ),
        (["target", f"--model={TARGET}", "--require_rdma=maybe"], "maybe"),
        (
            ["target", f"--model={TARGET}", "--ngram_lookup=maybe"],
            "maybe: allowed are true and false",
        ),
    ],
)
def test_bad_flags(arguments: list[str], named: str) -> None:
    assert named in refusal(arguments)


@pytest.mark.parametrize(
    ("role", "hooks", "named"),
    [
        ("target", "faults=drop=2", "'drop=2'"),
        ("draft", "faults=lose=.1", "'lose=.1'"),
        ("up", "faults=delay=5", "'delay=5'"),
        ("target", "drafter_choice=oracle", "allowed are hedge, ucb1, thompson and fixed"),
        ("generate", "ahead=off", "allowed are likeliest, geometric and uniform"),
        ("gateway", "drop=.1", "allowed are drafter_choice, ahead and faults"),
    ],
)
def test_bad_test_hooks(role: str, hooks: str, named: str) -> None:
    line = refusal([role, f"--model={TARGET}"], test_hooks=hooks)
    assert f"SPECFABRIC_TEST_HOOKS: {hooks}: " in line
    assert named in line


@pytest.mark.parametrize(
    "role", ["up", "gateway", "target", "rank", "draft", "generate", "simulate", "status"]
)
def test_help_is_short_and_says_where_the_rest_is(role: str) -> None:
    def flags_of(*arguments: str) -> list[str]:
        result = run(list(arguments))
        assert result.returncode == 0, result.stderr
        return [line.split()[0] for line in result.stdout.splitlines() if line.startswith("  --")]

    common, every = flags_of(role, "--help"), flags_of(role, "--help=all")
    assert 3 <= len(common) <= 25
    assert set(common) <= set(every)
    assert flags_of("help", role) == common
    assert "--help=most: allowed is --help=all" in refusal([role, "--help=most"])


def test_dashes_in_names_of_flags(tmp_path: Path) -> None:
    file = tmp_path / "flags"
    file.write_text("--max-context=-2\n")
    for arguments in (
        ["--max-context=-2"],
        ["--max-context", "-2"],
        ["--max_context=-2", "--no-batch-invariant", "--nobatch_invariant"],
        [f"--flagfile={file}"],
    ):
        line = refusal(["target", f"--model={TARGET}", *arguments])
        assert "--max_context=-2: allowed are 0 to" in line


@pytest.mark.parametrize("flag", ["--require_rdma", "--require_gpudirect"])
def test_wires_that_cannot_be_had(flag: str) -> None:
    """A cluster on the loopback device has no RDMA, whatever else the machine has."""
    common = ["--listen=127.0.0.1:0", "--log_level=error", flag]
    for arguments in (
        ["target", f"--model={TARGET}"],
        ["draft", f"--model={DRAFT}"],
        ["gateway", f"--model={TARGET}", f"--targets={free_address()}"],
        ["up", f"--model={TARGET}"],
    ):
        assert "is required" in refusal([*arguments, *common], status=1)


def test_wires_are_asked_for_before_weights_are_read(tmp_path: Path) -> None:
    shutil.copy(TARGET / "config.json", tmp_path)
    for role in ("target", "draft"):
        line = refusal([role, f"--model={tmp_path}", "--listen=127.0.0.1:0", "--require_rdma"], 1)
        assert "is required" in line


def test_no_role_prints_the_roles() -> None:
    result = run([])
    assert result.returncode == 2
    for role in ("up", "gateway", "target", "draft", "generate"):
        assert role in result.stdout


@pytest.fixture
def http(demo_cluster: Cluster) -> Iterator[httpx.Client]:
    with demo_cluster.client() as client:
        yield client


def http_error(response: httpx.Response, status: int) -> dict[str, Any]:
    """OpenAI's error object of a refused request."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"].startswith("application/json")
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert "\n" not in error["message"]
    return error


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[1]",
        b'"text"',
        b'{"prompt": "a",}',
        b'{"prompt": "a"} trailing',
        b'{"prompt": "a", "messages": [{"role": "user", "content": "a"}], "tokens": [1]}\x00',
        b'{"prompt": "a", "messages": [{"role": "user", "content": "a"}], "tokens": [1]}\x00{',
        b'{"prompt": "a", "tokens": [1], "x": 1e999}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "\xff\xfe"}',
        b'{"prompt": "\xed\xa0\x80"}',
        b"\x00\x01\x02",
        b"[" * 100_000,
    ],
)
def test_malformed_json(http: httpx.Client, body: bytes) -> None:
    for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"):
        http_error(http.post(path, content=body), 400)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt", 5),
        ("prompt", {"a": 1}),
        ("prompt", [1, "two"]),
        ("prompt", [-1]),
        ("prompt", [4096]),
        ("prompt", [1.5]),
        ("max_tokens", -1),
        ("max_tokens", "many"),
        ("temperature", -0.1),
        ("temperature", "hot"),
        ("top_p", -0.5),
        ("top_p", 1.5),
        ("top_k", -7),
        ("min_p", 2),
        ("n", 0),
        ("n", 100_000),
        ("stop", 3),
        ("stop", ["a"] * 65),
        ("stop", ["a" * 5000] * 2),
        ("seed", 2**64),
        ("seed", 2**70),
        ("seed", -(2**63) - 1),
        ("allowed_token_ids", [1]),
        ("regex", "a("),
        ("json_schema", {"type": "tree"}),
        ("response_format", {"type": "structural_tag"}),
        ("structured_outputs", {"choice": []}),
        ("guided_grammar", "start: missing"),
        ("ebnf", "a"),
        ("tools", [{"type": "function"}]),
        ("grammar", "root ::= b"),
        ("grammar_lazy", True),
        ("function_call", {"name": "f"}),
        ("modalities", ["text", "audio"]),
        ("length_penalty", 0.5),
        ("logits_processors", ["module.Processor"]),
        ("documents", [{"text": "a"}]),
        ("truncate_prompt_tokens", 0),
        ("stop", [""]),
        ("seed", "x"),
        ("logprobs", -1),
        ("logprobs", 10_000),
        ("stream", "yes"),
        ("echo", 1),
        ("suffix", "x"),
        ("logit_bias", {"1": 500}),
        ("logit_bias", {"one": 5}),
        ("logit_bias", {"4096": 5}),
        ("frequency_penalty", 2.5),
        ("presence_penalty", "much"),
        ("repetition_penalty", 0),
        ("min_tokens", 2),
        ("stop_token_ids", [4096]),
        ("best_of", 2),
    ],
)
def test_bad_field(http: httpx.Client, demo_cluster: Cluster, field: str, value: object) -> None:
    body = {"model": demo_cluster.model, "prompt": "x", "max_tokens": 1, field: value}
    error = http_error(http.post("/v1/completions", json=body), 400)
    assert error["type"] == "invalid_request_error"
    assert field in error["message"]


def test_messages_are_checked(http: httpx.Client, demo_cluster: Cluster) -> None:
    wrong: list[Any] = [None, "hello", [], [{"role": "user"}], [{"content": "x"}], [3]]
    for messages in wrong:
        body = {"model": demo_cluster.model, "messages": messages, "max_tokens": 1}
        assert (
            "messages" in http_error(http.post("/v1/chat/completions", json=body), 400)["message"]
        )


def test_prompt_beyond_the_context(http: httpx.Client, demo_cluster: Cluster) -> None:
    for length in (CONTEXT + 1, 10 * CONTEXT):
        body = {"model": demo_cluster.model, "prompt": [5] * length, "max_tokens": 1}
        message = http_error(http.post("/v1/completions", json=body), 400)["message"]
        assert str(length) in message
        assert f"maximum context length is {CONTEXT} tokens" in message


def test_no_tokens_wanted(demo_cluster: Cluster) -> None:
    answer = demo_cluster.complete(prompt="x", max_tokens=0)
    assert answer["choices"][0]["text"] == ""
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 0


def test_more_tokens_than_fit_are_cut_at_the_context(demo_cluster: Cluster) -> None:
    for wanted in (CONTEXT, 1_000_000_000):
        answer = demo_cluster.complete(
            prompt=[5] * (CONTEXT - 20), max_tokens=wanted, ignore_eos=True
        )
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["total_tokens"] == CONTEXT


def test_unknown_model_path_and_method(http: httpx.Client) -> None:
    body = {"model": "other", "prompt": "x", "max_tokens": 1}
    assert "other" in http_error(http.post("/v1/completions", json=body), 404)["message"]
    http_error(http.get("/v1/nothing"), 404)
    http_error(http.get("/v1/completions"), 405)
    http_error(http.delete("/v1/models"), 405)


def test_many_keys_are_refused_at_once(http: httpx.Client) -> None:
    """Not in time that grows with their square: 40,000 of them took seconds."""
    keys = ",".join(f'"{i}":0' for i in range(40_000))
    for path in ("/tokenize", "/detokenize", "/v1/completions", "/v1/chat/completions"):
        body = '{"prompt":"a","tokens":[1],"x":{' + keys + "}}"
        assert "1024 keys" in http_error(http.post(path, content=body), 400)["message"]
    for count in (16385, 100_000):
        chat = {"messages": [{"role": "user", "content": "a"}] * count, "max_tokens": 1}
        message = http_error(http.post("/v1/chat/completions", json=chat), 400)["message"]
        assert str(count) in message
        assert "16384" in message


def test_body_too_large(http: httpx.Client, demo_cluster: Cluster) -> None:
    body = json.dumps({"model": demo_cluster.model, "prompt": "x" * (64 << 20)})
    http_error(http.post("/v1/completions", content=body), 413)


@pytest.mark.parametrize(
    "data",
    [
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc",
        b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 200_000 + b"\r\n\r\n",
    ],
)
def test_broken_http_leaves_the_gateway_serving(demo_cluster: Cluster, data: bytes) -> None:
    host, _, port = demo_cluster.gateway.listen.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(data)
    assert demo_cluster.complete(prompt="x", max_tokens=1)["choices"]
