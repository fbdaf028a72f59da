"""A norm and the linear layer after it: factories that build one op for both from the kernels chosen for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

NormedLinear = Callable[[Tensor, Tensor | None, Tensor, float, Any, Tensor | None], tuple[Tensor, Tensor]]
NormedRouter = Callable[[Tensor, Tensor | None, Tensor, float, Any, Tensor | None], tuple[Tensor, Tensor, Tensor]]


def make_add_rms_norm_linear(parts: Mapping[str, Callable[..., Any]]) -> NormedLinear:
    """Builds ``add_rms_norm_linear`` from ``rms_norm``, ``add_rms_norm`` and the site's linear kernel."""
    return _make(parts, "linear")


def make_add_rms_norm_gate_up_silu(parts: Mapping[str, Callable[..., Any]]) -> NormedLinear:
    """Builds ``add_rms_norm_gate_up_silu`` from ``rms_norm``, ``add_rms_norm`` and ``gate_up_silu``."""
    return _make(parts, "gate_up_silu")


def make_add_rms_norm_router(parts: Mapping[str, Callable[..., Any]]) -> NormedRouter:
    """Builds ``add_rms_norm_router`` from ``rms_norm``, ``add_rms_norm`` and the site's linear kernel."""
    norm, add_norm, linear = parts["rms_norm"], parts["add_rms_norm"], parts["linear"]

    def normed_router(
        x: Tensor, residual: Tensor | None, norm_weight: Tensor, eps: float, weight: Any, bias: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """``(linear(normed, weight, bias), normed, total)`` with ``total = x + residual`` and ``normed`` its norm:
        router logits ``[tokens, experts]``, the experts' input ``[tokens, H]``, and the next residual ``[tokens, H]``.
        Arguments are those of ``add_rms_norm_linear``."""
        normed, total = (norm(x, norm_weight, eps), x) if residual is None else add_norm(x, residual, norm_weight, eps)
        return linear(normed, weight, bias), normed, total

    return normed_router


def _make(parts: Mapping[str, Callable[..., Any]], name: str) -> NormedLinear:
    norm, add_norm, linear = parts["rms_norm"], parts["add_rms_norm"], parts[name]

    def normed_linear(
        x: Tensor, residual: Tensor | None, norm_weight: Tensor, eps: float, weight: Any, bias: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """``(linear(norm(total), weight, bias), total)`` with ``total = x + residual``: ``[tokens, out]`` and
        ``[tokens, H]``.

        Args:
            x, residual: ``[tokens, H]``; without a residual (``None``), ``x`` is the sum. Neither is changed.
            norm_weight, eps: as in :func:`llmk.reference.norms.rms_norm`.
            weight, bias: of the linear layer; ``weight`` is the linear kernel's prepared weight.
        """
        if residual is None:
            return linear(norm(x, norm_weight, eps), weight, bias), x
        normed, total = add_norm(x, residual, norm_weight, eps)
        return linear(normed, weight, bias), total

    return normed_linear
