"""What a small-M GEMM computes, and on what."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from llmk.reference.quantized_weight import FP8_BLOCK, ScaledWeight

Weight = Tensor | ScaledWeight
"""``[out, size]``: plain, or fp8 with a scale per row or per block of 128x128."""

_SCALES = {1: "channel", FP8_BLOCK: "block"}


@dataclass(frozen=True, slots=True)
class GemmProblem:
    """A GEMM problem: op ``kernel``, from ``[rows, size]`` to ``[rows, out]`` (M = rows, K = size, N = out)."""

    kernel: str
    dtype: torch.dtype
    rows: int
    size: int
    out: int
    scaled: int = 0
    """Rows of an fp8 weight that share a scale: 1, or the block size of block scales; 0: the weight is plain."""

    @property
    def stored(self) -> torch.dtype:
        """The weight's dtype."""
        return torch.float8_e4m3fn if self.scaled else self.dtype

    @property
    def weight_format(self) -> str:
        """The name of the weight's format in tuned configurations; for plain weights, their dtype."""
        return str(self.dtype).removeprefix("torch.") if not self.scaled else f"fp8_{_SCALES[self.scaled]}"

    @property
    def normed(self) -> bool:
        """Whether a norm is fused before it."""
        return self.kernel.startswith("add_rms_norm")

    @property
    def returns_normed(self) -> bool:
        """Whether the norm's result is returned too."""
        return self.kernel.endswith("router")

    @property
    def gated(self) -> bool:
        """Whether SwiGLU is fused after it."""
        return self.kernel.endswith("gate_up_silu")

    @property
    def shape(self) -> str:
        """The weight's ``NxK``, as in tuned configurations."""
        return f"{self.out * (1 + self.gated)}x{self.size}"


@dataclass(frozen=True, slots=True)
class Operands:
    """``x`` ``[..., size]``, weight and bias of the GEMM, and the norm's arguments, if there is a norm."""

    x: Tensor
    weight: Weight
    bias: Tensor | None
    residual: Tensor | None = None
    norm_weight: Tensor | None = None
    eps: float = 0.0
    normed_out: Tensor | None = None
    """Contiguous output buffer for the norm's result; only for one row."""
    factor: float = 1.0
    """Of ``x`` in its sum with the residual."""
    activation: str = ""
    """Of ``x``, a name in :data:`llmk_triton.common.activations.KINDS`; empty: none."""
