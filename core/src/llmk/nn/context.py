"""The inputs of a step other than its tokens. They are an argument of the forward pass; nothing is global."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True, slots=True)
class GivenEmbeddings:
    """Embeddings that a step has in place of looked-up ones."""

    index: Tensor
    """int64 ``[given]``, the numbers of tokens of the step, whose ids mean nothing."""
    rows: Tensor
    """``[given, hidden]``, of any floating dtype."""


@dataclass(slots=True)
class StepContext:
    """One step's device tensors. Lists have one entry per layer that has a cache, in the order of the model's
    ``cache_specs``.

    Attributes:
        positions: int64 ``[tokens]``, each token's index in its own request.
        output_rows: int64 ``[rows]``, the tokens whose final hidden states are wanted; ``None``: all. With fewer, the
            last layer need not compute for all what nothing else depends on.
        axes: int64 ``[axes, tokens]``, what tokens are rotated by where positions have several axes; ``None``:
            ``positions``, on all of them.
        caches: each layer's cache: a tensor in its attention backend's layout, or, for recurrent state, a tuple with
            one tensor ``[num_blocks, *shape]`` for each tensor of the cache spec.
        meta: each layer's attention metadata: the result of its attention backend's ``prepare`` for this step, or, for
            recurrent state, the :class:`~llmk.api.CacheStep` itself.
        given: embeddings of tokens that are not looked up; ``None``: all are.
    """

    positions: Tensor
    caches: list[Any]
    meta: list[Any]
    given: GivenEmbeddings | None = None
    axes: Tensor | None = None
    output_rows: Tensor | None = None

    @property
    def rotary(self) -> Tensor:
        """int64 ``[axes, tokens]``, what tokens are rotated by; ``[1, tokens]`` where it is the same on all axes."""
        return self.positions[None] if self.axes is None else self.axes
