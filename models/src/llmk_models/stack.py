"""The base of all native families: an embedding, a stack of layers and a head, or a pipeline stage of these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from llmk.nn import Build, Embedding, LMHead, StepContext


class Norm(Protocol):
    """Adds the residual, if there is one, to the previous block's output; returns the normed sum and the sum."""

    def __call__(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]: ...


class Block(Protocol):
    """One layer. Maps the previous layer's output and the residual to its output and the next residual, all ``[tokens,
    hidden]``."""

    def __call__(self, x: Tensor, residual: Tensor | None, step: StepContext) -> tuple[Tensor, Tensor]: ...


class Stack:
    """Follows ``llmk.nn.Model``, except the constructor and ``cache_specs``; a family sets the attributes.

    Attributes:
        hidden_size: hidden states between layers are ``[tokens, hidden_size]``.
        residual_dtype: dtype of the residual from the second layer on.
        layers: the layers of this process's stage.
    """

    build: Build
    hidden_size: int
    residual_dtype: torch.dtype
    embed: Embedding
    layers: Sequence[Block]
    norm: Norm
    head: LMHead

    def forward(self, token_ids: Tensor, step: StepContext) -> Tensor:
        parallel = self.build.parallel
        residual: Tensor | None = None
        if parallel.is_first:
            x = self.embed(token_ids)
        else:
            shape = (token_ids.shape[0], self.hidden_size)
            wanted = [(shape, dtype) for dtype in (self.build.dtype, self.residual_dtype)]
            x, residual = parallel.receive_from_previous_stage(wanted, self.build.device)
        for layer in self.layers:
            x, residual = layer(x, residual, step)
        if not parallel.is_last and residual is not None:
            parallel.send_to_next_stage(x, residual.to(self.residual_dtype))
            return x
        return self.norm(x, residual)[0]

    def logits(self, hidden: Tensor) -> Tensor:
        return self.head(hidden)
