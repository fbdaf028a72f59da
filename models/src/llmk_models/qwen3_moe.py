"""Qwen3-MoE: Qwen3's decoder with a mixture of experts in most layers (arXiv:2505.09388)."""

from __future__ import annotations

from llmk.api import Checkpoint
from llmk.nn import AddRMSNorm, Build, MoE, NormedMoE
from llmk_models.decoder import Decoder, FeedForwardHalf
from llmk_models.qwen3_moe_facts import shape_of


class Qwen3MoEModel(Decoder):
    """Follows ``llmk.nn.Model``."""

    def __init__(self, build: Build, checkpoint: Checkpoint) -> None:
        shape = shape_of(checkpoint)
        self._experts = shape.experts
        self._sparse = shape.sparse
        super().__init__(build, shape.decoder)

    def make_mlp(self, index: int, norm: AddRMSNorm) -> FeedForwardHalf:
        """The MoE block, or the dense block in layers without experts."""
        if not self._sparse[index]:
            return super().make_mlp(index, norm)
        experts = MoE(self.build, f"model.layers.{index}.mlp", self._experts)
        return NormedMoE(self.build, norm, experts, self._experts)
