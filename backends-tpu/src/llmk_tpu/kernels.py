"""The kernels of programs: what attention, experts and linear layers may be computed by. Needs no JAX."""

from __future__ import annotations

from dataclasses import replace

from llmk.api import OK, AttentionQuery, KernelSpec, LinearQuery, MoEQuery, Needs, Tier, Verdict, no
from llmk.api.cache import DTYPE_BYTES
from llmk_tpu.shapes import TILE

MOSAIC, INTERPRETER = "mosaic", "pallas_interpreter"
"""Features of platforms: the compiler of Pallas's kernels for TPUs, and what runs them elsewhere."""
_LANES = 128
_VMEM_BYTES = 12 << 20
"""Of 16 MiB that a kernel may have on a v5e, what it may need by the estimate of :func:`vmem_bytes`."""
_INDEX_BYTES = 4
_SMEM_BYTES = 512 << 10
"""Of 1 MiB of scalar memory that a core has, what rows of the block table may take."""
_BUFFER_BYTES = 4 << 20
_CHUNK = 512
_ATTENTION_KNOWS = frozenset({"sliding_window", "softcap"})
_MOE_KNOWS = frozenset({"activation", "renormalize"})
_INTERPRETED = "interpreted kernels are slow: they are for tests"


def chunk_of(kv_heads: int, head_dim: int, item_bytes: int) -> int:
    """How many tokens of the cache the attention kernel copies at once: a power of two."""
    chunk = _CHUNK
    while chunk > _LANES and 4 * kv_heads * chunk * head_dim * item_bytes > _BUFFER_BYTES:
        chunk //= 2
    return chunk


def vmem_bytes(query: AttentionQuery) -> int:
    """About what the attention kernel takes of a TPU's vector memory: pages, queries and outputs twice, and what it
    adds up."""
    heads, size, item = query.num_kv_heads, query.head_dim, DTYPE_BYTES[query.cache_dtype]
    rows, chunk = TILE * query.num_heads // heads, chunk_of(heads, size, item)
    pages, tiles = 4 * heads * chunk * size * item, 4 * heads * rows * size * item
    return pages + tiles + 4 * heads * rows * (size + 2 * _LANES) + 3 * 4 * rows * chunk


def smem_bytes(query: AttentionQuery) -> int:
    """What the attention kernel takes of the scalar memory: a request's row of the block table and the next one's, each
    of them twice, since one is copied while the other is read."""
    return 2 * 2 * _INDEX_BYTES * -(-query.max_seq_len // query.block_size)


def supports_ragged(query: AttentionQuery) -> Verdict:
    """Heads that fill registers, in pages that do, of the model's dtype, in the vector memory; sequences whose block
    tables fit into the scalar memory."""
    verdict, rows = supports_interpreted(query), 32 // max(1, DTYPE_BYTES.get(query.cache_dtype, 1))
    if query.head_dim % _LANES:
        verdict &= no("head_dim", wanted=f"a multiple of {_LANES}", found=query.head_dim)
    if query.block_size % rows:
        verdict &= no("block_size", wanted=f"a multiple of {rows}", found=query.block_size)
    if verdict and (taken := vmem_bytes(query)) > _VMEM_BYTES:
        verdict &= no("vmem", wanted=f"{_VMEM_BYTES >> 20} MiB at most", found=f"{taken / 2**20:.1f} MiB")
    if (taken := smem_bytes(query)) > _SMEM_BYTES:
        longest = _SMEM_BYTES // smem_bytes(replace(query, max_seq_len=1)) * query.block_size
        hint = f"set model.max_model_len to {longest} or less, or a larger cache.block_size"
        verdict &= no("max_seq_len", wanted=query.max_seq_len, found=f"up to {longest} tokens", hint=hint)
    return verdict


def supports_interpreted(query: AttentionQuery) -> Verdict:
    """A cache in the model's dtype."""
    if query.cache_dtype != query.dtype:
        return no("cache_dtype", wanted=query.dtype, found=query.cache_dtype)
    return OK


def supports_grouped(query: MoEQuery) -> Verdict:
    """Sizes that fill registers."""
    verdict = OK
    for name in ("hidden_size", "intermediate_size"):
        if (size := getattr(query, name)) % _LANES:
            verdict &= no(name, wanted=f"a multiple of {_LANES}", found=size)
    return verdict


def supports_plain(query: LinearQuery) -> Verdict:
    """Weights that are not quantized."""
    if query.weight_format != "plain":
        return no("weight_format", wanted="plain", found=query.weight_format)
    return OK


_RAGGED = KernelSpec(
    id="tpu.ragged_attention",
    kind="attention",
    implementation="llmk_tpu.ragged:attend",
    tier=Tier.NATIVE,
    needs=Needs(platforms=("tpu",), features=(MOSAIC,), dtypes=("bfloat16", "float32")),
    supports=supports_ragged,
    knows=_ATTENTION_KNOWS,
    summary="Pallas: tiles of a request's queries, pages copied while others are computed",
)
_MEGABLOX = KernelSpec(
    id="tpu.grouped_gemm",
    kind="moe",
    implementation="llmk_tpu.grouped:by_megablox",
    tier=Tier.NATIVE,
    needs=Needs(platforms=("tpu",), features=(MOSAIC,), dtypes=("bfloat16", "float32")),
    supports=supports_grouped,
    knows=_MOE_KNOWS,
    summary="Pallas: JAX's grouped GEMM (megablox) over rows sorted by expert",
)
_INTERPRETERS = Needs(platforms=("tpu",), features=(INTERPRETER,))

KERNELS = (
    _RAGGED,
    replace(
        _RAGGED,
        id="tpu.ragged_attention_interpreted",
        implementation="llmk_tpu.ragged:attend_interpreted",
        needs=_INTERPRETERS,
        supports=supports_interpreted,
        opt_in=_INTERPRETED,
    ),
    KernelSpec(
        id="tpu.paged_attention",
        kind="attention",
        implementation="llmk_tpu.paged:attend",
        tier=Tier.REFERENCE,
        needs=Needs(platforms=("tpu",)),
        knows=_ATTENTION_KNOWS,
        summary="lax: pages gathered by the block table, online softmax in float32",
    ),
    _MEGABLOX,
    replace(
        _MEGABLOX,
        id="tpu.grouped_gemm_interpreted",
        implementation="llmk_tpu.grouped:by_megablox_interpreted",
        needs=_INTERPRETERS,
        supports=lambda query: OK,
        opt_in=_INTERPRETED,
    ),
    KernelSpec(
        id="tpu.ragged_dot",
        kind="moe",
        implementation="llmk_tpu.grouped:by_lax",
        tier=Tier.REFERENCE,
        needs=Needs(platforms=("tpu",)),
        knows=_MOE_KNOWS,
        summary="lax.ragged_dot over rows sorted by expert",
    ),
    KernelSpec(
        id="tpu.dot",
        kind="linear",
        implementation="llmk_tpu.blocks:linear",
        tier=Tier.VENDOR,
        needs=Needs(platforms=("tpu",)),
        supports=supports_plain,
        knows=frozenset({"bias", "weight_format"}),
        summary="dot_general, fused by XLA",
    ),
)
"""What the plan chooses from, site by site."""
