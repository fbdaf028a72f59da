"""Factors of embeddings, attention, residuals and logits, as in μP (arXiv:2203.03466)."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

from llmk.tree import Config


class Factors(NamedTuple):
    """What Granite's configs state: ``attention`` is the factor of attention's logits, ``residuals`` that of a block's
    output, and logits are divided by ``divisor``."""

    embeddings: float
    attention: float
    residuals: float
    divisor: float

    @classmethod
    def of(cls, config: Config) -> Self:
        """Those of a config; 1 where it states none. Raises CheckpointError."""
        keys = ("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling")
        return cls(*(config.positive(key, 1.0) for key in keys))

    @property
    def of_decoder(self) -> dict[str, Any]:
        """Arguments of :meth:`llmk_models.parts.Parts.decoder`."""
        scale = None if self.embeddings == 1.0 else self.embeddings
        return {"scale": scale, "scale_given": scale is not None, "logits_scale": 1 / self.divisor}
