"""Native norms against the reference."""

from __future__ import annotations

import pytest
import torch

from llmk.reference import norms as reference
from llmk_cpu.native.norms import rms_norm

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("shape", [(1, 1024), (3, 7), (0, 16), (5, 2, 130), (300, 129)])
def test_rms_norm(shape: tuple[int, ...], offset: float, dtype: torch.dtype) -> None:
    x, weight = torch.randn(shape).to(dtype), torch.randn(shape[-1]).to(dtype)
    expected = reference.rms_norm(x, weight, 1e-6, norm_offset=offset)
    torch.testing.assert_close(rms_norm(x, weight, 1e-6, norm_offset=offset), expected)
