"""Checkpoints that are odd, but that other servers load: served as transformers computes them, or
refused in one line. Never served as another model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import make
from cluster import free_address, start_cluster
from test_bad_input import draft_arguments, refusal, target_arguments
from test_logits import check_scores, random_prompts, reference, scores

Tensors = dict[str, torch.Tensor]
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
QUERY = "model.layers.0.self_attn.q_proj."


def check_served(
    folder: Path,
    log: Path,
    prompts: list[list[int]],
    *,
    like: Path | None = None,
    context: int | None = None,
    extra: list[str] | None = None,
) -> str:
    """Serves the checkpoint, compares its log-probabilities with transformers', returns the log.

    `like` is the checkpoint that transformers is given, where that is another.
    """
    expected = reference(like or folder, prompts)
    with start_cluster(log, folder, None, drafts=0, extra=extra or []) as cluster:
        if context is not None:
            with cluster.client() as client:
                model = client.get("/v1/models").json()["data"][0]
            assert model["max_model_len"] == context
        for found, prompt, wanted in zip(scores(cluster, prompts), prompts, expected, strict=True):
            check_scores(found, prompt, wanted)
    return log.read_text()


def prompts_for(name: str) -> list[list[int]]:
    return random_prompts(name, make.SHAPES[name].settings["vocab_size"])


# Heads.


def test_tied_with_a_head_of_its_own(checkpoints: Path, tmp_path: Path) -> None:
    name = "qwen2-tied"

    def add_head(tensors: Tensors) -> None:
        generator = torch.Generator().manual_seed(3)
        embedding = tensors[EMBEDDING]
        tensors[HEAD] = torch.randn(embedding.shape, generator=generator) * 0.2

    folder = make.changed(checkpoints / name, tmp_path / "head", tensors=add_head)
    prompts = prompts_for(name)
    plain, own = reference(checkpoints / name, prompts[:1]), reference(folder, prompts[:1])
    assert (plain[0] - own[0]).abs().max() > 1, "transformers would not use the head"
    log = check_served(folder, tmp_path / "up.log", prompts)
    assert f"'{HEAD}' differs from '{EMBEDDING}': it is used as the output head" in log


def test_tied_with_the_same_head(checkpoints: Path, tmp_path: Path) -> None:
    name = "qwen2-tied"

    def add_head(tensors: Tensors) -> None:
        tensors[HEAD] = tensors[EMBEDDING].clone()

    folder = make.changed(checkpoints / name, tmp_path / "head", tensors=add_head)
    log = check_served(folder, tmp_path / "up.log", prompts_for(name), like=checkpoints / name)
    assert HEAD not in log


def test_tied_with_the_head_alone(checkpoints: Path, tmp_path: Path) -> None:
    name = "qwen2-tied"

    def move(tensors: Tensors) -> None:
        tensors[HEAD] = tensors.pop(EMBEDDING)

    folder = make.changed(checkpoints / name, tmp_path / "head", tensors=move)
    check_served(folder, tmp_path / "up.log", prompts_for(name))


def test_not_tied_without_a_head(checkpoints: Path, tmp_path: Path) -> None:
    """transformers would draw one at random."""
    folder = make.changed(
        checkpoints / "llama-plain", tmp_path / "headless", tensors=lambda t: t.pop(HEAD)
    )
    line = refusal(target_arguments(folder))
    assert HEAD in line and "tie_word_embeddings" in line


# Files.


@pytest.mark.parametrize("first", [True, False])
def test_the_index_chooses_between_shards(first: bool, checkpoints: Path, tmp_path: Path) -> None:
    """Every shard also holds wrong copies of another's tensors; so does one that is not named."""
    name = "llama-gqa-tied-shards"
    folder = tmp_path / "copies"
    shutil.copytree(checkpoints / name, folder)
    weight_map = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    shards = sorted(set(weight_map.values()))
    assert len(shards) > 2
    shards = shards if first else shards[::-1]
    original = {shard: load_file(folder / shard) for shard in shards}
    for shard, other in zip(shards[1:], shards[:-1], strict=True):
        wrong = {key: tensor + 1 for key, tensor in original[other].items()}
        save_file({**wrong, **original[shard]}, folder / shard, metadata={"format": "pt"})
    save_file(
        {key: tensor + 1 for tensors in original.values() for key, tensor in tensors.items()},
        folder / ("a.safetensors" if first else "z.safetensors"),
        metadata={"format": "pt"},
    )
    check_served(folder, tmp_path / "up.log", prompts_for(name), like=checkpoints / name)


@pytest.mark.parametrize("shard", ["../llama-plain/model.safetensors", "/etc/hostname", "none"])
def test_shards_that_cannot_be_meant(shard: str, checkpoints: Path, tmp_path: Path) -> None:
    folder = tmp_path / "index"
    shutil.copytree(checkpoints / "llama-gqa-tied-shards", folder)
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"][EMBEDDING] = shard
    index.write_text(json.dumps(content))
    line = refusal(target_arguments(folder))
    assert EMBEDDING in line and shard in line and index.name in line


# What config.json leaves out.


def test_absent_fields_are_the_architectures_defaults(tmp_path: Path) -> None:
    settings = {
        "vocab_size": 300,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 16,
        "sliding_window": None,
    }
    full = make.make("defaults", tmp_path / "full", make.Shape("mistral", settings))

    def leave_out(config: dict[str, Any]) -> None:
        kept = {"architectures", "model_type", "head_dim", "sliding_window", "dtype"}
        kept |= settings.keys() - {"num_key_value_heads"}
        for key in config.keys() - kept:
            del config[key]

    folder = make.changed(full, tmp_path / "bare", leave_out)
    prompts = random_prompts("defaults", 300)
    check_served(folder, tmp_path / "up.log", prompts, context=131072, extra=["--kv_blocks=2000"])


# Contexts.


def test_yarn_as_model_cards_add_it(tmp_path: Path) -> None:
    """max_position_embeddings stays what it was."""
    shape = make.Shape(
        "qwen2",
        {
            "vocab_size": 300,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
        },
    )
    plain = make.make("yarn", tmp_path / "plain", shape)

    def add_yarn(config: dict[str, Any]) -> None:
        del config["rope_parameters"]
        config["rope_theta"] = 10000.0
        config["rope_scaling"] = {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": make.CONTEXT,
        }

    folder = make.changed(plain, tmp_path / "yarn", add_yarn)
    prompts = [*random_prompts("yarn", 300), list(range(2, 300)) * 2]
    assert len(prompts[-1]) > 2 * make.CONTEXT
    context = 4 * make.CONTEXT
    log = check_served(folder, tmp_path / "up.log", prompts, context=context)
    assert "max_context" not in log

    cut = ["--max_context=700"]
    log = check_served(folder, tmp_path / "cut.log", prompts, context=700, extra=cut)
    assert f"--max_context=700 cuts the context of {context} tokens" in log
    log = check_served(
        folder, tmp_path / "more.log", prompts[:1], context=context, extra=["--max_context=9999"]
    )
    assert f"--max_context=9999 is more than the {context} tokens" in log


def test_windows_as_long_as_the_context(checkpoints: Path, tmp_path: Path) -> None:
    name = "mistral-narrow-heads"

    def add_window(config: dict[str, Any]) -> None:
        config["sliding_window"] = 100

    folder = make.changed(checkpoints / name, tmp_path / "window", add_window)
    for arguments in [target_arguments(folder), draft_arguments(folder)]:
        for limit in [[], ["--max_context=101"]]:
            line = refusal([*arguments, *limit])
            assert "sliding_window 100" in line and "--max_context=100" in line
    prompts = [prompt[:99] for prompt in prompts_for(name)]
    check_served(folder, tmp_path / "up.log", prompts, context=100, extra=["--max_context=100"])


# Quantized weights.

QUANTIZED = {
    "fp8": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 128},
    "awq": {"quant_method": "awq", "bits": 4},
    "compressed-tensors": {"quant_method": "compressed-tensors", "format": "int-quantized"},
    "bitsandbytes": {"load_in_8bit": True},
}


@pytest.mark.parametrize("method", QUANTIZED)
def test_quantized_checkpoints_are_refused(method: str, checkpoints: Path, tmp_path: Path) -> None:
    """Even where every tensor could be read: the scales would be missing."""

    def add(config: dict[str, Any]) -> None:
        config["quantization_config"] = QUANTIZED[method]

    folder = make.changed(checkpoints / "llama-plain", tmp_path / "quantized", add)
    for arguments in [target_arguments(folder), draft_arguments(folder)]:
        line = refusal(arguments)
        assert "quantization_config" in line and method in line and "BF16" in line


# Tensors that nothing reads.


@pytest.mark.parametrize(
    "name",
    [
        QUERY + "weight_scale",
        QUERY + "weight_scale_inv",
        QUERY + "bias",
        "model.layers.1.self_attn.q_norm.weight",
        QUERY + "lora_A.weight",
    ],
)
def test_tensors_that_would_matter_are_refused(
    name: str, checkpoints: Path, tmp_path: Path
) -> None:
    def add(tensors: Tensors) -> None:
        tensors[name] = torch.full((4,), 0.5)

    folder = make.changed(checkpoints / "llama-plain", tmp_path / "more", tensors=add)
    assert name in refusal(target_arguments(folder))


def test_a_cluster_is_refused_as_a_whole(checkpoints: Path, tmp_path: Path) -> None:
    """One line, not one for each process; of the draft's model too."""
    plain = checkpoints / "llama-plain"

    def add(tensors: Tensors) -> None:
        tensors[QUERY + "weight_scale"] = torch.ones(4)

    scaled = make.changed(plain, tmp_path / "scaled", tensors=add)
    for model, draft in [(scaled, plain), (plain, scaled)]:
        arguments = ["up", f"--model={model}", f"--draft_model={draft}"]
        line = refusal([*arguments, f"--listen={free_address()}"])
        assert QUERY + "weight_scale" in line and str(scaled) in line


def test_float8_weights_are_refused(checkpoints: Path, tmp_path: Path) -> None:
    def convert(tensors: Tensors) -> None:
        tensors[QUERY + "weight"] = tensors[QUERY + "weight"].to(torch.float8_e4m3fn)

    folder = make.changed(checkpoints / "llama-plain", tmp_path / "float8", tensors=convert)
    line = refusal(target_arguments(folder))
    assert QUERY + "weight" in line and "F8_E4M3" in line and "BF16" in line


def test_tensors_that_do_not_matter_are_ignored(checkpoints: Path, tmp_path: Path) -> None:
    name = "llama-plain"

    def add(tensors: Tensors) -> None:
        tensors["model.layers.2.eh_proj.weight"] = torch.ones(4)
        tensors["model.layers.2.enorm.weight"] = torch.ones(4)
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
        tensors[QUERY + "bias"] = torch.zeros(64)

    folder = make.changed(checkpoints / name, tmp_path / "more", tensors=add)
    log = check_served(folder, tmp_path / "up.log", prompts_for(name), like=checkpoints / name)
    assert log.count("are not part of the model and ignored") == 1
    assert "3 tensors, the first 'model.layers.0.self_attn.q_proj.bias'" in log
