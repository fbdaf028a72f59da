"""The inputs of a step other than its tokens. They are an argument of the forward pass; nothing is global."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(slots=True)
class StepContext:
    """One step's device tensors. Lists have one entry per layer that has a cache, in the order of the model's
    ``cache_specs``.

    Attributes:
        positions: int64 ``[tokens]``, each token's index in its own request.
        caches: each layer's cache: a tensor in its attention backend's layout, or, for recurrent state, a tuple with
            one tensor ``[num_blocks, *shape]`` for each tensor of the cache spec.
        meta: each layer's attention metadata: the result of its attention backend's ``prepare`` for this step, or, for
            recurrent state, the :class:`~llmk.api.CacheStep` itself.
    """

    positions: Tensor
    caches: list[Any]
    meta: list[Any]
