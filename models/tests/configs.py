"""Configs of tiny checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llmk.api import Checkpoint
from llmk_models.decoder_facts import DecoderShape
from llmk_models.dense_facts import shape_of

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "vocab_size": 100,
    "max_position_embeddings": 4096,
}


MAMBA2: dict[str, Any] = {
    **LLAMA, "architectures": ["Mamba2ForCausalLM"], "num_heads": 4, "head_dim": 32, "n_groups": 2, "state_size": 16,
}  # fmt: skip
DEEPSEEK = {**LLAMA, "architectures": ["DeepseekV2ForCausalLM"], "num_experts_per_tok": 6}


def shape(**overrides: Any) -> DecoderShape:
    return shape_of(Checkpoint(Path("/c"), {**LLAMA, **overrides}))
