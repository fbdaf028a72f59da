"""A norm and the linear layer after it: factories that build one op for both from the kernels chosen for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Unpack

from torch import Tensor

from llmk.reference.activations import GatedOptions
from llmk.reference.norms import SumOptions

NormedLinear = Callable[..., tuple[Tensor, Tensor]]
NormedRouter = Callable[..., tuple[Tensor, Tensor, Tensor]]


class NormedOptions(GatedOptions, SumOptions, total=False):
    """What a norm and linear layer get by name: the factor of ``x`` in the residual sum, and the parameters of the
    activation, if there is one."""


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
        x: Tensor,
        residual: Tensor | None,
        norm_weight: Tensor,
        eps: float,
        weight: Any,
        bias: Tensor | None,
        **options: Unpack[SumOptions],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """``(linear(normed, weight, bias), normed, total)`` with ``total = x + residual`` and ``normed`` its norm:
        router logits ``[tokens, experts]``, the experts' input ``[tokens, H]``, and the next residual ``[tokens, H]``.
        Arguments are those of ``add_rms_norm_linear``."""
        if residual is None:
            normed, total = norm(x, norm_weight, eps), x
        else:
            normed, total = add_norm(x, residual, norm_weight, eps, **options)
        return linear(normed, weight, bias), normed, total

    return normed_router


def _make(parts: Mapping[str, Callable[..., Any]], name: str) -> NormedLinear:
    norm, add_norm, linear = parts["rms_norm"], parts["add_rms_norm"], parts[name]

    def normed_linear(
        x: Tensor,
        residual: Tensor | None,
        norm_weight: Tensor,
        eps: float,
        weight: Any,
        bias: Tensor | None,
        **options: Unpack[NormedOptions],
    ) -> tuple[Tensor, Tensor]:
        """``(linear(norm(total), weight, bias), total)`` with ``total = x + residual``: ``[tokens, out]`` and
        ``[tokens, H]``.

        Args:
            x, residual: ``[tokens, H]``; without a residual (``None``), ``x`` is the sum. Neither is changed.
            norm_weight, eps: as in :func:`llmk.reference.norms.rms_norm`.
            weight, bias: of the linear layer; ``weight`` is the linear kernel's prepared weight.
            options: see :class:`NormedOptions`.
        """
        scaled: SumOptions = {}
        if "residual_multiplier" in options:
            scaled["residual_multiplier"] = options.pop("residual_multiplier")
        if residual is None:
            return linear(norm(x, norm_weight, eps), weight, bias, **options), x
        normed, total = add_norm(x, residual, norm_weight, eps, **scaled)
        return linear(normed, weight, bias, **options), total

    return normed_linear
