"""Two mixers of the same input."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from llmk.nn import StepContext

if TYPE_CHECKING:
    from llmk.nn.builder import Builder
    from llmk_models.falcon_h1 import ParallelMixers as Spec


class ParallelMixers:
    """Follows ``llmk.nn.blocks.block.Block``."""

    def __init__(self, builder: Builder, spec: Spec) -> None:
        self._scan, self._attention = builder.block(spec.scan), builder.block(spec.attention)
        self._factors = spec.scan_factor, spec.attention_factor

    def __call__(self, x: Tensor, step: StepContext) -> Tensor:
        """Maps ``[tokens, hidden]`` to ``[tokens, hidden]``."""
        scanned, attended = self._scan(x, step), self._attention(x, step)
        of_scan, of_attention = self._factors
        total: Tensor = scanned * of_scan + attended * of_attention
        return total
