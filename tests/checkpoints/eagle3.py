"""The forward pass of EAGLE-3 drafters (arXiv 2503.01840), as plain as can be: what SpecFabric's
is compared with. Rotary embeddings, and the target whose hidden states are read, are those of
transformers. It agrees with the model definitions of speculators 0.9.0 within 3e-6; they need far
more packages than the tests install.

Rows are all computed anew in each pass, without a cache: a row attends to those that `visible`
says, [rows][rows].
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch.nn import functional
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from make_drafters import Drafter


def load_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of a checkpoint; those of floats as float32."""
    tensors = {k: t for file in folder.glob("*.safetensors") for k, t in load_file(file).items()}
    return {k: t.float() if t.is_floating_point() else t for k, t in tensors.items()}


class Target:
    """A target's hidden states, embedding and output head."""

    def __init__(self, folder: Path) -> None:
        self.model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32
        ).eval()

    @property
    def embedding(self) -> torch.Tensor:
        return self.model.get_input_embeddings().weight

    @property
    def head(self) -> torch.Tensor:
        return self.model.get_output_embeddings().weight

    @torch.no_grad()
    def states(self, tokens: list[int], boundaries: list[int]) -> torch.Tensor:
        """[tokens][boundaries][hidden]: what goes into layer v, or comes out of the last one."""
        with self._streams() as streams:
            self.model(torch.tensor([tokens]))
        return torch.stack([streams[boundary][0] for boundary in boundaries], dim=1)

    @contextmanager
    def _streams(self) -> Iterator[dict[int, torch.Tensor]]:
        """The residual stream at every boundary, filled in as the model runs."""
        streams: dict[int, torch.Tensor] = {}
        layers = self.model.model.layers

        def keep(boundary: int, stream: torch.Tensor | tuple[torch.Tensor, ...]) -> None:
            streams[boundary] = stream if torch.is_tensor(stream) else stream[0]

        handles = [
            layer.register_forward_pre_hook(lambda _, inputs, at=at: keep(at, inputs))
            for at, layer in enumerate(layers)
        ]
        end = len(layers)
        handles.append(layers[-1].register_forward_hook(lambda _, __, output: keep(end, output)))
        yield streams
        for handle in handles:
            handle.remove()


class Eagle3:
    def __init__(self, folder: Path, drafter: Drafter, target: Target) -> None:
        self.tensors = load_tensors(folder)
        self.means = drafter.means
        self.prefix = drafter.first_layer
        c = drafter.layers
        self.layers = c["num_hidden_layers"]
        self.size = c.get("head_dim", c["hidden_size"] // c["num_attention_heads"])
        self.vocabulary = drafter.vocabulary
        self.embedding = self.tensors.get("embed_tokens.weight", target.embedding)
        self.head = self.tensors.get("lm_head.weight", target.head)
        self.ids = torch.arange(len(self.head))
        if "d2t" in self.tensors:
            self.ids = self.ids + self.tensors["d2t"]
        rope = c.get("rope_parameters") or c.get("rope_scaling") or {"rope_type": "default"}
        theta = c.get("rope_theta", rope.get("rope_theta", 10000.0))
        self.rotary = LlamaRotaryEmbedding(
            LlamaConfig(head_dim=self.size, rope_parameters={**rope, "rope_theta": theta})
        )

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        weight = self.tensors[name]
        return functional.rms_norm(x, weight.shape, weight, eps=1e-5)

    def linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.linear(
            x, self.tensors[f"{name}.weight"], self.tensors.get(f"{name}.bias")
        )

    @torch.no_grad()
    def fuse(self, states: torch.Tensor) -> torch.Tensor:
        """states: [rows][boundaries][target's hidden]"""
        if self.means.fc_norm:
            normed = [
                self.norm(states[:, i], f"fc_norm.{i}.weight") for i in range(states.shape[1])
            ]
            states = torch.stack(normed, dim=1)
        joined = states.flatten(1)
        if self.means.norm_before_fc:
            joined = self.norm(joined, "input_norm.weight")
        return self.linear(joined, "fc")

    @torch.no_grad()
    def forward(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        states: torch.Tensor,
        visible: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits [rows][vocabulary], and what each row hands to the next, [rows][hidden].

        states: [rows][hidden], the fused state or what the row before handed on.
        """
        embedded = self.norm(self.embedding[tokens], f"{self.prefix}input_layernorm.weight")
        normed = self.norm(states, f"{self.prefix}hidden_norm.weight")
        residual = normed if self.means.norm_before_residual else states
        inputs = torch.cat([embedded, normed], dim=-1)
        for i in range(self.layers):
            layer = self.prefix if i == 0 else f"layers.{i}."
            if i > 0:
                inputs = self.norm(residual, f"{layer}input_layernorm.weight")
            residual = residual + self.attend(inputs, positions, visible, f"{layer}self_attn.")
            x = self.norm(residual, f"{layer}post_attention_layernorm.weight")
            gate = functional.silu(self.linear(x, f"{layer}mlp.gate_proj"))
            up = self.linear(x, f"{layer}mlp.up_proj")
            residual = residual + self.linear(gate * up, f"{layer}mlp.down_proj")
        output = self.norm(residual, "norm.weight")
        logits = torch.full((len(tokens), self.vocabulary), -torch.inf)
        logits[:, self.ids] = output @ self.head.T
        return logits, output if self.means.norm_output else residual

    def attend(
        self, x: torch.Tensor, positions: torch.Tensor, visible: torch.Tensor, layer: str
    ) -> torch.Tensor:
        def heads(name: str) -> torch.Tensor:
            """[1][heads][rows][size], normed where there is a norm."""
            all_heads = self.linear(x, f"{layer}{name}_proj").unflatten(-1, (-1, self.size))
            if f"{layer}{name}_norm.weight" in self.tensors:
                all_heads = self.norm(all_heads, f"{layer}{name}_norm.weight")
            return all_heads.transpose(0, 1)[None]

        cos, sin = self.rotary(x, positions[None])
        query, key = apply_rotary_pos_emb(heads("q"), heads("k"), cos, sin)
        attended = functional.scaled_dot_product_attention(
            query, key, heads("v"), attn_mask=visible, enable_gqa=True
        )
        return self.linear(attended[0].transpose(0, 1).flatten(1), f"{layer}o_proj")
