"""An EAGLE-3 drafter (arXiv 2503.01840), trained as it drafts: on its own hidden states.

Row i of a text stands for the token i + 1, whose target states do not exist yet, and has the states
of token i. A chain begins at each row: its first step proposes token i + 2, and each further step
takes the hidden state of the step before and the token it should have proposed. Such a step
attends to the text's rows up to i and to the chain's own earlier steps.

The modules' names are those of the published "speculators" layout.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
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
from train_demo_models import VOCABULARY

STATES = [1, 3, 5]  # inputs of these layers of the target, of six
DRAFT_VOCABULARY = 2048  # the most frequent tokens
DEPTH = 5  # steps of a chain
DECAY = 0.8  # of the loss from one step to the next
LENGTH = 128
ROWS = 16


class Attention(Projections):
    """Over [embedding, hidden], each of which is H wide."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config, 2 * config.hidden_size)

    def forward(self, x: Tensor, step: int, keys: list[Tensor], values: list[Tensor]) -> Tensor:
        """Appends this step's keys and values; the first step's are the text's rows."""
        rows = torch.arange(x.shape[1])
        q = rotate(self.split(self.q_proj(x)), rows + step, self.theta)
        k = rotate(self.split(self.k_proj(x)), rows + step, self.theta)
        keys.append(k.repeat_interleave(self.groups, dim=1))
        values.append(self.split(self.v_proj(x)).repeat_interleave(self.groups, dim=1))

        later = torch.ones(len(rows), len(rows), dtype=torch.bool).triu(1)
        of_text = (q @ keys[0].mT).masked_fill(later, float("-inf"))
        of_chain = [(q * key).sum(-1, keepdim=True) for key in keys[1:]]
        scores = torch.cat([of_text, *of_chain], dim=-1).float() * self.head_dim**-0.5
        weights = scores.softmax(-1).to(q.dtype)
        seen = weights[..., : len(rows)] @ values[0]
        for j, value in enumerate(values[1:], start=len(rows)):
            seen = seen + weights[..., j : j + 1] * value
        out: Tensor = self.o_proj(seen.transpose(1, 2).flatten(-2))
        return out


class Layer(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.hidden_norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = Mlp(config.hidden_size, config.intermediate_size)

    def forward(
        self, embedded: Tensor, hidden: Tensor, step: int, keys: list[Tensor], values: list[Tensor]
    ) -> Tensor:
        residual = self.hidden_norm(hidden)  # norm_before_residual
        x = torch.cat([self.input_layernorm(embedded), residual], dim=-1)
        residual = residual + self.self_attn(x, step, keys, values)
        out: Tensor = residual + self.mlp(self.post_attention_layernorm(residual))
        return out


class Eagle3(nn.Module):
    def __init__(self, config: LlamaConfig, draft_ids: Tensor) -> None:
        super().__init__()
        self.fc = nn.Linear(len(STATES) * config.hidden_size, config.hidden_size, bias=False)
        self.layers = nn.ModuleList([Layer(config)])
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, len(draft_ids), bias=False)
        self.d2t: Tensor
        self.t2d: Tensor
        self.register_buffer("d2t", draft_ids - torch.arange(len(draft_ids)))
        self.register_buffer("t2d", torch.zeros(VOCABULARY, dtype=torch.bool))
        self.t2d[draft_ids] = True

    def draft_ids(self) -> Tensor:
        return self.d2t + torch.arange(len(self.d2t))

    def forward(self, states: Tensor, embedded: Tensor) -> list[Tensor]:
        """By step, what lm_head takes, [batch, rows, H].

        states [batch, rows, 3H] of tokens 0 to rows - 1; embedded [batch, rows + steps - 1, H] are
        tokens 1 and up.
        """
        rows = states.shape[1]
        hidden, out = self.fc(states).float(), []
        keys: list[Tensor] = []
        values: list[Tensor] = []
        for step in range(embedded.shape[1] - rows + 1):
            hidden = self.layers[0](embedded[:, step : step + rows], hidden, step, keys, values)
            out.append(self.norm(hidden))
        return out


def frequent_tokens(text: Text) -> Tensor:
    """Sorted, as published drafters have them."""
    seen = torch.cat([text.corpus, text.written.flatten()])
    counts = torch.bincount(seen, minlength=VOCABULARY)
    return counts.topk(DRAFT_VOCABULARY).indices.sort().values


def make_eagle3(target: LlamaForCausalLM, text: Text) -> Eagle3:
    draft_ids = frequent_tokens(text)
    eagle = Eagle3(target.config, draft_ids)
    with torch.no_grad():
        eagle.lm_head.weight.copy_(target.lm_head.weight[draft_ids])
        eagle.norm.weight.copy_(target.model.norm.weight)
    return eagle


def loss_of_batch(target: LlamaForCausalLM, eagle: Eagle3, text: Text) -> Tensor:
    """Cross-entropy to the target's distribution among the draft vocabulary, step by step."""
    tokens = text.batch(ROWS, LENGTH + DEPTH)
    with torch.autocast("cpu", torch.bfloat16):
        states, last = states_of(target, tokens, STATES)
        embedded = target.model.embed_tokens(tokens[:, 1:])
        by_step = eagle(states[:, :LENGTH], embedded)
    wanted_head = target.lm_head.weight[eagle.draft_ids()]
    loss = torch.zeros(())
    for step, hidden in enumerate(by_step):
        wanted = last[:, 1 + step : 1 + step + LENGTH]
        of_step, _ = distill_loss(hidden, eagle.lm_head.weight, wanted, wanted_head)
        loss = loss + DECAY**step * of_step
    return loss / sum(DECAY**step for step in range(DEPTH))


@torch.no_grad()
def propose(target: LlamaForCausalLM, eagle: Eagle3, rows: Tensor, first: int) -> Tensor:
    states, _ = states_of(target, rows[:, :-1], STATES)
    embedded = target.model.embed_tokens(pad(rows[:, 1:], (0, DEPTH - 1)))
    by_step = torch.stack(eagle(states, embedded), dim=2)[:, first - 2 : -1]
    return eagle.draft_ids()[eagle.lm_head(by_step).argmax(-1)]


def config_of(target: LlamaForCausalLM) -> dict[str, Any]:
    layer = target.config.to_dict() | {"num_hidden_layers": 1, "tie_word_embeddings": False}
    for not_of_layer in ("_name_or_path", "architectures", "dtype", "transformers_version"):
        layer.pop(not_of_layer, None)
    return {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "transformer_layer_config": layer,
        "draft_vocab_size": DRAFT_VOCABULARY,
        "target_hidden_size": target.config.hidden_size,
        "eagle_aux_hidden_state_layer_ids": STATES,
        "norm_before_residual": True,
        "norm_before_fc": False,
        "fc_norm": False,
        "norm_output": False,
        "embed_requires_grad": False,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "proposal_type": "greedy",
                    "speculative_tokens": DEPTH,
                    "verifier_accept_k": 1,
                    "accept_tolerance": 0.0,
                }
            ],
            "verifier": {"name_or_path": "models/target", "architectures": ["LlamaForCausalLM"]},
        },
    }


def save_eagle3(eagle: Eagle3, target: LlamaForCausalLM, folder: Path) -> None:
    """Without the embedding, which is the target's."""
    save_drafter(eagle, config_of(target), folder)


def train_eagle3(
    target: LlamaForCausalLM, eagle: Eagle3, text: Text, held_out: HeldOut, steps: int
) -> dict[str, Any]:
    """In place; what was reached."""
    figures = train_and_measure(
        eagle,
        lambda: loss_of_batch(target, eagle, text),
        lambda rows, first: propose(target, eagle, rows, first),
        held_out,
        steps,
        2e-3,
        "eagle3",
    )
    about = (
        f"EAGLE-3, one layer on the inputs of the target's layers {STATES}, "
        f"draft vocabulary of {DRAFT_VOCABULARY}"
    )
    return {"about": about} | figures
