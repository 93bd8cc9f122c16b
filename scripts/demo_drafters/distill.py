"""What training every drafter needs: text, the loss against the target, steps and figures."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import one_hot
from transformers import DynamicCache, LlamaForCausalLM

from train_demo_models import batch_of

PROMPT = 32  # tokens of a text before those that the target generated
WRITTEN = 128  # tokens that the target generated


@torch.no_grad()
def generate(
    target: LlamaForCausalLM, prompts: Tensor, count: int, temperature: Tensor | None = None
) -> Tensor:
    """`prompts` and `count` tokens more; greedy where the row's temperature is 0, or without."""
    cache, rows, new = DynamicCache(config=target.config), prompts, prompts
    for _ in range(count):
        with torch.autocast("cpu", torch.bfloat16):
            out = target(new, past_key_values=cache, use_cache=True, logits_to_keep=1)
        logits = out.logits[:, -1].float()
        new = logits.argmax(-1, keepdim=True)
        if temperature is not None:
            heat = temperature[:, None]
            sampled = torch.multinomial((logits / heat.clamp(min=1e-3)).softmax(-1), 1)
            new = torch.where(heat > 0, sampled, new)
        rows = torch.cat([rows, new], dim=1)
    return rows


@dataclass
class Text:
    """Half of each batch is the corpus, half what the target writes, as that is what it serves."""

    corpus: Tensor  # [tokens], one stream
    written: Tensor  # [rows, PROMPT + WRITTEN]

    def batch(self, rows: int, length: int) -> Tensor:
        written = self.written[torch.randint(0, len(self.written), (rows // 2,))]
        start = int(torch.randint(0, written.shape[1] - length + 1, ()))
        corpus = batch_of(self.corpus, rows - rows // 2, length - 1)
        return torch.cat([corpus, written[:, start : start + length]])


def write_text(target: LlamaForCausalLM, corpus: Tensor, rows: int) -> Text:
    written = []
    for _ in range(0, rows, 256):
        prompts = batch_of(corpus, 256, PROMPT - 1)
        temperature = (torch.arange(256) % 2).float()  # greedy and T = 1 in turn
        written.append(generate(target, prompts, WRITTEN, temperature))
    return Text(corpus, torch.cat(written))


class DistillLoss(torch.autograd.Function):
    """Mean cross-entropy to softmax(wanted @ wanted_head^T), and to the tokens that came.

    Also, by row, how much of the two distributions overlaps (1 - TV): the share of tokens sampled
    from the one that rejection sampling accepts for the other.

    The vocabulary is large beside these models. So logits exist only for a few rows at a time,
    which then stay in the processor's cache, and the gradient is computed along with the loss.
    """

    CHUNK = 128

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,  # [rows, H]
        head: Tensor,  # [vocabulary, H]
        wanted: Tensor,  # [rows, H], the target's last hidden states
        wanted_head: Tensor,  # [vocabulary, H]
        truth: Tensor | None,  # [rows]
        truth_weight: float,
    ) -> tuple[Tensor, Tensor]:
        low = [t.detach().to(torch.bfloat16) for t in (hidden, head, wanted, wanted_head)]
        hidden16, head16, wanted16, wanted_head16 = low
        d_hidden = torch.empty(hidden.shape)
        d_head = torch.zeros(head.shape)
        total, rows = torch.zeros(()), len(hidden)
        overlap = torch.empty(rows)
        for begin in range(0, rows, DistillLoss.CHUNK):
            chunk = slice(begin, begin + DistillLoss.CHUNK)
            goal = (wanted16[chunk] @ wanted_head16.T).float().softmax(-1)
            log_q = (hidden16[chunk] @ head16.T).float().log_softmax(-1)
            q = log_q.exp()
            overlap[chunk] = torch.minimum(goal, q).sum(-1)
            d_logits = q.sub_(goal)
            total -= (goal * log_q).sum()
            if truth is not None:
                came = one_hot(truth[chunk], len(head))
                total -= truth_weight * (came * log_q).sum()
                d_logits += truth_weight * (log_q.exp_() - came)
            d_logits16 = d_logits.div_(rows).to(torch.bfloat16)
            d_hidden[chunk] = (d_logits16 @ head16).float()
            d_head += (d_logits16.T @ hidden16[chunk]).float()
        ctx.save_for_backward(d_hidden.to(hidden.dtype), d_head.to(head.dtype))
        ctx.mark_non_differentiable(overlap)
        return total / rows, overlap

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        d_hidden, d_head = ctx.saved_tensors
        return grads[0] * d_hidden, grads[0] * d_head, None, None, None, None


def distill_loss(
    hidden: Tensor,
    head: Tensor,
    wanted: Tensor,
    wanted_head: Tensor,
    truth: Tensor | None = None,
    truth_weight: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """The loss and the rows' overlap, whatever dimensions stand before the last."""
    flat_truth = None if truth is None else truth.flatten()
    loss, overlap = DistillLoss.apply(
        hidden.flatten(0, -2), head, wanted.flatten(0, -2), wanted_head, flat_truth, truth_weight
    )
    return loss, overlap.unflatten(0, hidden.shape[:-1])


@torch.no_grad()
def states_of(target: LlamaForCausalLM, tokens: Tensor, layers: list[int]) -> tuple[Tensor, Tensor]:
    """The inputs of these layers, one after the other, and the states after the last norm."""
    out = target.model(tokens, use_cache=False, output_hidden_states=True)
    return torch.cat([out.hidden_states[i] for i in layers], dim=-1), out.last_hidden_state


def train(
    drafter: torch.nn.Module,
    loss_of_batch: Callable[[], Tensor],
    steps: int,
    peak_lr: float,
    name: str,
    figures: Callable[[], str],
) -> None:
    """In place: AdamW, a short warm-up, then a cosine to a twentieth."""
    trained = [p for p in drafter.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in trained if p.dim() <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=peak_lr, betas=(0.9, 0.95))
    begin, mean = time.monotonic(), 0.0
    for step in range(steps):
        warm = min(1.0, (step + 1) / 50)
        lr = peak_lr * warm * (0.05 + 0.95 * (1 + math.cos(math.pi * step / steps)) / 2)
        for group in optimizer.param_groups:
            group["lr"] = lr
        loss = loss_of_batch()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        mean += (loss.item() - mean) / min(step + 1, 50)
        if step % 20 == 0:
            seconds = (time.monotonic() - begin) / (step + 1)
            shown = figures() if step % 200 == 0 else ""
            print(
                f"{name}: step {step} loss {mean:.3f}, {seconds:.2f} s a step {shown}", flush=True
            )


# Drafts of every token of rows [rows, length] from `first` on: [rows, length - first, depth], where
# [.., i, d] is proposed for the place first + i + d with the text before place first + i known.
Propose = Callable[[Tensor, int], Tensor]


@dataclass
class HeldOut:
    """Text that no drafter was trained on, and what the target says about it."""

    text: Tensor  # [rows, length] of the corpus
    likeliest: Tensor  # [rows, length]: for each place, the target's arg-max given the text before
    written: Tensor  # [rows, length]: a prompt, and what the target generates greedily


@torch.no_grad()
def held_out_of(target: LlamaForCausalLM, corpus: Tensor) -> HeldOut:
    rows, length = 32, PROMPT + WRITTEN
    starts = torch.linspace(0, len(corpus) - length - 1, rows).long()
    text = torch.stack([corpus[s : s + length] for s in starts.tolist()])
    likeliest = target(text).logits.argmax(-1).roll(1, dims=1)
    return HeldOut(text, likeliest, generate(target, text[:, :PROMPT], WRITTEN))


@torch.no_grad()
def measure(propose: Propose, held_out: HeldOut) -> dict[str, Any]:
    """Agreement with the target by depth, and how many tokens of a greedy round are accepted.

    `agreement` is on the corpus, each depth by itself. `accepted` is on what the target generates:
    by depth, how often the target accepts this token and all before it. `accepted_tokens` is their
    sum, the mean number of draft tokens that a round gives.
    """

    def matches(rows: Tensor, wanted: Tensor) -> Tensor:
        proposed = propose(rows, PROMPT)
        depth = proposed.shape[-1]
        places = rows.shape[1] - PROMPT - depth + 1
        ahead = wanted[:, PROMPT:].unfold(1, depth, 1)
        return (proposed[:, :places] == ahead).float()

    agreement = matches(held_out.text, held_out.likeliest).mean((0, 1))
    accepted = matches(held_out.written, held_out.written).cumprod(-1).mean((0, 1))
    return {
        "agreement": [round(a, 3) for a in agreement.tolist()],
        "accepted": [round(a, 3) for a in accepted.tolist()],
        "accepted_tokens": round(accepted.sum().item(), 3),
    }


def train_and_measure(
    drafter: torch.nn.Module,
    loss_of_batch: Callable[[], Tensor],
    propose: Propose,
    held_out: HeldOut,
    steps: int,
    peak_lr: float,
    name: str,
) -> dict[str, Any]:
    """In place; what was reached."""

    def figures() -> dict[str, Any]:
        return measure(propose, held_out)

    train(drafter, loss_of_batch, steps, peak_lr, name, lambda: show(figures()))
    return figures()


def show(figures: dict[str, Any]) -> str:
    by_depth = " ".join(f"{a:.2f}" for a in figures["agreement"])
    accepted = " ".join(f"{a:.2f}" for a in figures["accepted"])
    return f"agreement {by_depth} | accepted {accepted} = {figures['accepted_tokens']:.2f}"


def save_drafter(drafter: torch.nn.Module, config: dict[str, Any], folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    tensors = {
        name: tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor
        for name, tensor in drafter.state_dict().items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
