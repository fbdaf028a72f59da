"""What a step brings to the model besides its tokens. It is an argument of the forward pass: nothing is global."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(slots=True)
class StepContext:
    """One step's device tensors. Lists have one entry per layer that keeps something, in the order of the model's
    ``cache_specs``.

    Attributes:
        positions: int64 ``[tokens]``, each token's index in its own request.
        caches: each layer's cache: a tensor as its attention backend lays it out, or for recurrent state a tuple with a
            tensor ``[num_blocks, *shape]`` for each of the spec's.
        meta: what tells each layer its part of the cache: what its attention backend's ``prepare`` made of this step,
            or for recurrent state the :class:`~llmk.api.CacheStep` itself.
    """

    positions: Tensor
    caches: list[Any]
    meta: list[Any]
