"""Token embedding."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor


def embedding(ids: Tensor, weight: Tensor) -> Tensor:
    """Rows ``ids`` (int64 ``[tokens]``) of ``weight`` (``[vocab, H]``): ``[tokens, H]`` in ``weight``'s dtype."""
    return F.embedding(ids, weight)


def make_scaled_embedding(parts: Mapping[str, Callable[..., Tensor]]) -> Callable[[Tensor, Tensor, float], Tensor]:
    """Builds ``scaled_embedding`` from the part ``embedding``."""
    embed = parts["embedding"]

    def scaled_embedding(ids: Tensor, weight: Tensor, scale: float) -> Tensor:
        """``embedding(ids, weight) * scale``, with the scale rounded to ``weight``'s dtype first, as in the training of
        Gemma."""
        return embed(ids, weight) * torch.tensor(scale, dtype=weight.dtype)

    return scaled_embedding
