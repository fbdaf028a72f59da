"""The layers that models are built from. When it is built, each layer binds the kernel that the plan chose for its
site.

Importing this package is cheap; a layer's module, and torch with it, is imported at the first access to the layer's
name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llmk.nn.attention import Attention, GatedAttention, OutputGate
    from llmk.nn.build import AttentionSwitch, Build, Switch, WeightKernel
    from llmk.nn.context import StepContext
    from llmk.nn.embedding import Embedding, LMHead
    from llmk.nn.latent import LatentAttention
    from llmk.nn.layer import Layer, Parameter
    from llmk.nn.linear import Linear
    from llmk.nn.mlp import MLP, GatedMLP, NormedMLP, TokenGate
    from llmk.nn.model import Model, SelfLoading
    from llmk.nn.moe import MoE, NormedMoE
    from llmk.nn.norm import AddRMSNorm, NormAdd, NormedLinear, RMSNorm, SandwichNorm
    from llmk.nn.quantization import Quantization
    from llmk.nn.recurrent import GatedDeltaNet, StateSpaceMixer

_LAZY = {
    "AddRMSNorm": "norm",
    "Attention": "attention",
    "AttentionSwitch": "build",
    "Build": "build",
    "Embedding": "embedding",
    "GatedAttention": "attention",
    "GatedDeltaNet": "recurrent",
    "GatedMLP": "mlp",
    "LMHead": "embedding",
    "LatentAttention": "latent",
    "Layer": "layer",
    "Linear": "linear",
    "StateSpaceMixer": "recurrent",
    "MLP": "mlp",
    "MoE": "moe",
    "Model": "model",
    "NormAdd": "norm",
    "NormedMLP": "mlp",
    "NormedMoE": "moe",
    "NormedLinear": "norm",
    "OutputGate": "attention",
    "Parameter": "layer",
    "Quantization": "quantization",
    "RMSNorm": "norm",
    "SandwichNorm": "norm",
    "SelfLoading": "model",
    "StepContext": "context",
    "Switch": "build",
    "TokenGate": "mlp",
    "WeightKernel": "build",
}

__all__ = [
    "MLP",
    "AddRMSNorm",
    "Attention",
    "AttentionSwitch",
    "Build",
    "Embedding",
    "GatedAttention",
    "GatedDeltaNet",
    "GatedMLP",
    "LMHead",
    "LatentAttention",
    "Layer",
    "Linear",
    "MoE",
    "Model",
    "NormAdd",
    "NormedLinear",
    "NormedMLP",
    "NormedMoE",
    "OutputGate",
    "Parameter",
    "Quantization",
    "RMSNorm",
    "SandwichNorm",
    "SelfLoading",
    "StateSpaceMixer",
    "StepContext",
    "Switch",
    "TokenGate",
    "WeightKernel",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'llmk.nn' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"llmk.nn.{_LAZY[name]}"), name)
