"""The forward pass of MTP drafters, as plain as can be: what SpecFabric's is compared with. Its
layer, the rotary embedding and the target with its last norm are those of transformers. It gives
the bits of the layer classes that MiMo and speculators (August 2026) publish.

A row is the pair of a token and the state of the position before it, at that position.
"""

from __future__ import annotations

import torch
from torch.nn import functional
from transformers import LlamaConfig, PreTrainedConfig, Qwen2Config, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer, Qwen2RotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer, Qwen3RotaryEmbedding

from eagle3 import Target, load_tensors
from make_mtp import Drafter, Folders, layer_fields

_CLASSES = {
    "llama": (LlamaConfig, LlamaDecoderLayer, LlamaRotaryEmbedding),
    "qwen2": (Qwen2Config, Qwen2DecoderLayer, Qwen2RotaryEmbedding),
    "qwen3": (Qwen3Config, Qwen3DecoderLayer, Qwen3RotaryEmbedding),
}


class Mtp:
    def __init__(self, folders: Folders, drafter: Drafter, target: Target) -> None:
        self.target = target
        self.state_first = drafter.in_target
        config_class, layer_class, rotary_class = _CLASSES[drafter.family]
        config: PreTrainedConfig = target.model.config
        if not drafter.in_target:
            config = config_class(**layer_fields(drafter))
        config._attn_implementation = "eager"
        self.rotary = rotary_class(config)
        prefix = f"{drafter.prefix}0."
        tensors = load_tensors(folders.drafter)
        tensors = {
            name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)
        }
        names = ("token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm")
        self.tensors = {name: tensors.pop(f"{name}.weight") for name in names}
        self.layer = layer_class(config, 0).eval()
        self.layer.load_state_dict(tensors)

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        weight = self.tensors[name]
        return functional.rms_norm(x, weight.shape, weight, eps=1e-5)

    @torch.no_grad()
    def fuse(self, states: torch.Tensor) -> torch.Tensor:
        """states: [rows][1][hidden], behind the target's last layer"""
        return self.target.model.model.norm(states[:, 0])

    @torch.no_grad()
    def forward(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        states: torch.Tensor,
        visible: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits [rows][vocabulary], and what each row hands to the next, [rows][hidden]."""
        embedded = self.norm(self.target.embedding[tokens], "token_layernorm")
        normed = self.norm(states, "hidden_layernorm")
        pair = (normed, embedded) if self.state_first else (embedded, normed)
        x = functional.linear(torch.cat(pair, dim=-1), self.tensors["input_proj"])[None]
        mask = torch.zeros(visible.shape).masked_fill(~visible, -torch.inf)[None, None]
        x = self.layer(x, attention_mask=mask, position_embeddings=self.rotary(x, positions[None]))[
            0
        ]
        output = self.norm(x.reshape(len(tokens), -1), "final_layernorm")
        return output @ self.target.head.T, output
