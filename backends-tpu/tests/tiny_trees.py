"""Trees of tiny models, and their weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from llmk.api import Checkpoint
from llmk.tree import CausalLM, Config, Residual, lower, weight_map
from llmk_models import dense, mixtral

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 24,
    "intermediate_size": 28,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "vocab_size": 50,
    "max_position_embeddings": 64,
    "num_local_experts": 3,
}


def llama(**own: Any) -> CausalLM:
    return dense.tree(Config(Checkpoint(Path("/c"), CONFIG | own)))


def experts(**own: Any) -> CausalLM:
    return mixtral.tree(Config(Checkpoint(Path("/c"), CONFIG | own)))


def with_block(model: CausalLM, block: Any) -> CausalLM:
    """The model with another block in its last layer."""
    *first, last = model.layers
    assert isinstance(last[0], Residual)
    return replace(model, layers=(*first, (replace(last[0], block=block), *last[1:])))


def weights(model: CausalLM) -> dict[str, Any]:
    """Random tensors, by the names of the tree's weight map."""
    draw = np.random.default_rng(0)
    return {
        name: draw.standard_normal(shape, dtype=np.float32)
        for name, shape in weight_map(lower(model, fuse=False)).items()
    }
