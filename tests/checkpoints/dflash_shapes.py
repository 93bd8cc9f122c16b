"""The shapes of the DFlash and DSpark drafters that make_dflash.py makes.

A shape says what its files look like, and apart from that what they mean (`Means`), so that a
reader of the files can be compared with it. Targets are those of make_drafters.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from make_drafters import TARGETS


@dataclass(frozen=True)
class Means:
    """What a drafter computes, as the forward pass of tests/checkpoints/dflash.py needs it."""

    boundaries: list[int]  # boundary v of the target is the input of layer v
    block: int  # rows: the anchor and masks behind it
    mask: int  # token
    # Whether the anchor's row proposes a token. If not, row j proposes the token at its own place.
    from_anchor: bool
    # By layer, or for all layers alike.
    windows: list[int | None] = field(default_factory=lambda: [None])
    causal: list[bool] = field(default_factory=lambda: [False])
    markov: str | None = None  # vanilla, gated or rnn
    rank: int = 0
    confidence: bool = False
    confidence_with_markov: bool = False

    @property
    def levels(self) -> int:
        return self.block if self.from_anchor else self.block - 1

    def window(self, layer: int) -> int | None:
        return self.windows[layer % len(self.windows)]

    def is_causal(self, layer: int) -> bool:
        return self.causal[layer % len(self.causal)]


@dataclass(frozen=True)
class Drafter:
    """One checkpoint: its target, its layers, what else its config.json says, its files.

    `layers` are fields of a Qwen3Config, in config.json itself or, in the layout of speculators, in
    `transformer_layer_config`.
    """

    target: str
    architecture: str
    layers: dict[str, Any]
    config: dict[str, Any]
    means: Means
    draft_vocabulary: int | None = None  # None: the target's, without d2t
    is_whole: bool = False  # has an embedding and a head of its own
    dtype: torch.dtype = torch.float32
    shard_size: int = 1 << 30
    spread: float = 0.15

    @property
    def vocabulary(self) -> int:
        return TARGETS[self.target].settings["vocab_size"]

    @property
    def target_hidden(self) -> int:
        return TARGETS[self.target].settings["hidden_size"]


def _layers(
    hidden: int,
    middle: int,
    layers: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    **others: Any,
) -> dict[str, Any]:
    return {
        "hidden_size": hidden,
        "intermediate_size": middle,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        **others,
    }


SLIDING, FULL = "sliding_attention", "full_attention"


def _sliding(window: int, *types: str) -> dict[str, Any]:
    return {"layer_types": list(types), "sliding_window": window, "use_sliding_window": True}


# As z-lab stores DFlash: nothing but the layers, so that embedding and head are the target's.
_Z_LAB = {
    "dflash-flat": Drafter(
        target="deep",
        architecture="DFlashDraftModel",
        layers=_layers(48, 70, 2, 4, 2, 16, rope_theta=1000000.0, layer_types=[FULL, FULL]),
        config={
            "block_size": 5,
            "num_target_layers": 6,
            "dflash_config": {"mask_token_id": 330, "target_layer_ids": [0, 2, 4]},
        },
        means=Means([1, 3, 5], block=5, mask=330, from_anchor=False),
    ),
    # A window that is shorter than the context, in the causal layers.
    "dflash-sliding": Drafter(
        target="tied",
        architecture="DFlashDraftModel",
        layers=_layers(96, 77, 3, 5, 1, 18, rope_theta=500000.0)
        | _sliding(6, SLIDING, FULL, SLIDING),
        config={
            "num_target_layers": 3,
            "dflash_config": {
                "block_size": 7,
                "mask_token_id": 4,
                "target_layer_ids": [1, -1],
            },
        },
        means=Means(
            [2, 0],
            block=7,
            mask=4,
            from_anchor=False,
            windows=[6, None, 6],
            causal=[True, False, True],
        ),
        shard_size=40_000,
    ),
    # A window on both sides of each row.
    "dflash-sliding-bidirectional": Drafter(
        target="deep",
        architecture="DFlashDraftModel",
        layers=_layers(48, 64, 2, 3, 3, 22) | _sliding(4, SLIDING, SLIDING),
        config={
            "block_size": 6,
            "is_causal": False,
            "num_target_layers": 6,
            "dflash_config": {"mask_token_id": 100, "target_layer_ids": [3]},
        },
        means=Means([4], block=6, mask=100, from_anchor=False, windows=[4]),
    ),
    # Which layers are read is not said, and biases in the attention.
    "dflash-defaults-bias": Drafter(
        target="deep",
        architecture="DFlashDraftModel",
        layers=_layers(48, 51, 2, 6, 2, 12, attention_bias=True),
        config={
            "num_target_layers": 6,
            "dflash_config": {"mask_token_id": 0, "block_size": 4},
        },
        means=Means([2, 4], block=4, mask=0, from_anchor=False),
        dtype=torch.bfloat16,
    ),
}

# As speculators stores DFlash: with everything of its own.
_SPECULATORS = {
    "dflash-speculators": Drafter(
        target="deep",
        architecture="DFlashDraftModel",
        layers=_layers(48, 70, 2, 6, 3, 10, rope_parameters={"rope_theta": 1e6}),
        config={
            "speculators_model_type": "dflash",
            "aux_hidden_state_layer_ids": [1, 3, 5],
            "block_size": 6,
            "mask_token_id": 329,
            "sample_from_anchor": False,
            "sliding_window_non_causal": False,
            "target_hidden_size": None,
        },
        means=Means([1, 3, 5], block=6, mask=329, from_anchor=False),
        draft_vocabulary=97,
        is_whole=True,
    ),
    "dflash-speculators-sliding": Drafter(
        target="tied",
        architecture="DFlashSpeculator",
        layers=_layers(96, 60, 2, 4, 4, 14, rope_parameters={"rope_theta": 1e4})
        | _sliding(5, FULL, SLIDING),
        config={
            "speculators_model_type": "dflash",
            "aux_hidden_state_layer_ids": [0, 2],
            "block_size": 5,
            "mask_token_id": 639,
        },
        means=Means(
            [0, 2],
            block=5,
            mask=639,
            from_anchor=False,
            windows=[None, 5],
            causal=[False, True],
        ),
        is_whole=True,
        shard_size=60_000,
    ),
    "dflash-speculators-bidirectional": Drafter(
        target="deep",
        architecture="DFlashDraftModel",
        layers=_layers(48, 40, 1, 4, 2, 16, attention_bias=True, rope_theta=1e4)
        | _sliding(3, SLIDING),
        config={
            "speculators_model_type": "dflash",
            "aux_hidden_state_layer_ids": [5, 2, 2, 1],
            "block_size": 8,
            "mask_token_id": 2,
            "sliding_window_non_causal": True,
        },
        means=Means([5, 2, 2, 1], block=8, mask=2, from_anchor=False, windows=[3]),
        draft_vocabulary=150,
        is_whole=True,
        dtype=torch.bfloat16,
    ),
}

# As DeepSpec stores DSpark: with everything of its own, and all fields side by side.
_DEEPSPEC = {
    "dspark-deepspec-vanilla": Drafter(
        target="deep",
        architecture="Qwen3DSparkModel",
        layers=_layers(48, 80, 2, 6, 2, 12, rope_theta=1000000.0, layer_types=[FULL, FULL]),
        config={
            "block_size": 7,
            "mask_token_id": 300,
            "target_layer_ids": [0, 1, 2, 3, 4],
            "num_target_layers": 6,
            "num_anchors": 512,
            "markov_rank": 9,
            "markov_head_type": "vanilla",
            "enable_confidence_head": True,
            "confidence_head_with_markov": True,
        },
        means=Means(
            [1, 2, 3, 4, 5],
            block=7,
            mask=300,
            from_anchor=True,
            markov="vanilla",
            rank=9,
            confidence=True,
            confidence_with_markov=True,
        ),
        is_whole=True,
        dtype=torch.bfloat16,
    ),
    "dspark-deepspec-gated": Drafter(
        target="tied",
        architecture="Qwen3DSparkModel",
        layers=_layers(96, 70, 1, 3, 3, 24, attention_bias=True, rope_theta=10000.0),
        config={
            "block_size": 4,
            "mask_token_id": 5,
            "target_layer_ids": [-1, 1],
            "num_target_layers": 3,
            "num_anchors": 8,
            "markov_rank": 16,
            "markov_head_type": "gated",
            "enable_confidence_head": True,
            "confidence_head_with_markov": False,
        },
        means=Means(
            [0, 2],
            block=4,
            mask=5,
            from_anchor=True,
            markov="gated",
            rank=16,
            confidence=True,
        ),
        is_whole=True,
    ),
    "dspark-deepspec-rnn": Drafter(
        target="deep",
        architecture="Qwen3DSparkModel",
        layers=_layers(48, 66, 2, 4, 1, 14, rope_theta=10000.0),
        config={
            "block_size": 6,
            "mask_token_id": 3,
            "target_layer_ids": [2, 3],
            "num_target_layers": 6,
            "num_anchors": 8,
            "markov_rank": 11,
            "markov_head_type": "rnn",
            "enable_confidence_head": False,
        },
        means=Means([3, 4], block=6, mask=3, from_anchor=True, markov="rnn", rank=11),
        is_whole=True,
        shard_size=30_000,
    ),
    # Its DFlash, whose anchor proposes a token as well.
    "dspark-deepspec-no-heads": Drafter(
        target="deep",
        architecture="Qwen3DSparkModel",
        layers=_layers(48, 48, 1, 4, 2, 12, rope_theta=10000.0),
        config={
            "block_size": 3,
            "mask_token_id": 17,
            "target_layer_ids": [1, 4],
            "num_target_layers": 6,
            "num_anchors": 8,
            "markov_rank": 0,
            "enable_confidence_head": False,
        },
        means=Means([2, 5], block=3, mask=17, from_anchor=True),
        is_whole=True,
    ),
}

# As SpecForge stores DSpark: without embedding and head, as models/dspark.
_SPECFORGE = {
    "dspark-specforge-vanilla": Drafter(
        target="deep",
        architecture="DSparkDraftModel",
        layers=_layers(48, 70, 2, 4, 2, 16, rope_theta=1000000.0, rope_scaling=None),
        config={
            "block_size": 7,
            "num_target_layers": 6,
            "dflash_config": {
                "attention_mode": "gqa",
                "mask_token_id": 330,
                "target_layer_ids": [0, 2, 4],
                "projector_type": "dspark",
                "markov_rank": 13,
                "markov_head_type": "vanilla",
                "confidence_head_alpha": 1.0,
                "enable_confidence_head": True,
                "confidence_head_with_markov": True,
            },
        },
        means=Means(
            [1, 3, 5],
            block=7,
            mask=330,
            from_anchor=True,
            markov="vanilla",
            rank=13,
            confidence=True,
            confidence_with_markov=True,
        ),
    ),
    "dspark-specforge-gated-sliding": Drafter(
        target="tied",
        architecture="DSparkDraftModel",
        layers=_layers(96, 72, 2, 6, 2, 20, rope_theta=10000.0) | _sliding(7, SLIDING, FULL),
        config={
            "num_target_layers": 3,
            "dflash_config": {
                "block_size": 5,
                "mask_token_id": 600,
                "target_layer_ids": [0, 1],
                "projector_type": "dspark",
                "markov_rank": 8,
                "markov_head_type": "gated",
                "enable_confidence_head": False,
            },
        },
        means=Means(
            [1, 2],
            block=5,
            mask=600,
            from_anchor=True,
            windows=[7, None],
            causal=[True, False],
            markov="gated",
            rank=8,
        ),
        shard_size=50_000,
    ),
    "dspark-specforge-rnn": Drafter(
        target="deep",
        architecture="DSparkDraftModel",
        layers=_layers(48, 55, 1, 3, 3, 18, attention_bias=True, rope_theta=10000.0),
        config={
            "block_size": 8,
            "num_target_layers": 6,
            "dflash_config": {
                "attention_mode": "mha",
                "mask_token_id": 1,
                "target_layer_ids": [4],
                "projector_type": "dspark",
                "markov_rank": 10,
                "markov_head_type": "rnn",
                "enable_confidence_head": True,
                "confidence_head_with_markov": True,
            },
        },
        means=Means(
            [5],
            block=8,
            mask=1,
            from_anchor=True,
            markov="rnn",
            rank=10,
            confidence=True,
            confidence_with_markov=True,
        ),
        dtype=torch.bfloat16,
    ),
}

# As speculators stores DSpark: with everything of its own.
_DSPARK_SPECULATORS = {
    # For a target of so few tokens that the distribution of its texts can be written down.
    "dspark-tiny-vocabulary": Drafter(
        target="tiny",
        architecture="DSparkDraftModel",
        layers=_layers(16, 24, 1, 2, 1, 8, rope_parameters={"rope_theta": 1e4}),
        config={
            "speculators_model_type": "dspark",
            "aux_hidden_state_layer_ids": [1, 0],
            "block_size": 4,
            "mask_token_id": 7,
            "sample_from_anchor": True,
            "markov_rank": 4,
            "markov_head_type": "vanilla",
            "enable_confidence_head": True,
            "confidence_head_with_markov": True,
        },
        means=Means(
            [1, 0],
            block=4,
            mask=7,
            from_anchor=True,
            markov="vanilla",
            rank=4,
            confidence=True,
            confidence_with_markov=True,
        ),
        draft_vocabulary=6,
        is_whole=True,
        spread=0.4,
    ),
    # What is not said is as speculators takes it.
    "dspark-speculators-defaults": Drafter(
        target="deep",
        architecture="DSparkSpeculator",
        layers=_layers(48, 70, 2, 6, 3, 10, rope_parameters={"rope_theta": 1e6}),
        config={
            "speculators_model_type": "dspark",
            "aux_hidden_state_layer_ids": [1, 3, 5],
            "block_size": 6,
            "mask_token_id": 330,
            "markov_rank": 12,
        },
        means=Means(
            [1, 3, 5],
            block=6,
            mask=330,
            from_anchor=True,
            markov="vanilla",
            rank=12,
            confidence=True,
            confidence_with_markov=True,
        ),
        draft_vocabulary=120,
        is_whole=True,
    ),
    "dspark-speculators-gated-sliding": Drafter(
        target="tied",
        architecture="DSparkDraftModel",
        layers=_layers(96, 64, 2, 4, 2, 18, rope_theta=1e4) | _sliding(6, SLIDING, SLIDING),
        config={
            "speculators_model_type": "dspark",
            "aux_hidden_state_layer_ids": [2],
            "block_size": 5,
            "mask_token_id": 11,
            "sample_from_anchor": True,
            "markov_rank": 7,
            "markov_head_type": "gated",
            "enable_confidence_head": False,
        },
        means=Means(
            [2],
            block=5,
            mask=11,
            from_anchor=True,
            windows=[6],
            causal=[True],
            markov="gated",
            rank=7,
        ),
        draft_vocabulary=400,
        is_whole=True,
        shard_size=60_000,
    ),
    # Rows as DFlash has them.
    "dspark-speculators-masks-only": Drafter(
        target="deep",
        architecture="DSparkDraftModel",
        layers=_layers(48, 50, 1, 4, 4, 12, rope_theta=1e4),
        config={
            "speculators_model_type": "dspark",
            "aux_hidden_state_layer_ids": [4, 2],
            "block_size": 5,
            "mask_token_id": 9,
            "sample_from_anchor": False,
            "markov_rank": 6,
            "markov_head_type": "vanilla",
            "enable_confidence_head": True,
            "confidence_head_with_markov": False,
        },
        means=Means(
            [4, 2],
            block=5,
            mask=9,
            from_anchor=False,
            markov="vanilla",
            rank=6,
            confidence=True,
        ),
        is_whole=True,
        dtype=torch.bfloat16,
    ),
}

DRAFTERS: dict[str, Drafter] = _Z_LAB | _SPECULATORS | _DEEPSPEC | _SPECFORGE | _DSPARK_SPECULATORS
