"""Norms, activations, embedding, and the way of queries, keys and values into the cache."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernel_cases.attention import attention_query, random_steps
from kernel_cases.harness import BATCHES, PREFILL, SHAPES, TINY, Case, Named, Shape
from llmk.reference import activations as reference_activations
from llmk.reference import norms as reference_norms
from llmk.reference.composites import make_qk_norm_rope_write_kv
from llmk.reference.rope.rotation import rope
from llmk_triton.attention.backend import TritonAttention, write
from llmk_triton.batch import embedding
from llmk_triton.common import activations, norms

EPS = 1e-6


def cases(device: torch.device, *, tiny: bool) -> Iterator[Named]:
    """All models and batches; inputs of decode stay in the device's cache, as they do in a model."""
    yield "(a launch that does nothing)", partial(_launch, device)
    for shape in TINY if tiny else SHAPES:
        for tokens in (3,) if tiny else (*BATCHES, PREFILL):
            for make in (_rms_norm, _add_rms_norm, _silu_and_mul, _embedding, _qk_norm_rope_write_kv):
                name = make.__name__.removeprefix("_")
                yield f"{name} {shape.name} x{tokens}", partial(make, shape, tokens, device)


@triton.jit
def _nothing(x):
    tl.store(x, 1.0)


def _launch(device: torch.device) -> Case:
    one = torch.ones(1, device=device)

    def run(i: int) -> Tensor:
        _nothing[(1,)](one)
        return one

    return Case(run, lambda: one, 0)


def _random(device: torch.device, sets: int, dtype: torch.dtype, *sizes: int) -> list[Tensor]:
    return [torch.randn(*sizes, device=device).to(dtype) for _ in range(sets)]


def _sets(tokens: int) -> int:
    return 1 if tokens <= max(BATCHES) else 8


def _rms_norm(shape: Shape, tokens: int, device: torch.device) -> Case:
    sets = _sets(tokens)
    xs = _random(device, sets, shape.dtype, tokens, shape.hidden)
    (weight,) = _random(device, 1, shape.dtype, shape.hidden)
    return Case(
        lambda i: norms.rms_norm(xs[i], weight, EPS),
        lambda: reference_norms.rms_norm(xs[0], weight, EPS),
        2 * xs[0].nbytes,
        sets=sets,
    )


def _add_rms_norm(shape: Shape, tokens: int, device: torch.device) -> Case:
    sets = _sets(tokens)
    xs = _random(device, 2 * sets, shape.dtype, tokens, shape.hidden)
    (weight,) = _random(device, 1, shape.dtype, shape.hidden)
    reference = reference_norms.make_add_rms_norm({"rms_norm": reference_norms.rms_norm})
    return Case(
        lambda i: norms.add_rms_norm(xs[i], xs[sets + i], weight, EPS),
        lambda: reference(xs[0], xs[sets], weight, EPS),
        4 * xs[0].nbytes,
        sets=sets,
    )


def _silu_and_mul(shape: Shape, tokens: int, device: torch.device) -> Case:
    sets = _sets(tokens)
    xs = _random(device, sets, shape.dtype, tokens, 2 * shape.inner)
    return Case(
        lambda i: activations.silu_and_mul(xs[i]),
        lambda: reference_activations.silu_and_mul(xs[0]),
        3 * xs[0].nbytes // 2,
        sets=sets,
    )


def _embedding(shape: Shape, tokens: int, device: torch.device) -> Case:
    (table,) = _random(device, 1, shape.dtype, shape.vocab // 8, shape.hidden)
    ids = torch.randint(0, shape.vocab // 8, (tokens,), device=device)
    moved = 2 * tokens * shape.hidden * table.itemsize
    return Case(lambda i: embedding.embedding(ids, table), lambda: table[ids], moved)


def _qk_norm_rope_write_kv(shape: Shape, tokens: int, device: torch.device) -> Case:
    backend, sets = TritonAttention(attention_query(shape), device), _sets(tokens)
    requests, queries = (tokens, 1) if tokens <= max(BATCHES) else (1, tokens)
    steps = random_steps(backend, requests, queries, queries + 16, 1, device)
    cache, meta = steps.cache.zero_(), backend.prepare(steps.index[0])
    sizes = [shape.heads, shape.kv_heads, shape.kv_heads]
    qkv = _random(device, sets, shape.dtype, tokens, sum(sizes), shape.head_dim)
    (weight,) = _random(device, 1, shape.dtype, shape.head_dim)
    angles = torch.randn(4096, shape.head_dim, device=device)
    positions = torch.randint(0, 4096, (tokens,), device=device)
    parts = {"rms_norm": reference_norms.rms_norm, "rope": rope, "attention.write": backend.write}
    reference = make_qk_norm_rope_write_kv(parts)
    rest = (weight, weight, EPS, positions, angles)

    def run(i: int) -> tuple[Tensor, Tensor]:
        return write.qk_norm_rope_write_kv(*qkv[i].split_with_sizes(sizes, 1), *rest, cache, meta), cache

    def expected() -> tuple[Tensor, Tensor]:
        other = torch.zeros_like(cache)
        return reference(*qkv[0].split_with_sizes(sizes, 1), *rest, other, meta), other

    return Case(run, expected, 2 * qkv[0].nbytes + tokens * shape.head_dim * 4, sets=sets)
