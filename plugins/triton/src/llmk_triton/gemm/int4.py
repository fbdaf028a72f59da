"""GEMMs with weights of the format ``int4_group``: their layout, and launches.

For few rows the time is that of reading the weight, which stays packed. For many it is first widened to the
activations' dtype, which takes as long as reading it a few times, and a library multiplies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget

from llmk.reference.linear import linear_dequantized
from llmk.reference.quantized_weight import PackedWeight, in_order, prepare_int4_group
from llmk_triton.common import pdl
from llmk_triton.common.targets import current_target, has_wave32, num_multiprocessors
from llmk_triton.common.tuned import tuned
from llmk_triton.gemm.int4_kernel import ROWS, int4_kernel, widen_kernel
from llmk_triton.gemm.split_k import COUNTERS, counters

_SLOTS = 4
_TOGETHER = 2
"""Tiles of words that a program may have at once, so that there is a multiple of them."""
_MOST_ROWS = 64
"""Most rows of activations that a program multiplies."""
_SYMMETRIC = 8
_PREFETCH_LINES = 256
"""Most cache lines that a program prefetches before it waits: few enough that all programs together don't fill L2."""
_LEAST_TILES = 4
"""Least tiles of words per split."""
_PTX = {
    torch.bfloat16: ("0x43004300", "0x3f803f80", "bf16x2"),
    torch.float16: ("0x64006400", "0x3c003c00", "f16x2"),
}
"""By dtype: two numbers whose lowest bits count ones (128, 1024), two ones, and the instruction's type."""


@dataclass(frozen=True, slots=True)
class TiledInt4:
    """A weight in tiles of words (:mod:`llmk_triton.gemm.int4_kernel`).

    ``words`` is int16 ``[tiles, blocks, 64, width]``; ``scale`` ``[groups, 64 * tiles]`` in the narrowest dtype that
    has its values; ``zero`` uint8 like it, or ``None``: 8. ``group`` inputs have a scale. ``order`` is as in
    :class:`~llmk.reference.quantized_weight.PackedWeight`.
    """

    words: Tensor
    scale: Tensor
    zero: Tensor | None
    outputs: int
    inputs: int
    group: int
    order: Tensor | None

    @property
    def parts(self) -> int:
        """Groups of a tile of words."""
        return 1 if self.group % (_SLOTS * self.words.shape[3]) == 0 or self.scale.shape[0] == 1 else 2

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """``[out, in]`` in ``dtype``, rounded once."""
        return in_order(widened(self, dtype), self.order)


@dataclass(frozen=True, slots=True)
class Int4Config:
    """Launch configuration: ``block_n`` outputs per program (64 or 128), K split between ``splits`` programs; ``warps``
    and ``stages`` are Triton's."""

    block_n: int
    splits: int
    warps: int
    stages: int


def prepare(parameters: Mapping[str, Tensor]) -> TiledInt4 | PackedWeight:
    """The weight for :func:`linear` of parameters of the format ``int4_group``; the reference's weight where groups
    have no multiple of 32 inputs, or zero points are not whole numbers."""
    whole = prepare_int4_group(parameters)
    outputs, inputs = whole.packed.shape[0], whole.packed.shape[1] * 2
    groups = whole.scale.shape[1]
    group = inputs // groups
    if (groups > 1 and group % 32) or bool((whole.zero != whole.zero.round().clamp(0, 255)).any()):
        return whole
    width = 32 if groups == 1 or group % 128 == 0 else 16
    numbers = torch.stack((whole.packed & 15, whole.packed >> 4), dim=-1).flatten(1)
    more = -outputs % (ROWS * _TOGETHER), -inputs % (_SLOTS * width)
    numbers = (
        F.pad(numbers, (0, more[1], 0, more[0]))
        .to(torch.int16)
        .view(-1, ROWS, (inputs + more[1]) // 4 // width, 4, width)
    )
    words = numbers[..., 0, :] | numbers[..., 1, :] << 4 | numbers[..., 2, :] << 8 | numbers[..., 3, :] << 12
    words = words.transpose(1, 2).contiguous()
    zero = None
    if bool((whole.zero != _SYMMETRIC).any()):
        zero = F.pad(whole.zero.to(torch.uint8), (0, 0, 0, more[0])).T.contiguous()
    scale = _narrowest(F.pad(whole.scale, (0, 0, 0, more[0])).T.contiguous())
    return TiledInt4(words, scale, zero, outputs, inputs, group, whole.order)


def _narrowest(values: Tensor) -> Tensor:
    for dtype in (torch.float16, torch.bfloat16):
        narrow = values.to(dtype)
        if bool((narrow.float() == values).all()):
            return narrow
    return values


def linear(x: Tensor, weight: TiledInt4 | PackedWeight, bias: Tensor | None) -> Tensor:
    """``x @ weight.T + bias``: ``[tokens, in]`` to ``[tokens, out]`` in ``x``'s dtype, bfloat16 or float16."""
    if isinstance(weight, PackedWeight):
        return linear_dequantized(x, weight, bias)
    config = _chosen(x.dtype, x.shape[0], weight.outputs, weight.inputs, current_target(), x.device)
    return launch(x, weight, bias, config)


def linear_many(x: Tensor, weight: TiledInt4 | PackedWeight, bias: Tensor | None) -> Tensor:
    """The same with the weight first rounded to ``x``'s dtype."""
    if isinstance(weight, PackedWeight):
        return linear_dequantized(x, weight, bias)
    return F.linear(_ordered(x, weight), widened(weight, x.dtype), bias)


def widened(weight: TiledInt4, dtype: torch.dtype) -> Tensor:
    """The weight ``[out, in]``, whose columns are in the weight's own order."""
    out = torch.empty(weight.outputs, weight.inputs, dtype=dtype, device=weight.words.device)
    tiles, blocks, _, width = weight.words.shape
    zero = weight.scale if weight.zero is None else weight.zero
    widen_kernel[(tiles, blocks)](
        *(out, weight.words, weight.scale, zero),
        SIZE=weight.inputs,
        OUT=weight.outputs,
        STRIDE=tiles * ROWS,
        BLOCKS=blocks,
        GROUP=weight.group,
        WIDTH=width,
        HAS_ZERO=weight.zero is not None,
        **pdl.options(),
    )
    return out


def choose(target: GPUTarget, dtype: torch.dtype, rows: int, out: int, size: int, num_sms: int) -> Int4Config:
    """The configuration to launch: the tuned one, or by rule as many splits as keep all multiprocessors busy."""
    name = str(dtype).removeprefix("torch.")
    if (found := tuned("linear_int4", target, name, f"{out}x{size}", rows)) is not None:
        return Int4Config(**found)
    # Activations take a stage's memory too, and several programs should fit on a multiprocessor.
    stages = 6 if rows <= 16 else 4 if rows <= 32 else 3
    if target.backend != "cuda":
        stages = 1 if has_wave32(target) else 2
    tiles = triton.cdiv(out, ROWS) * max(1, triton.cdiv(rows, _MOST_ROWS))
    blocks = triton.cdiv(size, _SLOTS * 32)
    splits = max(1, min(4 * num_sms // tiles, blocks // _LEAST_TILES, 16))
    return Int4Config(ROWS, splits, 4, stages)


@cache
def _chosen(dtype: torch.dtype, rows: int, out: int, size: int, target: GPUTarget, device: torch.device) -> Int4Config:
    return choose(target, dtype, rows, out, size, num_multiprocessors(device))


def launch(x: Tensor, weight: TiledInt4, bias: Tensor | None, config: Int4Config) -> Tensor:
    """:func:`linear` with a configuration."""
    x = _ordered(x, weight).contiguous()
    rows, size = x.shape
    out = x.new_empty(rows, weight.outputs)
    if not rows:
        return out
    block_m = min(max(16, triton.next_power_of_2(rows)), _MOST_ROWS)
    tiles, blocks, _, width = weight.words.shape
    grid = (triton.cdiv(weight.outputs, config.block_n), config.splits, triton.cdiv(rows, block_m))
    partial = arrived = out
    if config.splits > 1:
        assert grid[0] * grid[2] <= COUNTERS, f"{grid[0] * grid[2]} tiles, {COUNTERS} counters"
        arrived = counters(x.device)
        shape = (grid[0] * grid[2], config.splits, block_m * config.block_n)
        partial = torch.empty(shape, dtype=torch.float32, device=x.device)
    # Absent tensors are never accessed; any tensor can be passed for them.
    zero, added = (out if tensor is None else tensor for tensor in (weight.zero, bias))
    int4_kernel[grid](
        *(x, weight.words, weight.scale, zero, added, out, partial, arrived, rows),
        SIZE=size,
        OUT=weight.outputs,
        STRIDE=tiles * ROWS,
        BLOCKS=blocks,
        GROUP=weight.group,
        WIDTH=width,
        PARTS=weight.parts,
        BLOCK_M=block_m,
        BLOCK_N=config.block_n,
        SPLITS=config.splits,
        LINES=min(triton.next_power_of_2(triton.cdiv(blocks, config.splits) * width), _PREFETCH_LINES),
        HAS_ZERO=weight.zero is not None,
        HAS_BIAS=bias is not None,
        **code(x.dtype, current_target()),
        num_warps=config.warps,
        num_stages=config.stages,
        **pdl.options(),
    )
    return out


def _ordered(x: Tensor, weight: TiledInt4) -> Tensor:
    return x if weight.order is None else x.index_select(1, weight.order)


@cache
def code(dtype: torch.dtype, target: GPUTarget) -> Mapping[str, str]:
    """The kernels' arguments ``PTX_0`` to ``PTX_3``: for each slot, what makes two numbers of two words, and adds a
    number to each; empty where there is no PTX."""
    if triton.knobs.runtime.interpret or target.backend != "cuda":
        return {f"PTX_{slot}": "" for slot in range(_SLOTS)}
    offset, one, kind = _PTX[dtype]
    return {
        f"PTX_{slot}": (
            "{ .reg .b32 two, one;"
            f" shr.b32 two, $1, {4 * slot};"
            f" lop3.b32 two, two, 0x000f000f, {offset}, 0xea;"
            f" mov.b32 one, {one};"
            f" fma.rn.{kind} $0, two, one, $2; }}"
        )
        for slot in range(_SLOTS)
    }
