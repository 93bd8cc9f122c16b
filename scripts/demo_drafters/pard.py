"""A parallel draft model (PARD, arXiv 2504.18583): one pass proposes several tokens.

Begun as the demo draft, which predicts one token a row. Behind some tokens of each training
sequence, its anchors, stand rows of masks, the j-th of which is to predict the token j further. It
sees the text up to its anchor and the masks before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from demo_drafters.distill import HeldOut, Text, distill_loss, train_and_measure
from train_demo_models import VOCABULARY

LEVELS = 8  # tokens of a pass
# The tokenizer's last and rarest token stands for those that are not known yet, so that target and
# draft have the same vocabulary.
MASK = VOCABULARY - 1
LENGTH = 128
ROWS = 16
ANCHORS = 40  # of a training sequence
# Of the anchors that have a mask at one level, the share that has one at the next, too: the first
# levels count most, as a later one's token is used only if those before it are accepted.
KEPT = 0.8


@dataclass
class Layout:
    """The rows of a pass: tokens, then the masks of each anchor, level by level."""

    anchor: Tensor  # [rows]: the token that the row stands behind; a token's is itself
    level: Tensor  # [rows]: 0 for tokens
    sees: Tensor  # [1, 1, rows, rows]


def layout_of(length: int, anchors: Tensor, kept: float) -> Layout:
    """Of `length` tokens, and masks behind each anchor, behind fewer of them at each level."""
    anchor, level = [torch.arange(length)], [torch.zeros(length, dtype=torch.int64)]
    for of_level in range(1, LEVELS):
        here = anchors[: max(1, round(len(anchors) * kept ** (of_level - 1)))]
        anchor.append(here)
        level.append(torch.full_like(here, of_level))
    return _layout(torch.cat(anchor), torch.cat(level))


def _layout(anchor: Tensor, level: Tensor) -> Layout:
    is_token = level == 0
    tokens_before = is_token[None, :] & (anchor[None, :] <= anchor[:, None])
    own_masks = (
        ~(is_token[None, :] | is_token[:, None])
        & (anchor[None, :] == anchor[:, None])
        & (level[None, :] <= level[:, None])
    )
    return Layout(anchor, level, (tokens_before | own_masks)[None, None])


def hidden_of(draft: LlamaForCausalLM, tokens: Tensor, layout: Layout) -> Tensor:
    """[rows, rows of the layout, H], after the final norm."""
    masks = torch.full((len(tokens), len(layout.level) - tokens.shape[1]), MASK)
    hidden: Tensor = draft.model(
        torch.cat([tokens, masks], dim=1),
        attention_mask=layout.sees.expand(len(tokens), -1, -1, -1),
        position_ids=(layout.anchor + layout.level).expand(len(tokens), -1),
        use_cache=False,
    ).last_hidden_state
    return hidden


@torch.no_grad()
def propose(draft: LlamaForCausalLM, rows: Tensor, first: int) -> Tensor:
    anchors = torch.arange(first - 1, rows.shape[1] - 1)
    layout = layout_of(rows.shape[1], anchors, 1.0)
    hidden = hidden_of(draft, rows, layout)
    by_level = [hidden[:, anchors]] + [hidden[:, layout.level == j] for j in range(1, LEVELS)]
    return (torch.stack(by_level, dim=2) @ draft.lm_head.weight.T).argmax(-1)


def loss_of_batch(target: LlamaForCausalLM, draft: LlamaForCausalLM, text: Text) -> Tensor:
    """Over masks and anchors alike: .2 cross-entropy to the text, and KL to the target."""
    tokens = text.batch(ROWS, LENGTH + 1)
    anchors = torch.randperm(LENGTH - LEVELS)[:ANCHORS]
    layout = layout_of(LENGTH, anchors, KEPT)
    with torch.autocast("cpu", torch.bfloat16):
        hidden = hidden_of(draft, tokens[:, :LENGTH], layout)
        with torch.no_grad():
            wanted = target.model(tokens[:, :LENGTH], use_cache=False).last_hidden_state
    rows = torch.cat([anchors, torch.arange(LENGTH, len(layout.level))])
    place = (layout.anchor + layout.level)[rows]
    head, wanted_head = draft.lm_head.weight, target.lm_head.weight
    truth = tokens[:, place + 1]
    loss, _ = distill_loss(hidden[:, rows], head, wanted[:, place], wanted_head, truth, 0.2)
    return loss


def train_pard(
    target: LlamaForCausalLM, draft: LlamaForCausalLM, text: Text, held_out: HeldOut, steps: int
) -> dict[str, Any]:
    """In place; what was reached."""
    figures = train_and_measure(
        draft,
        lambda: loss_of_batch(target, draft, text),
        lambda rows, first: propose(draft, rows, first),
        held_out,
        steps,
        1e-3,
        "pard",
    )
    draft.config.pard_token = MASK
    about = f"a parallel draft model (PARD), {LEVELS} tokens a pass, begun as `draft`"
    return {"about": about} | figures
