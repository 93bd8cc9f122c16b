"""What the drafters' layers share, by the names that published checkpoints have for it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import silu
from transformers import LlamaConfig


def rotate(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Rotary embedding of x [..., rows, head_dim], whose halves are pairs."""
    half = x.shape[-1] // 2
    frequency = theta ** (-torch.arange(half) / half)
    angle = positions[:, None] * frequency
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class Projections(nn.Module):
    """What an attention of grouped heads projects, of inputs of any width."""

    def __init__(self, config: LlamaConfig, inputs: int) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.groups = config.num_attention_heads // config.num_key_value_heads
        self.theta = config.rope_parameters["rope_theta"]
        width, kv_width = (
            n * config.head_dim for n in (config.num_attention_heads, config.num_key_value_heads)
        )
        self.q_proj = nn.Linear(inputs, width, bias=False)
        self.k_proj = nn.Linear(inputs, kv_width, bias=False)
        self.v_proj = nn.Linear(inputs, kv_width, bias=False)
        self.o_proj = nn.Linear(width, config.hidden_size, bias=False)

    def split(self, x: Tensor) -> Tensor:
        """[batch, rows, width] to [batch, heads, rows, head_dim]."""
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)


class Mlp(nn.Module):
    def __init__(self, hidden: int, intermediate: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, intermediate, bias=False)
        self.up_proj = nn.Linear(hidden, intermediate, bias=False)
        self.down_proj = nn.Linear(intermediate, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))
        return out
