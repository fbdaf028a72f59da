"""AITER's candidates. It has no package on the index (``aiter`` there is another project), so it is looked for, never
required. It was never run here, hence each is chosen by name or by measurement only. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llmk.api import OK, AttentionQuery, KernelSpec, LinearQuery, MoEQuery, Needs, OpQuery, Tier, TokenBand, Verdict, no
from llmk_rocm.aiter.signatures import installed

_OWN = "llmk_rocm.aiter."
_PACKAGE = "amd-aiter @ git+https://github.com/ROCm/aiter"
"""Where it is to be had. Versions don't say what a build has: :func:`installed` reads that."""
_FEW_ROWS = 17
"""Rows (M) from which on AITER passes plain GEMMs to the library, unless its table has the shape."""
_BLOCK, _TILE = 128, 32
"""Inputs that share a scale, and elements of a tile of experts' weights."""
_PREPARE_BLOCK = "llmk.reference.quantized_weight:prepare_fp8_block"
_FNUZ, _OCP = "fp8_fnuz", "fp8"
_KV = "rocm.aiter_attention"
_LAYOUT, _LATENT_LAYOUT = "rocm_nhd", "rocm_latent"


def _spec(
    name: str,
    kind: str,
    where: str,
    functions: tuple[str, ...],
    supports: Callable[[Any], Verdict],
    *,
    features: tuple[str, ...] = (),
    dtypes: tuple[str, ...] = ("bfloat16", "float16"),
    **fields: Any,
) -> KernelSpec:
    """A candidate that calls ``functions``."""

    def judge(query: Any) -> Verdict:
        return supports(query) & (installed(*functions) if query.platform.name == "rocm" else OK)

    return KernelSpec(
        id=f"rocm.aiter_{name}",
        kind=kind,
        implementation=f"{_OWN}{where}",
        tier=Tier.VENDOR,
        # Of other architectures, AITER's own modules have no code.
        needs=Needs(
            platforms=("rocm",),
            features=(*features, "triton"),
            archs=("gfx942", "gfx950"),
            dtypes=dtypes,
            packages=(_PACKAGE,),
        ),
        supports=judge,
        capture="full",
        jit=True,
        opt_in="its calls are checked against its repository, and were never run on a chip",
        **fields,
    )


def attention_specs() -> list[KernelSpec]:
    """Paged attention, of keys and values and of latent vectors."""
    return [
        _spec(
            "attention",
            "attention",
            "attention:UnifiedAttention",
            ("unified_attention", "reshape_and_cache_flash"),
            _supports_attention,
            knows=frozenset({"sliding_window", "softcap", "sinks"}),
            layout=_LAYOUT,
            summary="AITER's unified attention: prompts and decoding in one kernel",
        ),
        _spec(
            "attention_latent",
            "attention",
            "attention:LatentAttention",
            ("mla_decode_fwd", "mla_prefill_fwd", "concat_and_cache_mla"),
            _supports_latent,
            dtypes=("bfloat16",),
            knows=frozenset({"latent_dim"}),
            layout=_LATENT_LAYOUT,
            summary="AITER's latent attention (MLA), through block tables",
        ),
    ]


def _supports_attention(query: AttentionQuery) -> Verdict:
    verdict = _cache(query)
    if query.num_heads % query.num_kv_heads:
        verdict &= no("num_kv_heads", wanted=f"{query.num_heads} heads", found=f"{query.num_kv_heads} K/V heads")
    return verdict


def _supports_latent(query: AttentionQuery) -> Verdict:
    verdict = _cache(query)
    if query.latent_dim is None:
        verdict &= no("latent_dim", wanted="keys and values", found="latent rows only")
    return verdict


def _cache(query: AttentionQuery) -> Verdict:
    """A cache of the engine's dtype, in blocks that are tiles of a kernel."""
    verdict = OK
    if query.cache_dtype != query.dtype:
        verdict &= no("cache_dtype", wanted=query.cache_dtype, found=query.dtype)
    if query.block_size < 16 or query.block_size & (query.block_size - 1):
        verdict &= no("block_size", wanted=query.block_size, found="powers of two from 16 on")
    return verdict


def moe_specs() -> list[KernelSpec]:
    """Mixtures of experts, plain and in both formats of fp8."""
    formats = [("plain", "", ()), *((f"fp8_{kind}", f"_fp8_{kind}", (_OCP,)) for kind in ("channel", "block"))]
    formats += [(f"fp8_{kind}", f"_fp8_{kind}_fnuz", (_FNUZ,)) for kind in ("channel", "block")]
    return [
        _spec(
            f"fused_moe{suffix}",
            "moe",
            "experts:fused_moe",
            ("fused_moe", "shuffle_weight"),
            _supports_experts(stored),
            features=features,
            prepare=f"{_OWN}experts:prepare{suffix.replace('_fp8', '') or '_plain'}",
            layout=f"rocm_experts{suffix}",
            summary=f"AITER's experts, weights {stored.replace('_', ' with scales by ')}",
        )
        for stored, suffix, features in formats
    ]


def _supports_experts(stored: str) -> Callable[[MoEQuery], Verdict]:
    def supports(query: MoEQuery) -> Verdict:
        verdict = _stored_as(query, stored)
        if query.activation != "silu":
            verdict &= no("activation", wanted=query.activation, found="silu")
        if query.bias:
            verdict &= no("bias", wanted="experts with biases", found="experts without biases")
        unit = _BLOCK if stored == "fp8_block" else _TILE
        for field, size in (("hidden_size", query.hidden_size), ("intermediate_size", query.intermediate_size)):
            if size % unit:
                verdict &= no(field, wanted=f"a multiple of {unit}", found=size)
        return verdict

    return supports


def linear_specs() -> list[KernelSpec]:
    """Skinny GEMMs of plain weights, and fp8 weights with scales by blocks in both formats."""
    skinny = _spec(
        "linear",
        "linear",
        "linear:linear",
        ("gemm_a16w16",),
        lambda query: _stored_as(query, "plain"),
        bands=(TokenBand(1, _FEW_ROWS),),
        summary="AITER's GEMM for few rows, by its table of tuned shapes",
    )
    blocks = [
        _spec(
            f"fp8_block{suffix}",
            "linear",
            "linear:linear_block",
            ("gemm_a8w8_blockscale",),
            _supports_blocks,
            features=(feature,),
            dtypes=("bfloat16",),
            prepare=prepare,
            layout=layout,
            summary="fp8 weights with scales by blocks, by AITER",
        )
        for suffix, feature, prepare, layout in (
            ("", _OCP, _PREPARE_BLOCK, "reference_fp8_block"),
            ("_fnuz", _FNUZ, f"{_OWN}linear:prepare_block_fnuz", "rocm_fp8_block_fnuz"),
        )
    ]
    return [skinny, *blocks]


def _supports_blocks(query: LinearQuery) -> Verdict:
    verdict = _stored_as(query, "fp8_block")
    if query.in_features % _BLOCK:
        verdict &= no("in_features", wanted=f"a multiple of {_BLOCK}", found=query.in_features)
    return verdict


def _stored_as(query: LinearQuery | MoEQuery, weight_format: str) -> Verdict:
    if query.weight_format == weight_format:
        return OK
    return no("weight_format", wanted=query.weight_format, found=weight_format)


def op_specs() -> list[KernelSpec]:
    """Norms, alone and before fp8 GEMMs, and the rotation of heads with their write to the cache."""
    norms = [
        _spec(name, "op", f"norms:{name}", (function,), lambda query: OK, op=name, summary=summary)
        for name, function, summary in (
            ("rms_norm", "rmsnorm2d_fwd", "AITER's root-mean-square norm"),
            ("add_rms_norm", "rmsnorm2d_fwd_with_add", "AITER's residual sum and norm in one launch"),
        )
    ]
    quantized = [
        _spec(
            f"add_rms_norm_linear{suffix}",
            "op",
            "norms:add_rms_norm_linear",
            ("rmsnorm2d_fwd_with_dynamicquant", "rmsnorm2d_fwd_with_add_dynamicquant"),
            _with_layout(layout),
            op="add_rms_norm_linear",
            features=(feature,),
            dtypes=("bfloat16",),
            summary="AITER's residual sum, norm and quantization in one launch, then hipBLASLt",
        )
        for suffix, feature, layout in (
            ("_fp8", _OCP, "reference_fp8_channel"),
            ("_fp8_fnuz", _FNUZ, "rocm_fp8_channel_fnuz"),
        )
    ]
    write = _spec(
        "rope_write_kv",
        "op",
        "attention:rope_write_kv",
        ("fused_qk_rope_reshape_and_cache",),
        _supports_write,
        op="qk_norm_rope_write_kv",
        dtypes=("bfloat16",),
        summary="AITER's RoPE and K/V write in one launch",
    )
    return [*norms, *quantized, write]


def _with_layout(layout: str) -> Callable[[OpQuery], Verdict]:
    def supports(query: OpQuery) -> Verdict:
        return OK if query.weight_layout == layout else no("weight", wanted=query.weight_layout, found=layout)

    return supports


def _supports_write(query: OpQuery) -> Verdict:
    """Heads that are rotated whole and not normed, whose size is a power of two."""
    verdict, facts = OK, query.facts
    size = facts.get("head_dim", 0)
    if query.attention != _KV:
        verdict &= no("attention", wanted=query.attention, found=f"the cache of {_KV} only")
    if facts.get("qk_norm"):
        verdict &= no("qk_norm", wanted="normed heads", found="rotation alone")
    if facts.get("rotary_dim") != size or size & (size - 1):
        found = "heads that are rotated whole, of a power of two"
        verdict &= no("rotary_dim", wanted=f"{facts.get('rotary_dim')} of {size}", found=found)
    return verdict
