"""Native norms, activations and rotations against the reference, at every level of instructions that this machine
has."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attention_steps import query_of, step_of
from levels import LIBRARY, at_level
from torch import Tensor

from llmk.reference import activations, norms
from llmk.reference.attention.paged import ReferenceAttention
from llmk.reference.compare import relative_error
from llmk.reference.composites import make_qk_norm_rope_write_kv
from llmk.reference.rope.rotation import cos_sin_cache, rope, rope_interleaved

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
BOUND = {torch.float32: 1e-5, torch.bfloat16: 4e-3, torch.float16: 1e-3}
SHAPES = [(1, 1024), (3, 7), (0, 16), (5, 2, 130), (300, 129)]
PARTS = {"rms_norm": norms.rms_norm}
ADD = norms.make_add_rms_norm(PARTS)
NORM_ADD = norms.make_rms_norm_add(PARTS)
SANDWICH = norms.make_sandwich_norm({**PARTS, "add_rms_norm": ADD})


@pytest.fixture(params=LIBRARY.levels)
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    with at_level(request.param, monkeypatch) as modules:
        yield modules


def agree(found: Any, expected: Any, dtype: torch.dtype) -> bool:
    return bool(relative_error(found, expected) < BOUND[dtype])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_norms(shape: tuple[int, ...], dtype: torch.dtype, kernels: Any) -> None:
    native, size = kernels["norms"], shape[-1]
    x, residual = torch.randn(*shape[:-1], 2 * size).to(dtype).chunk(2, dim=-1)
    weight, other = torch.randn(2, size).to(dtype)
    for options in ({}, {"norm_offset": 1.0}):
        assert agree(native.rms_norm(x, weight, 1e-6, **options), norms.rms_norm(x, weight, 1e-6, **options), dtype)
        found, expected = (op(x, residual, weight, 1e-6, **options) for op in (native.rms_norm_add, NORM_ADD))
        assert agree(found, expected, dtype)
        found, expected = (op(x, residual, weight, other, 1e-6, **options) for op in (native.sandwich_norm, SANDWICH))
        assert agree(found, expected, dtype)
        for scaled in (options, {**options, "residual_multiplier": 0.22}):
            found, expected = (op(x, residual, weight, 1e-6, **scaled) for op in (native.add_rms_norm, ADD))
            assert agree(found, expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul"])
def test_gates(name: str, dtype: torch.dtype, kernels: Any) -> None:
    wide = torch.tensor([0.0, -0.0, 1e-30, 30.0, -30.0, 88.0, -88.0, 120.0, -120.0]).repeat(3, 2).to(dtype)
    for x in (wide, *(torch.randn(*shape[:-1], 2 * shape[-1]).to(dtype) * 4 for shape in SHAPES)):
        for options in ({}, {"activation_alpha": 1.702, "activation_limit": 7.0, "up_offset": 1.0}):
            found, expected = (getattr(of, name)(x, **options) for of in (kernels["activations"], activations))
            assert agree(found, expected, dtype)


@pytest.mark.parametrize("axes", [None, (1, 3, 4)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rotations(dtype: torch.dtype, axes: tuple[int, ...] | None, kernels: Any) -> None:
    q, k, given = _rotated(dtype, axes)
    for name, reference in (("rope", rope), ("rope_interleaved", rope_interleaved)):
        assert agree(getattr(kernels["attention"], name)(q, k, **given), reference(q, k, **given), dtype)


@pytest.mark.parametrize("axes", [None, (1, 3, 4)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_is_written_is_read(dtype: torch.dtype, axes: tuple[int, ...] | None, kernels: Any) -> None:
    """Norms, rotates, writes and attends, with slots of -1 at the end."""
    q, k, given = _rotated(dtype, axes)
    v, weights = torch.randn(k.shape).to(dtype), torch.randn(2, 24).to(dtype)
    query = query_of(str(dtype).removeprefix("torch."), num_heads=6, num_kv_heads=2, head_dim=24)
    step = step_of(query, [3, 20], [3, 20])
    step.slot_mapping = torch.cat((step.slot_mapping, torch.full((2,), -1)))
    step.num_tokens = 25

    def attended(backend: Any, op: Any) -> tuple[Tensor, Tensor]:
        layout = backend.cache_layout(4)
        cache, meta = torch.full(layout.shape, torch.nan, dtype=dtype), backend.prepare(step)
        keywords = {"axes": given["axes"]} if axes else {}
        new = op(q, k, v, *weights, 1e-6, given["positions"], given["cos_sin"], cache, meta, **keywords)
        return new[:23], backend.run(new, cache, meta)[:23]

    parts = {"rms_norm": norms.rms_norm, "rope": rope}
    reference = ReferenceAttention(query, torch.device("cpu"))
    op = make_qk_norm_rope_write_kv({**parts, "attention.write": reference.write})
    native = kernels["attention"]
    found = attended(native.NativeAttention(query, torch.device("cpu")), native.qk_norm_rope_write_kv)
    assert agree(found, attended(reference, op), dtype)


def _rotated(dtype: torch.dtype, axes: tuple[int, ...] | None) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Queries and keys of 25 tokens that lie side by side, and what they are rotated by: 16 of 24 elements."""
    q, k = torch.randn(25, 8, 24).to(dtype).split_with_sizes([6, 2], dim=1)
    given = {"positions": torch.arange(25).flip(0), "cos_sin": cos_sin_cache({}, 16, 25, 1e4)}
    if axes:
        given["axes"] = torch.repeat_interleave(torch.arange(3), torch.tensor(axes))
        given["positions"] = torch.randint(25, (len(axes), 25)).T
    return q, k, given
