"""Experts of llmk in the place of those of transformers' modules, whose routers stay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from llmk.api import CheckpointError, StoredTensor
from llmk.nn import Experts
from llmk.reference.activations import ACTIVATIONS
from llmk.tree import Experts as ExpertsSpec
from llmk_models.transformers_layers import fill_from_files

_PLAIN = {"has_gate": True, "has_bias": False, "is_transposed": False, "is_concatenated": True}
_LEAST = 1e-30
"""The least weight of a chosen expert: it has a logarithm."""


class ExpertsModule(nn.Module):
    """Experts of llmk where a module was that is called with the experts that a router chose, and their weights."""

    def __init__(self, layer: Experts) -> None:
        super().__init__()
        self._layer = layer

    def forward(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """Maps ``[tokens, hidden]``, int64 ``[tokens, top_k]``, and as many weights to ``[tokens, hidden]``."""
        shares = torch.zeros(len(x), self._layer.num_experts, dtype=torch.float32, device=x.device)
        shares = shares.scatter_add(1, chosen, weights.float().clamp(min=_LEAST))
        # The softmax of their logarithms are the weights, divided by their sum.
        out = self._layer(x, shares.log()) * shares.sum(dim=1, keepdim=True)
        return out.to(x.dtype)


def is_experts(module: nn.Module) -> bool:
    """Whether a module holds experts in stacked tensors."""
    return getattr(getattr(module, "gate_up_proj", None), "ndim", 0) == 3


def is_like(module: nn.Module, spec: ExpertsSpec) -> bool:
    """Whether a module computes just such experts."""
    facts, own = spec.facts, {key: getattr(module, key, None) for key in _PLAIN}
    if own != _PLAIN or getattr(module, "has_post_expert_norm", False):
        return False
    gate = getattr(type(module), "_apply_gate", None)
    shapes = [tuple(getattr(module, name).shape) for name in ("gate_up_proj", "down_proj") if hasattr(module, name)]
    count, hidden, inner = facts.num_experts, facts.hidden_size, facts.intermediate_size
    return (
        getattr(gate, "__name__", "") == "_default_apply_gate"
        and shapes == [(count, 2 * inner, hidden), (count, hidden, inner)]
        and _acts_alike(module, facts.activation)
    )


def _acts_alike(module: Any, activation: str) -> bool:
    x = torch.linspace(-6, 6, 49, device="cpu")
    expected = ACTIVATIONS[activation](torch.cat((x, torch.ones_like(x))))
    return torch.allclose(module.act_fn(x), expected, atol=1e-6)


def num_routed(inputs: tuple[Any, ...]) -> int:
    """The number of experts per token, of a module called with hidden states, experts and weights; of others, 0."""
    if len(inputs) == 3 and inputs[0].dim() == 2 and inputs[1].shape == inputs[2].shape:
        return int(inputs[1].shape[1])
    return 0


def fill_experts(
    layer: Experts, spec: ExpertsSpec, module: Any, top_k: int, stored: Mapping[str, Sequence[StoredTensor]]
) -> bool:
    """Loads what the files hold, if ``stored`` is given, or transformers' module, and prepares the layer.

    Returns:
        Whether it did: the module was called with ``top_k`` experts of each token, and as many are planned.

    Raises:
        CheckpointError: it was called with another number, and they are to be quantized.
    """
    if top_k != spec.facts.top_k:
        if stored:
            raise CheckpointError(
                f"transformers' modules take {top_k} experts of {spec.at} for each token, not {spec.facts.top_k}, so"
                " that llmk can't replace them",
                hint="use an unquantized checkpoint without --model.quantization",
            )
        return False
    if stored:
        fill_from_files(layer, stored)
        return True
    for parameter in layer.parameters:
        for name, shards in parameter.targets.items():
            kind = name.rpartition(".")[2]
            if kind in ("gate_up_proj", "down_proj") and len(shards) == len(parameter.names):
                parameter.load(shards, getattr(module, kind).detach())
    layer.finish()
    return True
