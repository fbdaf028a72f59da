"""What the torch functions of native kernels share."""

from __future__ import annotations

import torch
from torch import Tensor

from llmk_cpu.native.library import BFLOAT16, FLOAT8, FLOAT16, FLOAT32, INT8

CODES = {torch.float32: FLOAT32, torch.bfloat16: BFLOAT16, torch.float16: FLOAT16}
"""The C interface's codes of dtypes."""

CACHE_CODES = CODES | {torch.float8_e4m3fn: FLOAT8, torch.int8: INT8}
"""The same, and those that only caches of keys and values have."""


def rows_of(x: Tensor) -> Tensor:
    """``x`` as ``[rows, size]`` whose rows are contiguous, ``stride(0)`` elements apart; a copy only where needed."""
    if x.dim() != 2:
        x = x.reshape(-1, x.shape[-1])
    return x if x.stride(1) == 1 else x.contiguous()


def heads_of(x: Tensor) -> Tensor:
    """``[tokens, heads, size]`` in which the heads of a token are contiguous; a copy only where needed."""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()
