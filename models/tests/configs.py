"""Configs of tiny checkpoints, and what families make of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llmk.api import Checkpoint, ModelFacts
from llmk.tree import Attend, CausalLM, Config, Experts, GatedMLP, Spec, lower, model_facts
from llmk_models import dense

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


def config(**values: Any) -> Config:
    return Config(Checkpoint(Path("/c"), values))


def facts(family: Any, **values: Any) -> ModelFacts:
    """The facts of a family's tree, or those that its module describes."""
    if not hasattr(family, "tree"):
        described: ModelFacts = family.describe(Checkpoint(Path("/c"), values))
        return described
    return model_facts(lower(family.tree(config(**values))), config(**values))


def dense_tree(**overrides: Any) -> CausalLM:
    """A dense family's tree, of a tiny Llama with ``overrides``."""
    return dense.tree(config(**{**LLAMA, **overrides}))


def parts_of(tree: CausalLM, kind: type[Spec]) -> list[Any]:
    """The parts of a kind in each layer."""
    return [leaf for layer in tree.layers for part in layer for leaf in part.leaves() if isinstance(leaf, kind)]


def attends(tree: CausalLM) -> list[Attend]:
    return parts_of(tree, Attend)


def experts(tree: CausalLM) -> list[Experts]:
    return parts_of(tree, Experts)


def sparse_layers(tree: CausalLM) -> tuple[bool, ...]:
    """For each layer, whether it has experts."""
    return tuple(any(isinstance(leaf, Experts) for part in layer for leaf in part.leaves()) for layer in tree.layers)


def shared_mlps(tree: CausalLM) -> list[GatedMLP]:
    return [mlp for mlp in parts_of(tree, GatedMLP) if mlp.down.partial]
