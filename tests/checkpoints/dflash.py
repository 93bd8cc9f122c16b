"""The forward pass of DFlash and DSpark drafters, as plain as can be: what SpecFabric's is compared
with. Rotary embeddings, and the target whose hidden states are read, are those of transformers. It
agrees within 5e-6 with the model definitions of dflash 0.1.0, speculators 0.9.0, DeepSpec and
SpecForge. But for one thing: in training, speculators measures the window of all rows from the
anchor, and servers measure it from each row, as the others do and this does.

A block is the newest committed token, its anchor, whose target states do not exist yet, and masks
behind it. Its rows see the tokens before the anchor through keys and values that are projected from
the target's states, and one another.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn import functional
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from dflash_shapes import Drafter
from eagle3 import Target, load_tensors


@dataclass
class Block:
    logits: torch.Tensor  # [levels][vocabulary]; -inf for tokens that the drafter does not have
    confidences: torch.Tensor | None  # [levels], from 0 to 1


class Dflash:
    def __init__(self, folder: Path, drafter: Drafter, target: Target) -> None:
        self.tensors = load_tensors(folder)
        self.means = drafter.means
        c = drafter.layers
        self.layers = c["num_hidden_layers"]
        self.size = c["head_dim"]
        self.vocabulary = drafter.vocabulary
        self.embedding = self.tensors.get("embed_tokens.weight", target.embedding)
        self.head = self.tensors.get("lm_head.weight", target.head)
        self.ids = torch.arange(len(self.head))
        if "d2t" in self.tensors:
            self.ids = self.ids + self.tensors["d2t"]
        theta = c.get("rope_theta") or c.get("rope_parameters", {}).get("rope_theta", 10000.0)
        rope = {"rope_type": "default", "rope_theta": theta}
        self.rotary = LlamaRotaryEmbedding(LlamaConfig(head_dim=self.size, rope_parameters=rope))

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        weight = self.tensors[f"{name}.weight"]
        return functional.rms_norm(x, weight.shape, weight, eps=1e-5)

    def linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.linear(
            x, self.tensors[f"{name}.weight"], self.tensors.get(f"{name}.bias")
        )

    @torch.no_grad()
    def draft(self, states: torch.Tensor, anchor: int, path: list[int]) -> Block:
        """The block of a token behind the rows of `states`, [rows][boundaries][target's hidden].

        Level n is given that path[:n] were drafted in the levels before it.
        """
        context = self.norm(self.linear(states.flatten(1), "fc"), "hidden_norm")
        outputs = self.outputs(context, anchor)
        if not self.means.from_anchor:
            outputs = outputs[1:]
        return self.walk(outputs, anchor, path)

    def outputs(self, context: torch.Tensor, anchor: int) -> torch.Tensor:
        """What the output head takes, [rows of the block][hidden]."""
        tokens = [anchor] + [self.means.mask] * (self.means.block - 1)
        residual = self.embedding[tokens]
        for i in range(self.layers):
            x = self.norm(residual, f"layers.{i}.input_layernorm")
            residual = residual + self.attend(x, context, i)
            x = self.norm(residual, f"layers.{i}.post_attention_layernorm")
            gate = functional.silu(self.linear(x, f"layers.{i}.mlp.gate_proj"))
            up = self.linear(x, f"layers.{i}.mlp.up_proj")
            residual = residual + self.linear(gate * up, f"layers.{i}.mlp.down_proj")
        return self.norm(residual, "norm")

    def attend(self, x: torch.Tensor, context: torch.Tensor, layer: int) -> torch.Tensor:
        name = f"layers.{layer}.self_attn"

        def heads(rows: torch.Tensor, projection: str) -> torch.Tensor:
            """[1][heads][rows][size], normed where there is a norm."""
            split = self.linear(rows, f"{name}.{projection}_proj").unflatten(-1, (-1, self.size))
            if projection != "v":
                split = self.norm(split, f"{name}.{projection}_norm")
            return split.transpose(0, 1)[None]

        seen = torch.cat([context, x])
        cos, sin = self.rotary(x, torch.arange(len(seen))[None])
        key, _ = apply_rotary_pos_emb(heads(seen, "k"), heads(seen, "k"), cos, sin)
        first = len(context)
        query, _ = apply_rotary_pos_emb(
            heads(x, "q"), heads(x, "q"), cos[:, first:], sin[:, first:]
        )
        attended = functional.scaled_dot_product_attention(
            query,
            key,
            heads(seen, "v"),
            attn_mask=self.visible(first, layer),
            enable_gqa=True,
        )
        return self.linear(attended[0].transpose(0, 1).flatten(1), f"{name}.o_proj")

    def visible(self, first: int, layer: int) -> torch.Tensor:
        """[rows][positions], of the block that begins at position `first`."""
        rows = torch.arange(first, first + self.means.block)[:, None]
        positions = torch.arange(first + self.means.block)[None, :]
        visible = (positions <= rows) | torch.tensor(not self.means.is_causal(layer))
        window = self.means.window(layer)
        if window is not None:
            visible = visible & ((positions - rows).abs() < window)
        return visible

    def walk(self, outputs: torch.Tensor, anchor: int, path: list[int]) -> Block:
        """From level to level, each corrected by the token of the one before."""
        logits = torch.full((len(outputs), self.vocabulary), -torch.inf)
        confidences = []
        state = torch.zeros(self.means.rank)
        for level, output in enumerate(outputs):
            scores = output @ self.head.T
            features = [output]
            if self.means.markov is not None:
                before = anchor if level == 0 else path[level - 1]
                embedded = self.tensors["markov_head.markov_w1.weight"][before]
                latent, state = self.latent(output, embedded, state)
                scores = scores + self.linear(latent, "markov_head.markov_w2")
                if self.means.confidence_with_markov:
                    features.append(embedded)
            logits[level, self.ids] = scores
            if self.means.confidence:
                confidences.append(self.linear(torch.cat(features), "confidence_head.proj"))
        return Block(logits, torch.cat(confidences).sigmoid() if confidences else None)

    def latent(
        self, output: torch.Tensor, embedded: torch.Tensor, state: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What corrects a level's logits, [rank], and the next level's state."""
        if self.means.markov == "gated":
            gate = self.linear(torch.cat([output, embedded]), "markov_head.gate_proj").sigmoid()
            return gate * embedded, state
        if self.means.markov == "rnn":
            joint = torch.cat([state, embedded, output])
            gate, candidate, out = self.linear(joint, "markov_head.joint_proj").chunk(3)
            gate = gate.sigmoid()
            return out.tanh(), gate * state + (1 - gate) * candidate.tanh()
        return embedded, state
