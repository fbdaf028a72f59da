"""Lightning attention without its projections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from llmk.nn.context import StepContext
from llmk.nn.layer import Layer
from llmk.nn.recurrent.mixers import state_cache
from llmk.tree import LightningSizes

if TYPE_CHECKING:
    from llmk.nn.build import Build


class LightningAttention(Layer):
    """SiLU of queries, keys and values, and linear attention with constant decays, in one op.

    Args:
        decays: log decays of all heads, negative. Tensor-parallel ranks have those of their heads.
        index: position of this layer's cache in ``StepContext.caches``.

    Attributes:
        cache_spec: the cache spec of the layer's state.
    """

    def __init__(
        self, build: Build, sizes: LightningSizes, decays: Sequence[float], *, index: int, op_site: str
    ) -> None:
        self.cache_spec = state_cache(build, sizes, op_site)
        self._op = build.kernel("op", op_site)
        self._index = index
        own = decays[build.parallel.share(sizes.num_heads)]
        self._decays = torch.tensor(own, dtype=torch.float32, device=build.device)
        super().__init__(build, [])

    def finish(self) -> None:
        """It owns no parameters."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, step: StepContext) -> Tensor:
        """Maps ``[tokens, heads, head_dim]`` each, which may be parts of wider rows, to ``[tokens, heads * head_dim]``;
        heads are this rank's."""
        out: Tensor = self._op(q, k, v, self._decays, step.caches[self._index], step.meta[self._index])
        return out
