"""Mixtral: Mistral's decoder with a mixture of experts in every layer (arXiv:2401.04088)."""

from __future__ import annotations

from llmk.api import Checkpoint
from llmk.nn import AddRMSNorm, Build, MoE, NormedMoE
from llmk_models.decoder import Decoder
from llmk_models.mixtral_facts import shape_of


class MixtralModel(Decoder):
    """Follows ``llmk.nn.Model``."""

    def __init__(self, build: Build, checkpoint: Checkpoint) -> None:
        shape = shape_of(checkpoint)
        self._experts = shape.experts
        super().__init__(build, shape.decoder)

    def make_mlp(self, index: int, norm: AddRMSNorm) -> NormedMoE:
        """The MoE block. In the format of transformers 5, its name is ``mlp``, as in other models."""
        prefix = f"model.layers.{index}"
        experts = MoE(
            self.build,
            f"{prefix}.block_sparse_moe",
            self._experts,
            names=("w1", "w3", "w2"),
            aliases=(f"{prefix}.mlp",),
        )
        return NormedMoE(self.build, norm, experts, self._experts)
