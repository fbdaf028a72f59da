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
        """``x`` is ``[tokens, in_features]``, with zero or more rows, and may be strided along its rows; the result is
        ``[tokens, out_features]`` in the dtype of ``x``; ``weight`` is what the spec's ``prepare`` returned, ``bias``
        is ``[out_features]`` in the dtype of ``x``. Values may have any magnitude that the dtype can represent, where
        float32 holds their sums with a quantized weight's numbers before these are scaled; a step's may all be zeros.
        The last dimension of the result is contiguous, and the caller owns the result and may overwrite it. The rows
        are computed together, unless the spec declares ``deterministic``; weights are widened only once per call."""
        ...


class LooksUp(Protocol):
    """Weights of a linear layer that are also the embedding table (:attr:`llmk.api.LinearQuery.lookup`)."""

    @abstractmethod
    def rows(self, index: Tensor, dtype: torch.dtype) -> Tensor:
        """The rows ``index``, int64 ``[tokens]``, dequantized: ``[tokens, in_features]`` in ``dtype``, rounded once."""
        ...


class MoEKernel(Protocol):
    """Sends every token through its experts and returns their weighted sum; ``llmk.reference.moe.fused_moe`` says what
    each argument means.

    If the query has a field that was added later, such as ``activation_limit``, at another value than its default, a
    kernel that knows the field (``KernelSpec.knows``) gets it as a keyword argument of the same name. Each of the
    query's ``facts`` is passed in the same way."""

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
        """``x`` is ``[tokens, hidden]``, with zero or more rows, as is the result; ``router_logits`` are ``[tokens,
        experts]``; ``weights`` are what the spec's ``prepare`` returned, where there is one. What each expert returns
        may be rounded to the dtype of ``x`` before the sum, which is in float32. With many tokens, an expert computes
        only those that are routed to it, apart from padding to full tiles, and computes them together."""
        ...


class Op(Protocol):
    """An op: its reference documents the arguments and the result. Where ``OpExamples.by_row`` names rows, there may be
    any number of them, or none. On the way, it may round to the engine's dtype what its reference keeps in float32, as
    what is added after a multiplication, and keep in float32 what its reference rounds, as a sum that is normed after
    it."""

    @abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The op's result."""
        ...


class Prepare(Protocol):
    """The function that ``KernelSpec.prepare`` of a linear or MoE kernel names."""

    @abstractmethod
    def __call__(self, parameters: dict[str, Tensor]) -> Any:
        """Returns the weights in the kernel's layout, made from a layer's parameters by name. The parameters and the
        dict must not be changed. The weights must fit into the planned memory: they take little more than the
        parameters, and kernels keep no copies in a wider dtype."""
        ...


class CompositeOp(Protocol):
    """The factory that ``KernelSpec.implementation`` of an op with ``parts`` names."""

    @abstractmethod
    def __call__(self, parts: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
        """Returns the op, built from its parts by name. The factory may keep the parts, but must not call them."""
        ...
