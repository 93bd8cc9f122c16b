"""A DSpark drafter: one pass over a block of rows, then a small sequential correction.

The last token whose successor is not known, the anchor, and masks behind it are a block's rows. Row
j proposes the token j + 1 further. All rows of a block see each other, and the target's hidden
states of the tokens before the anchor, through keys and values alone. A Markov head then adds to
the logits of each row what the token before it, once chosen, says of the next; and a confidence
head says how likely the row's token is to be accepted if those before it are.

The modules' names are those of SpecForge's published layout. Embedding and output head are the
target's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from transformers import LlamaConfig, LlamaForCausalLM

from demo_drafters.distill import (
    HeldOut,
    Text,
    distill_loss,
    save_drafter,
    states_of,
    train_and_measure,
)
from demo_drafters.layers import Mlp, Projections, rotate
from train_demo_models import VOCABULARY, batch_of

BLOCK = 7  # rows, and tokens of a pass
LAYERS = 2
INTERMEDIATE = 512
MARKOV_RANK = 32
TARGET_LAYERS = [0, 2, 4]  # read behind these layers of the target, of six
MASK = VOCABULARY - 1  # the tokenizer's last and rarest token, as in pard.py
# The weight of a row's loss, and how many blocks it is of, as a part of the row's before: a later
# row's token is used only if those before it are accepted.
DECAY = 0.6
CONFIDENCE_WEIGHT = 0.1
ROWS, LENGTH = 16, 160
# Some batches are of long texts, which only the corpus has: what has been trained on short ones
# alone is accepted less with long prompts.
LONG_ROWS, LONG_LENGTH = 4, 640
LONG_SHARE = 0.3
BLOCKS = 768  # of a batch, among its texts


class Attention(Projections):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config, config.hidden_size)
        self.q_norm = nn.RMSNorm(config.head_dim, config.rms_norm_eps)
        self.k_norm = nn.RMSNorm(config.head_dim, config.rms_norm_eps)

    def keys_values(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        k = rotate(self.k_norm(self.split(self.k_proj(x))), positions, self.theta)
        v = self.split(self.v_proj(x))
        return k.repeat_interleave(self.groups, dim=1), v.repeat_interleave(self.groups, dim=1)

    def forward(self, x: Tensor, context: Tensor, anchors: Tensor) -> Tensor:
        """x: [batch, blocks * BLOCK, H]; context: [batch, tokens, H], fused target states."""
        tokens = torch.arange(context.shape[1])
        at = (anchors[:, None] + torch.arange(BLOCK)).flatten()
        q = rotate(self.q_norm(self.split(self.q_proj(x))), at, self.theta)
        context_k, context_v = self.keys_values(context, tokens)
        block_k, block_v = self.keys_values(x, at)

        not_before = (tokens >= anchors[:, None]).repeat_interleave(BLOCK, dim=0)
        of_context = (q @ context_k.mT).masked_fill(not_before, float("-inf"))
        q_blocks, k_blocks, v_blocks = (t.unflatten(2, (-1, BLOCK)) for t in (q, block_k, block_v))
        of_block = (q_blocks @ k_blocks.mT).flatten(2, 3)
        scores = torch.cat([of_context, of_block], dim=-1).float() * self.head_dim**-0.5
        weights = scores.softmax(-1).to(x.dtype)
        in_block = weights[..., len(tokens) :].unflatten(2, (-1, BLOCK)) @ v_blocks
        seen = weights[..., : len(tokens)] @ context_v + in_block.flatten(2, 3)
        out: Tensor = self.o_proj(seen.transpose(1, 2).flatten(-2))
        return out


class Layer(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = Mlp(config.hidden_size, INTERMEDIATE)

    def forward(self, x: Tensor, context: Tensor, anchors: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), context, anchors)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class MarkovHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(VOCABULARY, MARKOV_RANK)
        self.markov_w2 = nn.Linear(MARKOV_RANK, VOCABULARY, bias=False)


class ConfidenceHead(nn.Module):
    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.proj = nn.Linear(inputs, 1)


class DSpark(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.fc = nn.Linear(len(TARGET_LAYERS) * hidden, hidden, bias=False)
        self.hidden_norm = nn.RMSNorm(hidden, config.rms_norm_eps)
        self.layers = nn.ModuleList([Layer(config) for _ in range(LAYERS)])
        self.norm = nn.RMSNorm(hidden, config.rms_norm_eps)
        self.markov_head = MarkovHead()
        self.confidence_head = ConfidenceHead(hidden + MARKOV_RANK)

    def forward(self, states: Tensor, embedded: Tensor, anchors: Tensor) -> Tensor:
        """[batch, blocks, BLOCK, H], which the target's head takes.

        states: [batch, tokens, len(TARGET_LAYERS) * H]; embedded: as the result; anchors [blocks].
        """
        context = self.hidden_norm(self.fc(states))
        x = embedded.flatten(1, 2)
        for layer in self.layers:
            x = layer(x, context, anchors)
        out: Tensor = self.norm(x).unflatten(1, (-1, BLOCK))
        return out

    def with_token_before(self, hidden: Tensor, before: Tensor) -> Tensor:
        """[.., H + MARKOV_RANK]: what `head_of` and the confidence head take."""
        return torch.cat([hidden, self.markov_head.markov_w1(before)], dim=-1)

    def head_of(self, target: LlamaForCausalLM) -> Tensor:
        """[vocabulary, H + MARKOV_RANK]: gives the target's head's logits and the correction."""
        return torch.cat([target.lm_head.weight, self.markov_head.markov_w2.weight], dim=-1)

    def confidence(self, inputs: Tensor) -> Tensor:
        """As a logit, [..]."""
        out: Tensor = self.confidence_head.proj(inputs).squeeze(-1)
        return out


def make_dspark(target: LlamaForCausalLM) -> DSpark:
    dspark = DSpark(target.config)
    with torch.no_grad():
        dspark.norm.weight.copy_(target.model.norm.weight)
        nn.init.normal_(dspark.markov_head.markov_w1.weight, std=0.1)
        nn.init.zeros_(dspark.markov_head.markov_w2.weight)
    return dspark


def run_blocks(
    target: LlamaForCausalLM, dspark: DSpark, tokens: Tensor, anchors: Tensor
) -> tuple[Tensor, Tensor]:
    """[batch, blocks, BLOCK, H] of the blocks, and the target's last states [batch, tokens, H]."""
    states, last = states_of(target, tokens, [layer + 1 for layer in TARGET_LAYERS])
    ids = torch.full((len(tokens), len(anchors), BLOCK), MASK)
    ids[:, :, 0] = tokens[:, anchors]
    return dspark(states, target.model.embed_tokens(ids), anchors), last


def tokens_of_batch(text: Text) -> Tensor:
    if torch.rand(()) < LONG_SHARE:
        return batch_of(text.corpus, LONG_ROWS, LONG_LENGTH - 1)
    return text.batch(ROWS, LENGTH)


def loss_of_batch(target: LlamaForCausalLM, dspark: DSpark, text: Text) -> Tensor:
    """Cross-entropy to the target's distribution, and the confidence's to the rows' overlap."""
    tokens = tokens_of_batch(text)
    anchors = torch.randperm(tokens.shape[1] - BLOCK + 1)[: BLOCKS // len(tokens)]
    with torch.autocast("cpu", torch.bfloat16):
        hidden, last = run_blocks(target, dspark, tokens, anchors)
    head, loss = dspark.head_of(target), torch.zeros(())
    for j in range(BLOCK):
        weight = DECAY**j
        here = anchors[: round(len(anchors) * weight)] + j
        inputs = dspark.with_token_before(hidden[:, : len(here), j].float(), tokens[:, here])
        of_row, overlap = distill_loss(inputs, head, last[:, here], target.lm_head.weight)
        of_confidence = binary_cross_entropy_with_logits(dspark.confidence(inputs), overlap)
        loss = loss + weight * (of_row + CONFIDENCE_WEIGHT * of_confidence)
    return loss / sum(DECAY**j for j in range(BLOCK))


@torch.no_grad()
def propose(target: LlamaForCausalLM, dspark: DSpark, rows: Tensor, first: int) -> Tensor:
    anchors = torch.arange(first - 1, rows.shape[1] - 1)
    hidden, _ = run_blocks(target, dspark, rows, anchors)
    head, proposed = dspark.head_of(target), [rows[:, anchors]]
    for j in range(BLOCK):
        inputs = dspark.with_token_before(hidden[:, :, j], proposed[-1])
        proposed.append((inputs @ head.T).argmax(-1))
    return torch.stack(proposed[1:], dim=-1)


@torch.no_grad()
def confidence_error(target: LlamaForCausalLM, dspark: DSpark, held_out: HeldOut) -> list[float]:
    """By depth, mean |confidence - overlap| on held-out text."""
    anchors = torch.arange(0, held_out.text.shape[1] - BLOCK + 1, 4)
    hidden, last = run_blocks(target, dspark, held_out.text, anchors)
    errors = []
    for j in range(BLOCK):
        inputs = dspark.with_token_before(hidden[:, :, j], held_out.text[:, anchors + j])
        wanted = last[:, anchors + j]
        _, overlap = distill_loss(inputs, dspark.head_of(target), wanted, target.lm_head.weight)
        errors.append((dspark.confidence(inputs).sigmoid() - overlap).abs().mean().item())
    return [round(error, 3) for error in errors]


def config_of(target: LlamaForCausalLM) -> dict[str, Any]:
    c = target.config
    return {
        "architectures": ["DSparkDraftModel"],
        "model_type": "qwen3",
        "block_size": BLOCK,
        "num_target_layers": c.num_hidden_layers,
        "dflash_config": {
            "mask_token_id": MASK,
            "target_layer_ids": TARGET_LAYERS,
            "projector_type": "dspark",
            "markov_rank": MARKOV_RANK,
            "markov_head_type": "vanilla",
            "enable_confidence_head": True,
            "confidence_head_with_markov": True,
        },
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": c.bos_token_id,
        "eos_token_id": c.eos_token_id,
        "dtype": "bfloat16",
        "head_dim": c.head_dim,
        "hidden_act": "silu",
        "hidden_size": c.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": INTERMEDIATE,
        "layer_types": ["full_attention"] * LAYERS,
        "max_position_embeddings": c.max_position_embeddings,
        "num_attention_heads": c.num_attention_heads,
        "num_hidden_layers": LAYERS,
        "num_key_value_heads": c.num_key_value_heads,
        "rms_norm_eps": c.rms_norm_eps,
        "rope_theta": c.rope_parameters["rope_theta"],
        "rope_scaling": None,
        "sliding_window": None,
        "use_sliding_window": False,
        "tie_word_embeddings": False,
        "use_cache": True,
        "vocab_size": VOCABULARY,
    }


def train_dspark(
    target: LlamaForCausalLM, dspark: DSpark, text: Text, held_out: HeldOut, steps: int
) -> dict[str, Any]:
    """In place; what was reached."""
    figures = train_and_measure(
        dspark,
        lambda: loss_of_batch(target, dspark, text),
        lambda rows, first: propose(target, dspark, rows, first),
        held_out,
        steps,
        2e-3,
        "dspark",
    )
    about = (
        f"DSpark, a block of {BLOCK} rows in {LAYERS} layers on the states behind the target's "
        f"layers {TARGET_LAYERS}, Markov head of rank {MARKOV_RANK}, confidence head"
    )
    return (
        {"about": about}
        | figures
        | {"confidence_error": confidence_error(target, dspark, held_out)}
    )


def save_dspark(dspark: DSpark, target: LlamaForCausalLM, folder: Path) -> None:
    """Without embedding and head, which are the target's."""
    save_drafter(dspark, config_of(target), folder)
