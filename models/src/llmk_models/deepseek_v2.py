"""DeepSeek-V2: latent attention, and experts in groups (arXiv:2405.04434)."""

from __future__ import annotations

from torch import Tensor

from llmk.api import Checkpoint
from llmk.nn import AddRMSNorm, Build, GatedMLP, LatentAttention, MoE, NormedMoE
from llmk_models.decoder import Decoder, FeedForwardHalf, Normed
from llmk_models.deepseek_v2_facts import shape_of

_NORM_EPS = 1e-6
"""Epsilon of the norms of latent vectors; the config's value is for the others."""


class DeepseekV2Model(Decoder):
    """Follows ``llmk.nn.Model``."""

    def __init__(self, build: Build, checkpoint: Checkpoint) -> None:
        self._shape = shape_of(checkpoint)
        super().__init__(build, self._shape.decoder)

    def make_attention(self, index: int, norm: AddRMSNorm, cos_sin: Tensor) -> Normed:
        """A layer's attention."""
        latent, prefix = self._shape.decoder.latent, f"model.layers.{index}.self_attn"
        place = self.build.parallel.local_index(index, self.shape.num_layers)
        attention = LatentAttention(self.build, prefix, latent, index=place, cos_sin=cos_sin, norm_eps=_NORM_EPS)
        return Normed(norm, attention)

    def make_mlp(self, index: int, norm: AddRMSNorm) -> FeedForwardHalf:
        """Routed and shared experts, or the dense block."""
        prefix = f"model.layers.{index}.mlp"
        if not self._shape.sparse[index]:
            return super().make_mlp(index, norm)
        facts, shared = self._shape.experts, self._make_shared(f"{prefix}.shared_experts")
        return NormedMoE(self.build, norm, MoE(self.build, prefix, facts, shared=shared), facts)

    def _make_shared(self, prefix: str) -> GatedMLP | None:
        size, decoder = self._shape.shared_size, self._shape.decoder
        if not size:
            return None
        return GatedMLP(
            self.build,
            prefix,
            decoder.hidden_size,
            size,
            bias=decoder.mlp_bias,
            site="shared_gate_up_silu",
            gate_up_site="shared_gate_up",
            down_site="shared_down",
            partial=True,
        )
