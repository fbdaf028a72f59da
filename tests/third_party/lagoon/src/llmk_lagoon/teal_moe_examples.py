"""What the MoE kernel supports and the core does not define, once more by the plainest code."""

from __future__ import annotations

import torch
from torch import Tensor

from llmk.reference.moe import MoEExamples


def relu_gated(features: Tensor, *, activation_limit: float | None = None) -> Tensor:
    """ReGLU (arXiv:2002.05202): gate features below 0 are 0, and multiply the up features."""
    gate, up = _halves(features, activation_limit)
    return (gate.clamp(min=0) * up).to(features.dtype)


def relu_both(features: Tensor, *, activation_limit: float | None = None) -> Tensor:
    """dReLU (arXiv:2406.05955): gate and up features below 0 are 0."""
    gate, up = _halves(features, activation_limit)
    return (gate.clamp(min=0) * up.clamp(min=0)).to(features.dtype)


def sqrt_softplus(logits: Tensor) -> Tensor:
    """The square root of ``log(1 + exp(logit))``."""
    return torch.logaddexp(logits, torch.zeros_like(logits)).sqrt()


def _halves(features: Tensor, limit: float | None) -> tuple[Tensor, Tensor]:
    gate, up = features.float().chunk(2, dim=-1)
    return (gate, up) if limit is None else (gate.clamp(max=limit), up.clamp(-limit, limit))


EXPERTS = MoEExamples(
    activations={"relu": relu_gated, "drelu": relu_both},
    scorings={"sqrtsoftplus": sqrt_softplus},
)
