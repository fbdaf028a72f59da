"""Packed masks of allowed tokens."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from llmk_triton.common import pdl

_BLOCK = 4096
"""Tokens of a row per program."""
_PLAIN = ("rows", "bits", "stride_rows", "stride_bits")
"""Arguments that Triton must not specialize: they may be parts of tensors, with any alignment."""


@triton.jit(do_not_specialize=_PLAIN)
def mask_kernel(
    logits, rows, bits, vocab, stride, stride_rows, stride_bits, BLOCK: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    """Excludes the tokens whose bits are 0; what is allowed is neither read nor written. The grid is ``[blocks of
    tokens, masks]``."""
    pdl.release(PDL)
    pdl.wait(PDL)
    number = tl.program_id(1).to(tl.int64)
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = token < vocab
    word = tl.load(bits + number * stride_bits + (token >> 5), there, other=-1)
    row = tl.load(rows + number * stride_rows).to(tl.int64)
    lowest = tl.full([BLOCK], float("-inf"), tl.float32).to(logits.dtype.element_ty)
    tl.store(logits + row * stride + token, lowest, there & (((word >> (token & 31)) & 1) == 0))


def apply_mask(logits: Tensor, rows: Tensor, bits: Tensor) -> Tensor:
    """As :func:`llmk.reference.sampling.sample.apply_mask`, of logits in any floating dtype, whose rows are
    contiguous."""
    count, vocab = rows.shape[0], logits.shape[1]
    if count:
        grid = (triton.cdiv(vocab, _BLOCK), count)
        mask_kernel[grid](
            logits, rows, bits, vocab, logits.stride(0), rows.stride(0), bits.stride(0), BLOCK=_BLOCK, **pdl.options()
        )  # fmt: skip
    return logits
