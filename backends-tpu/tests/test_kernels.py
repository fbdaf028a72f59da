"""The kernels in Pallas, interpreted, compute what plain JAX does at awkward shapes; the plan chooses by shape."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tiny_trees import llama

from llmk.api import AttentionQuery, MoEQuery
from llmk.api.matching import match
from llmk.tree import Attend, SelfAttention
from llmk_tpu.kernels import KERNELS, vmem_bytes
from llmk_tpu.probe import KNOWN

jax = pytest.importorskip("jax", reason="JAX is not installed: pip install 'llmk-backends-tpu[jax]'")

SPECS = {kernel.id: kernel for kernel in KERNELS}
V5E = next(facts for facts in KNOWN if facts.arch == "v5e")
ATTENTION: dict[str, Any] = {
    "platform": V5E,
    "site": "attention",
    "dtype": "bfloat16",
    "cache_dtype": "bfloat16",
    "num_heads": 32,
    "num_kv_heads": 8,
    "head_dim": 128,
    "block_size": 16,
    "scale": 0.1,
}
MOE: dict[str, Any] = {
    "platform": V5E,
    "site": "moe",
    "dtype": "bfloat16",
    "num_experts": 8,
    "top_k": 2,
    "hidden_size": 4096,
    "intermediate_size": 14336,
}


def attend_spec(heads: int, kv_heads: int, head_dim: int, **own: Any) -> Attend:
    block = llama().layers[0][0].block  # type: ignore[union-attr]
    assert isinstance(block, SelfAttention)
    return replace(block.attend, heads=heads, kv_heads=kv_heads, head_dim=head_dim, **own)


@pytest.mark.parametrize(
    ("spec", "block", "tile", "dtype", "error"),
    [
        (attend_spec(6, 2, 128), 16, 1, "float32", 2e-6),
        (attend_spec(2, 1, 40, window=5, softcap=2.0), 8, 8, "float32", 2e-6),
        pytest.param(attend_spec(9, 3, 128, window=20), 16, 32, "float32", 2e-6, marks=pytest.mark.slow),
        pytest.param(attend_spec(4, 4, 24, scale=0.3), 4, 4, "bfloat16", 2e-2, marks=pytest.mark.slow),
    ],
    ids=["decoding", "window-softcap", "long-tiles", "bfloat16"],
)
def test_attention(spec: Attend, block: int, tile: int, dtype: str, error: float) -> None:
    """Requests at the start, in the middle and at the end of a page, and of the table, with a tile that is not full and
    one that is empty. What no request owns, and the other layer's cache, is NaN."""
    import jax.numpy as jnp
    from jax.experimental.pallas import tpu

    from llmk_tpu import paged, ragged

    draw, width = np.random.default_rng(1), 9
    first = np.array([0, 2 * block - 1, 3 * block + 2, width * block - tile], np.int32)
    size = np.array([tile, max(1, tile - 3), 1, tile], np.int32)
    tokens = int(size.sum())
    start = np.concatenate((np.cumsum(size) - size, [0])).astype(np.int32)
    table = draw.permutation(4 * width).astype(np.int32).reshape(4, width)
    cache = np.full((2, 4 * width + 1, 2 * spec.kv_heads, block, spec.head_dim), np.nan, np.float32)
    for row, length in enumerate(first + size):
        for page in range(-(-length // block)):
            kept = draw.standard_normal(cache.shape[2:], dtype=np.float32)
            kept[:, max(0, length - page * block) :] = np.nan
            cache[1, table[row, page]] = kept
    tiles = paged.Tiles(
        row=jnp.array([0, 1, 2, 3, 0]),
        start=jnp.array(start),
        size=jnp.array([*size, 0]),
        place=jnp.array(np.concatenate([at * tile + np.arange(count) for at, count in enumerate(size)])),
    )
    positions = jnp.array(np.concatenate([at + np.arange(count) for at, count in zip(first, size, strict=True)]))
    q = jnp.array(draw.standard_normal((tokens, spec.heads, spec.head_dim)), dtype)
    pages = paged.Pages(jnp.array(cache, dtype), jnp.array(table)[None], jnp.zeros(tokens, jnp.int32))
    given = spec, q, pages, jnp.array([1, 0]), positions, tiles, tile
    expected = np.asarray(paged.attend(*given), np.float32)
    races = tpu.InterpretParams(detect_races=True, uninitialized_memory="nan")
    found = np.asarray(ragged.attend(*given, interpret=races), np.float32)
    assert np.isfinite(expected).all()
    assert np.abs(found - expected).max() < error
    from jax._src.pallas.mosaic.interpret import interpret_pallas_call

    assert not interpret_pallas_call.races.races_found


@pytest.mark.parametrize(
    ("rows_of", "inputs", "outputs"),
    [((3, 0, 17, 1), 40, 24), pytest.param((0, 130, 0, 71, 0), 136, 260, marks=pytest.mark.slow), ((5,), 8, 8)],
)
def test_grouped_gemm(rows_of: tuple[int, ...], inputs: int, outputs: int) -> None:
    """Experts of a layer among others, with no rows, fewer rows than a tile, and sizes that tiles don't divide."""
    import jax.numpy as jnp

    from llmk_tpu import grouped

    draw = np.random.default_rng(2)
    rows = jnp.array(draw.standard_normal((sum(rows_of), inputs)), jnp.float32)
    weights = grouped.Stack(jnp.array(draw.standard_normal((3, len(rows_of), inputs, outputs)), jnp.float32), 1)
    expected = grouped.by_lax(rows, weights, jnp.array(rows_of))
    found = grouped.by_megablox_interpreted(rows, weights, jnp.array(rows_of))
    assert found.shape == expected.shape
    assert np.abs(np.asarray(found - expected)).max() < 1e-4


@pytest.mark.parametrize(
    ("own", "reason"),
    [
        ({}, ""),
        ({"num_heads": 64, "num_kv_heads": 4}, ""),
        ({"dtype": "float32", "cache_dtype": "float32", "block_size": 8}, ""),
        ({"head_dim": 64}, "head_dim"),
        ({"block_size": 8}, "block_size"),
        ({"cache_dtype": "float32"}, "cache_dtype"),
        ({"num_heads": 128, "num_kv_heads": 128}, "vmem"),
        ({"sinks": True}, "not_understood"),
        ({"max_seq_len": 1 << 19}, ""),
        ({"max_seq_len": (1 << 19) + 1}, "max_seq_len"),
        ({"max_seq_len": (1 << 19) + 1, "block_size": 32}, ""),
    ],
)
def test_what_the_attention_kernel_supports(own: dict[str, Any], reason: str) -> None:
    query = AttentionQuery(**{**ATTENTION, **own})
    found = match(SPECS["tpu.ragged_attention"], query)
    assert [each.code for each in found.reasons] == ([reason] if reason else [])
    if not reason:
        assert 1 << 20 < vmem_bytes(query) < 12 << 20


def test_what_the_grouped_gemm_supports() -> None:
    spec = SPECS["tpu.grouped_gemm"]
    assert match(spec, MoEQuery(**MOE))
    assert [each.code for each in match(spec, MoEQuery(**MOE, scaling=2.0)).reasons] == ["not_understood"]
    refused = match(spec, MoEQuery(**{**MOE, "intermediate_size": 100}))
    assert [each.code for each in refused.reasons] == ["intermediate_size"]
