"""The layers that models are built from, and what builds them from the specs of :mod:`llmk.tree`. When it is built,
each layer binds the kernel that the plan chose for its site.

Importing this package is cheap; a layer's module, and torch with it, is imported at the first access to the layer's
name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llmk.nn.attention import Attention, GatedAttention
    from llmk.nn.build import AttentionSwitch, Build, Switch, WeightKernel
    from llmk.nn.builder import Builder
    from llmk.nn.context import GivenEmbeddings, StepContext
    from llmk.nn.embedding import Embedding, LMHead
    from llmk.nn.latent import LatentAttention, LatentUp
    from llmk.nn.layer import Layer, Parameter
    from llmk.nn.linear import Linear
    from llmk.nn.model import Model, SelfLoading
    from llmk.nn.moe import Experts, InterleavedExperts, TransposedExperts
    from llmk.nn.norm import AddLayerNorm, AddRMSNorm, LayerNorm, NormAdd, RMSNorm, SandwichNorm
    from llmk.nn.quantization import Quantization
    from llmk.nn.recurrent.mixers import GatedDeltaNet, StateSpaceMixer
    from llmk.nn.tree_model import TreeModel

_LAZY = {
    "AddLayerNorm": "norm",
    "AddRMSNorm": "norm",
    "Attention": "attention",
    "AttentionSwitch": "build",
    "Build": "build",
    "Builder": "builder",
    "Embedding": "embedding",
    "Experts": "moe",
    "GatedAttention": "attention",
    "GatedDeltaNet": "recurrent.mixers",
    "GivenEmbeddings": "context",
    "LMHead": "embedding",
    "LatentAttention": "latent",
    "LatentUp": "latent",
    "Layer": "layer",
    "LayerNorm": "norm",
    "Linear": "linear",
    "StateSpaceMixer": "recurrent.mixers",
    "InterleavedExperts": "moe",
    "Model": "model",
    "NormAdd": "norm",
    "Parameter": "layer",
    "Quantization": "quantization",
    "RMSNorm": "norm",
    "SandwichNorm": "norm",
    "SelfLoading": "model",
    "StepContext": "context",
    "Switch": "build",
    "TransposedExperts": "moe",
    "TreeModel": "tree_model",
    "WeightKernel": "build",
}

__all__ = [
    "AddLayerNorm",
    "AddRMSNorm",
    "Attention",
    "AttentionSwitch",
    "Build",
    "Builder",
    "Embedding",
    "Experts",
    "GatedAttention",
    "GatedDeltaNet",
    "GivenEmbeddings",
    "InterleavedExperts",
    "LMHead",
    "LatentAttention",
    "LatentUp",
    "Layer",
    "LayerNorm",
    "Linear",
    "Model",
    "NormAdd",
    "Parameter",
    "Quantization",
    "RMSNorm",
    "SandwichNorm",
    "SelfLoading",
    "StateSpaceMixer",
    "StepContext",
    "Switch",
    "TransposedExperts",
    "TreeModel",
    "WeightKernel",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'llmk.nn' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"llmk.nn.{_LAZY[name]}"), name)
