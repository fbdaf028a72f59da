"""The linear kernel."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def prepare(parameters: Mapping[str, Tensor]) -> Tensor:
    """The weight in the kernel's layout, ``[in, out]``. Called once, after loading; it must not change the stored
    tensors, of which ``weight`` is ``[out, in]``."""
    return parameters["weight"].T.contiguous()


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``[tokens, in]`` to ``[tokens, out]`` in ``x``'s dtype; ``bias`` is ``[out]``."""
    return x @ weight if bias is None else torch.addmm(bias, x, weight)
