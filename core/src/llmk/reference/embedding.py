"""Token embedding."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def embedding(ids: Tensor, weight: Tensor) -> Tensor:
    """Rows ``ids`` (int64 ``[tokens]``) of ``weight`` (``[vocab, H]``): ``[tokens, H]`` in ``weight``'s dtype."""
    return F.embedding(ids, weight)
