"""Native attention over latent vectors against the reference, at every level of instructions that this machine has."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attention_steps import blocks_of, query_of, step_of
from levels import LIBRARY, at_level
from torch import Tensor

from llmk.reference.attention.paged import ReferenceAttention
from llmk.reference.compare import relative_error

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
BOUND = {torch.float32: 1e-5, torch.bfloat16: 8e-3, torch.float16: 1.5e-3}
CPU = torch.device("cpu")


@pytest.fixture(params=LIBRARY.levels)
def native(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    with at_level(request.param, monkeypatch) as modules:
        yield modules["latent"]


def written(backend: Any, rows: list[Tensor], step: Any, query: Any, dtype: torch.dtype) -> Tensor:
    """A cache of NaN in which the requests' rows are, as the backend stores them."""
    layout = backend.cache_layout(blocks_of(query, [len(each) for each in rows]))
    cache = torch.full(layout.shape, torch.nan, dtype=dtype)
    whole = step_of(query, [len(each) for each in rows], [len(each) for each in rows])
    backend.write(torch.cat(rows)[:, None], None, cache, backend.prepare(whole))
    return cache


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("heads", "size", "latent", "block"),
    [(16, 576, 512, 16), (5, 40, 32, 16), (3, 13, 7, 10), (4, 24, 16, 32), (1, 8, 8, 1)],
)
def test_results_are_the_references(
    heads: int, size: int, latent: int, block: int, dtype: torch.dtype, native: Any
) -> None:
    query = query_of(
        str(dtype).removeprefix("torch."), num_heads=heads, num_kv_heads=1, head_dim=size, latent_dim=latent,
        block_size=block,
    )  # fmt: skip
    for lengths, asked in (([1], [1]), ([70, 5, 33], [1, 5, 20]), ([16, 17, 40], [1, 1, 1])):
        rows = [torch.randn(length, size).to(dtype) for length in lengths]
        step, q = step_of(query, lengths, asked), torch.randn(sum(asked), heads, size).to(dtype)
        found = []
        for backend in (native.NativeLatentAttention(query, CPU), ReferenceAttention(query, CPU)):
            cache = written(backend, rows, step, query, dtype)
            found.append(backend.run(q, cache, backend.prepare(step)))
        assert relative_error(*found) < BOUND[dtype]


def test_a_row_is_the_same_in_any_batch(native: Any) -> None:
    query = query_of("bfloat16", num_heads=6, num_kv_heads=1, head_dim=72, latent_dim=64)
    backend, lengths = native.NativeLatentAttention(query, CPU), [50, 90]
    rows = [torch.randn(length, 72).bfloat16() for length in lengths]
    q = torch.randn(sum(lengths), 6, 72).bfloat16()
    step = step_of(query, lengths, lengths)
    cache = written(backend, rows, step, query, torch.bfloat16)
    whole = backend.run(q, cache, backend.prepare(step))
    last = step_of(query, lengths, [1, 1])
    assert torch.equal(backend.run(q[[49, 139]], cache, backend.prepare(last)), whole[[49, 139]])


def test_padding_is_skipped(native: Any) -> None:
    query = query_of("float32", num_heads=2, num_kv_heads=1, head_dim=12, latent_dim=8)
    backend, step = native.NativeLatentAttention(query, CPU), step_of(query, [3], [3])
    step.slot_mapping, step.num_tokens = torch.cat((step.slot_mapping, torch.full((2,), -1))), 5
    cache, meta = torch.zeros(backend.cache_layout(1).shape), backend.prepare(step)
    backend.write(torch.ones(5, 1, 12), None, cache, meta)
    assert cache.sum() == 3 * 12
    out = backend.run(torch.randn(5, 2, 12), cache, meta)
    assert torch.equal(out[3:], torch.zeros(2, 2, 8))
