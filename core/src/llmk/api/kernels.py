"""The contracts of kernels that are plain callables. An attention backend is a class (:mod:`llmk.api.attention`); an op
is called like its reference in ``llmk.reference``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class LinearKernel(Protocol):
    """``x @ weight.T + bias``."""

    @abstractmethod
    def __call__(self, x: Tensor, weight: Any, bias: Tensor | None) -> Tensor:
        """``x`` is ``[tokens, in_features]``, with no row or many, and may be strided along its rows; the result is
        ``[tokens, out_features]`` in its dtype; ``weight`` is what the spec's ``prepare`` returned, ``bias``
        ``[out_features]`` in the dtype of ``x``. Numbers are of any magnitude that the dtype
        has. The elements of a result's row are neighbours, and the result is the caller's, who may write over it.
        Rows are computed together, unless the spec declares ``deterministic``; weights are widened once a call."""
        ...


class LooksUp(Protocol):
    """Weights of a linear layer that are an embedding's table too (:attr:`llmk.api.LinearQuery.lookup`)."""

    @abstractmethod
    def rows(self, index: Tensor, dtype: torch.dtype) -> Tensor:
        """The rows ``index``, int64 ``[tokens]``, dequantized: ``[tokens, in_features]`` in ``dtype``, rounded once."""
        ...


class MoEKernel(Protocol):
    """Sends every token through its experts and returns their weighted sum; ``llmk.reference.moe.fused_moe`` says what
    each argument means.

    A kernel that knows a later field of the query (``KernelSpec.knows``), such as ``activation_limit``, gets it as a
    keyword argument of the same name where it is not at its default, and each of the query's ``facts`` likewise."""

    @abstractmethod
    def __call__(
        self,
        x: Tensor,
        router_logits: Tensor,
        weights: Any,
        *,
        top_k: int,
        renormalize: bool,
        activation: str = "silu",
        scoring: str = "softmax",
        selection_bias: Tensor | None = None,
        scaling: float = 1.0,
        num_groups: int = 1,
        top_groups: int = 1,
        group_scoring: str = "max",
    ) -> Tensor:
        """``x`` is ``[tokens, hidden]``, as is the result; ``router_logits`` are ``[tokens, experts]``; ``weights`` are
        what the spec's ``prepare`` returned, where there is one. Of many tokens, an expert computes those that chose
        it, and no others, but for what fills up tiles; those of an expert are computed together."""
        ...


class Op(Protocol):
    """What its reference documents: it takes the same arguments."""

    @abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The op's result."""
        ...


class Prepare(Protocol):
    """What ``KernelSpec.prepare`` names, of linear and MoE kernels."""

    @abstractmethod
    def __call__(self, parameters: dict[str, Tensor]) -> Any:
        """The weights as the kernel takes them, of a layer's parameters by name, none of which it changes or takes
        out. They take the memory that is planned for: little more than the parameters, and kernels keep no copies in a
        wider dtype."""
        ...


class CompositeOp(Protocol):
    """What ``KernelSpec.implementation`` names where an op has ``parts``."""

    @abstractmethod
    def __call__(self, parts: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
        """The op, made of its parts by name. It may look them up and keep them, and calls none of them yet."""
        ...
