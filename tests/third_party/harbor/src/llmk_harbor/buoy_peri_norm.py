"""What builds :class:`llmk_harbor.buoy_model.PeriNormed`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from llmk.nn import StepContext
    from llmk.nn.builder import Builder
    from llmk_harbor import buoy_model


class PeriNormed:
    """A block, then a norm of its output. The norm is of the whole output, so under tensor parallelism the block sums
    over ranks itself."""

    def __init__(self, builder: Builder, spec: buoy_model.PeriNormed) -> None:
        self._block = builder.block(spec.block)
        self._norm = builder.norm(spec.norm)

    def __call__(self, x: Tensor, step: StepContext) -> Tensor:
        """``[tokens, hidden]`` to ``[tokens, hidden]``."""
        return self._norm(self._block(x, step))
