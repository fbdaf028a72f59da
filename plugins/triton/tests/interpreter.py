"""Patches Triton's interpreter, which is silently wrong on bfloat16 and fp8: it keeps such values as integers.

Conversions truncate, masks may be numbers, ``tl.dot`` multiplies integers, and so does arithmetic. Here conversions
round to the nearest even, those to fp8 within its range, as hardware does; ``tl.dot`` converts to float32 first, and
arithmetic is an error: kernels are to widen by themselves, as all of this package's do. And it is slow: each function
that a kernel calls has it replace the whole language once more, which took a quarter of these tests' time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl
from numpy.typing import NDArray
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpretedFunction, InterpreterBuilder, TensorHandle

_dot, _cast, _binary = InterpreterBuilder.create_dot, InterpreterBuilder.cast_impl, InterpreterBuilder.binary_op
_load, _store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store
_patch_lang, _range = interpreter._patch_lang, tl.range

_FP8 = tl.float8e4nv
_NARROW = (tl.bfloat16, _FP8)


def patch() -> None:
    """Replaces what is wrong. Raises ``pytest.UsageError`` where Triton's own library is compiled, not interpreted."""
    if not isinstance(tl.sum, InterpretedFunction):
        raise pytest.UsageError(
            "Triton was imported before these tests could switch to its interpreter; set TRITON_INTERPRET=1"
        )
    InterpreterBuilder.create_dot = create_dot
    InterpreterBuilder.cast_impl = cast_impl
    InterpreterBuilder.create_fp_to_fp = lambda self, src, to, mode: cast_impl(self, src, to)
    for name in ("create_fp_trunc", "create_fp_ext"):
        setattr(InterpreterBuilder, name, cast_impl)
    InterpreterBuilder.binary_op = binary_op
    InterpreterBuilder.create_masked_load = create_masked_load
    InterpreterBuilder.create_masked_store = create_masked_store
    interpreter._patch_lang = patch_lang


def patch_lang(fn: Any) -> Any:
    """Replaces the language's functions by interpreted ones, unless they are: a launch restores them at its end."""
    seen = [module for module in (tl, tl.core) if any(value is module for value in fn.__globals__.values())]
    if seen and all(module.range is not _range for module in seen):
        return interpreter._LangPatchScope()
    return _patch_lang(fn)


def create_dot(self: Any, a: Any, b: Any, d: Any, *options: Any) -> Any:
    """``tl.dot`` with operands converted to float32."""
    return _dot(self, _widened(a), _widened(b), d, *options)


def row_by_row_dot(self: Any, a: Any, b: Any, d: Any, *options: Any) -> Any:
    """A matrix product with batch-invariant rows, as tensor cores have and CPU libraries don't."""
    left, right = (_widened(operand).data.astype(np.float32) for operand in (a, b))
    return TensorHandle((left[:, :, None] * right[None]).sum(axis=1) + d.data, d.dtype.scalar)


def cast_impl(self: Any, src: Any, to: Any) -> Any:
    """A conversion that rounds to bfloat16, and to fp8 e4m3, as hardware does."""
    if _FP8 in (to.scalar, src.dtype.scalar) and to.scalar != src.dtype.scalar:
        return _from_fp8(self, src, to) if src.dtype.scalar == _FP8 else _to_fp8(_widened(src))
    if to.scalar == tl.bfloat16 and src.dtype.scalar != tl.bfloat16:
        return TensorHandle(_to_bfloat16(src.data.astype(np.float32)), tl.bfloat16)
    if src.dtype.scalar == tl.bfloat16 and to.scalar != tl.bfloat16:
        return _cast(self, _widened(src), to)
    return _cast(self, src, to)


def binary_op(self: Any, left: Any, right: Any, op: Any) -> Any:
    """Arithmetic, but not on bfloat16."""
    assert left.dtype.scalar not in _NARROW, f"{op.__name__} on {left.dtype}, which the interpreter does on its bits"
    return _binary(self, left, right, op)


def create_masked_load(self: Any, ptrs: Any, mask: Any, *more: Any, **options: Any) -> Any:
    """A load whose mask is one: of truth values, some that are compiled, the interpreter makes numbers."""
    return _load(self, ptrs, _truth(mask), *more, **options)


def create_masked_store(self: Any, ptrs: Any, value: Any, mask: Any, *more: Any, **options: Any) -> Any:
    """A store, likewise. Triton 3.9 refuses numbers."""
    return _store(self, ptrs, value, _truth(mask), *more, **options)


def _truth(mask: Any) -> Any:
    """Loads of descriptors give an array, which is of truth values."""
    return TensorHandle(mask.data.astype(np.bool_), tl.int1) if isinstance(mask, TensorHandle) else mask


def _widened(handle: Any) -> Any:
    if handle.dtype.scalar != tl.bfloat16:
        return handle
    return TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)


def _from_fp8(self: Any, src: Any, to: Any) -> Any:
    wide = torch.from_numpy(src.data).view(torch.float8_e4m3fn).float().numpy()
    return cast_impl(self, TensorHandle(wide, tl.float32), to)


def _to_fp8(src: Any) -> Any:
    limit = torch.finfo(torch.float8_e4m3fn).max
    narrow = torch.from_numpy(src.data.astype(np.float32)).clamp(-limit, limit).to(torch.float8_e4m3fn)
    return TensorHandle(narrow.view(torch.uint8).numpy(), _FP8)


def _to_bfloat16(x: NDArray[np.float32]) -> NDArray[np.uint16]:
    bits = np.ascontiguousarray(x).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(x), np.uint16(0x7FC0), rounded)
