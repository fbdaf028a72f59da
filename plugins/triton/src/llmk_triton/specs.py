"""The plugin ``triton``: kernels for every platform that publishes the feature ``triton``. Needs neither torch nor
Triton."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from llmk.api import (
    OK,
    AttentionQuery,
    KernelSpec,
    LinearQuery,
    MoEQuery,
    Needs,
    OpQuery,
    Tier,
    TokenBand,
    Verdict,
    hookimpl,
    no,
)

_PACKAGE = "llmk_triton"
_ATTENTION = "triton.attention"
_LAYOUT = "paged_hnd"
_DTYPES = ("bfloat16", "float16", "float32")
_NEEDS = Needs(features=("triton",), dtypes=_DTYPES, packages=("triton>=3.6,<3.10",))
_HALVES = replace(_NEEDS, dtypes=("bfloat16", "float16"))
_HOPPER = replace(_HALVES, archs=("sm_90",))
"""Where there is a bulk copy engine of the kind that kernels here use, and where products of few outputs were measured
to be faster than a library's."""
_WIDEST_ROW = 1 << 15
"""Elements that a norm keeps in one program."""
_WIDEST_HEAD = 256
_LARGEST_GROUP = 32
"""Heads that share a key head and fit into one tile in every dtype."""
_ACTIVATIONS = ("silu", "gelu", "gelu_tanh")
_SCORINGS = ("softmax", "sigmoid")
_MOST_EXPERTS = 1024
"""Experts of which one program looks at a few tokens' logits."""

_NO_FP8 = no("missing_feature", wanted="fp8", found="a platform without")

_OPS = (
    ("rms_norm", "common.norms:rms_norm", "Root-mean-square norm, whole rows per program."),
    ("rms_norm_plus_one", "common.norms:rms_norm_plus_one", "The same with a weight that is stored less one."),
    ("add_rms_norm", "common.norms:add_rms_norm", "Residual sum and norm in one launch."),
    ("add_rms_norm_plus_one", "common.norms:add_rms_norm_plus_one", "The same with a weight that is stored less one."),
    ("sandwich_norm_plus_one", "common.norms:sandwich_norm_plus_one", "Norm, residual sum and norm in one launch."),
    ("silu_and_mul", "common.activations:silu_and_mul", "SwiGLU in one launch."),
    ("gelu_and_mul", "common.activations:gelu_and_mul", "GEGLU with the exact GELU in one launch."),
    (
        "gelu_tanh_and_mul",
        "common.activations:gelu_tanh_and_mul",
        "GEGLU with GELU's tanh approximation.",
    ),
    ("embedding", "batch.embedding:embedding", "Token embedding."),
    (
        "qk_norm_rope_write_kv",
        "attention.write:qk_norm_rope_write_kv",
        "QK-norm, RoPE and K/V write in one launch.",
    ),
    (
        "qk_norm_rope_attention",
        "attention.backend:qk_norm_rope_attention",
        "That and decode in one launch; two for prefill.",
    ),
    ("sample", "sampling.sample:sample", "One token per row without sorting, by a hash of seed and position."),
    ("logprobs", "sampling.logprobs:logprobs", "Log-probabilities, ranks and the likeliest tokens in one reading."),
    ("apply_penalties", "sampling.penalties:apply_penalties", "Penalties of the tokens seen, in place."),
    ("update_rows", "batch.batch_state:update_rows", "Ragged runs into rows of the batch state in one launch."),
    ("build_step", "batch.batch_state:build_step", "A step's tokens in one launch."),
    ("map_slots", "batch.batch_state:map_slots", "A step's block table and slots in one launch."),
    (
        "append_tokens",
        "batch.batch_state:append_tokens",
        "Sampled tokens, for the next step to read.",
    ),
)


_FORMATS = {"plain": "", "fp8_channel": "reference_fp8_channel", "fp8_block": "reference_fp8_block"}
"""Formats of the weights of products with few rows, and in which of the reference's layouts they are kept."""

_LAYOUTS = ("plain", *filter(None, _FORMATS.values()))
"""Those, and plain ones."""

_MOST_ROWS = 16
"""Rows up to which a product is as fast as its weight is read; with more, measured on an H200, libraries do as well."""

_SOME_ROWS = 128
"""Rows up to which the bulk copy engine's tiles have them all."""
_COPIED = 8
"""Values of 16 bits of which rows have a multiple where the bulk copy engine can fetch them."""

NARROW = 256
"""Outputs up to which a product is a matter of latency, not of reading the weight: a router's."""
_NARROW_ROWS, _NARROW_INPUTS = 64, 4096
"""For how many rows, and of how many inputs, such products take less time than a library's, measured on an H200."""

_FEW_ROWS = (
    ("gate_up_silu", _MOST_ROWS, "Gate and up product and SwiGLU of few rows in one launch."),
    ("add_rms_norm_linear", 1, "Residual sum, norm and product of one row in one launch."),
    ("add_rms_norm_router", 1, "Residual sum, norm and a router's product of one row in one launch."),
    ("add_rms_norm_gate_up_silu", 1, "Residual sum, norm, gate and up product and SwiGLU of one row in one launch."),
)
"""Products that are fused with what stands around them, and for how many rows that pays."""


def supports_attention(query: AttentionQuery) -> Verdict:
    """An unquantized cache, or fp8 where there is arithmetic for it; heads and groups that a program's registers
    hold."""
    verdict = OK
    if query.cache_dtype not in (*_DTYPES, "float8_e4m3fn"):
        verdict &= no("cache_dtype", wanted=query.cache_dtype, found=", ".join(_DTYPES))
    elif query.cache_dtype not in _DTYPES and "fp8" not in query.platform.features:
        verdict &= _NO_FP8
    if query.num_heads % query.num_kv_heads:
        verdict &= no("num_kv_heads", wanted=f"{query.num_heads} heads", found=f"{query.num_kv_heads} key heads")
    elif query.num_heads // query.num_kv_heads > _LARGEST_GROUP:
        found = f"up to {_LARGEST_GROUP} heads per key head"
        verdict &= no("num_heads", wanted=query.num_heads // query.num_kv_heads, found=found)
    if query.scale <= 0:
        verdict &= no("scale", wanted=query.scale, found="above 0 only")
    if query.head_dim > _WIDEST_HEAD:
        verdict &= no("head_dim", wanted=query.head_dim, found=f"up to {_WIDEST_HEAD}")
    return verdict


def supports_moe(query: MoEQuery) -> Verdict:
    """Unquantized experts without biases, all of which every token chooses among."""
    verdict = OK
    if query.weight_format != "plain":
        verdict &= no("weight_format", wanted=query.weight_format, found="plain")
    if query.activation not in _ACTIVATIONS:
        verdict &= no("activation", wanted=query.activation, found=", ".join(_ACTIVATIONS))
    if query.scoring not in _SCORINGS:
        verdict &= no("scoring", wanted=query.scoring, found=", ".join(_SCORINGS))
    if query.bias:
        verdict &= no("bias", wanted="experts with biases", found="products without")
    if query.top_groups < query.num_groups:
        groups = f"experts of {query.top_groups} of {query.num_groups} groups"
        verdict &= no("num_groups", wanted=groups, found="a choice among all experts")
    if query.num_experts > _MOST_EXPERTS:
        verdict &= no("num_experts", wanted=query.num_experts, found=f"up to {_MOST_EXPERTS}")
    return verdict


def supports_norm(query: OpQuery) -> Verdict:
    """Rows that one program holds."""
    size = query.facts.get("size", 0)
    return OK if size <= _WIDEST_ROW else no("size", wanted=size, found=f"up to {_WIDEST_ROW}")


def supports_write(query: OpQuery) -> Verdict:
    """The cache, and what prepares steps, of this plugin's own attention."""
    if query.attention == _ATTENTION:
        return OK
    return no("attention", wanted=query.attention, found=f"writes to the cache of {_ATTENTION} only")


def supports_product(query: LinearQuery | OpQuery, *kept: str) -> Verdict:
    """Weights that are ``kept`` in one of these layouts; in fp8 where the platform has it."""
    wanted = query.weight_format if isinstance(query, LinearQuery) else query.weight_layout
    if wanted not in kept:
        return no("weight", wanted=wanted, found=" or ".join(kept))
    return OK if wanted == "plain" or "fp8" in query.platform.features else _NO_FP8


def supports_bulk(query: LinearQuery | OpQuery) -> Verdict:
    """Weights as they are, in rows that the bulk copy engine can fetch."""
    verdict = supports_product(query, "plain")
    size = query.in_features if isinstance(query, LinearQuery) else query.facts.get("size", 0)
    if size % _COPIED:
        verdict &= no("size", wanted=size, found=f"multiples of {_COPIED}")
    return verdict


def supports_narrow(query: LinearQuery) -> Verdict:
    """Weights as they are, of few outputs."""
    verdict = supports_product(query, "plain")
    if query.out_features > NARROW:
        verdict &= no("out_features", wanted=query.out_features, found=f"up to {NARROW}")
    if query.in_features > _NARROW_INPUTS:
        verdict &= no("in_features", wanted=query.in_features, found=f"up to {_NARROW_INPUTS}")
    return verdict


def supports_router(query: OpQuery) -> Verdict:
    """Rows that one program holds, and weights in any layout of these products."""
    return supports_norm(query) & supports_product(query, *_LAYOUTS)


def _among(*kept: str) -> Callable[[LinearQuery | OpQuery], Verdict]:
    return lambda query: supports_product(query, *kept)


_SUPPORTS: Mapping[str, Callable[[Any], Verdict]] = {
    "qk_norm_rope_write_kv": supports_write,
    "qk_norm_rope_attention": supports_write,
    "add_rms_norm_router": supports_router,
}


def _kernel(name: str, kind: str, where: str, **fields: Any) -> KernelSpec:
    """A kernel of this package, which serves wherever Triton compiles, and in recorded steps; or as ``fields`` say."""
    given: dict[str, Any] = {"tier": Tier.PORTABLE, "needs": _NEEDS, "capture": "full", "jit": True} | fields
    return KernelSpec(id=f"triton.{name}", kind=kind, implementation=f"{_PACKAGE}.{where}", **given)


@hookimpl
def llmk_attention_backends() -> Iterable[KernelSpec]:
    """Paged attention."""
    return [
        _kernel(
            "attention",
            "attention",
            "attention.backend:TritonAttention",
            supports=supports_attention,
            knows=frozenset({"sliding_window", "softcap", "sinks"}),
            layout=_LAYOUT,
            deterministic=True,
            host_cost_us=10.0,
            summary="Tiles through the block table; decoding requests split their keys.",
        )
    ]


@hookimpl
def llmk_moe_kernels() -> Iterable[KernelSpec]:
    """Mixture of experts."""
    summary = "Routes on the device; vectors times matrices for few tokens, products by blocks of rows for more."
    return [_kernel("fused_moe", "moe", "moe.fused:fused_moe", supports=supports_moe, summary=summary)]


@hookimpl
def llmk_linear_kernels() -> Iterable[KernelSpec]:
    """Products of few rows."""
    few_rows = [
        _kernel(
            "linear_few_rows" + (f"_{weight_format}" if layout else ""),
            "linear",
            "gemm.small_m:linear",
            prepare=f"llmk.reference.quantized_weight:prepare_{weight_format}" if layout else "",
            layout=layout or "plain",
            score=50,
            supports=_among(weight_format),
            bands=(TokenBand(1, _MOST_ROWS + 1),),
            summary="As fast as the weight is read.",
        )
        for weight_format, layout in _FORMATS.items()
    ]
    narrow = _kernel(
        "linear_narrow",
        "linear",
        "gemm.small_m:linear",
        # Above libraries, which are the best there is for more outputs.
        score=150,
        needs=_HOPPER,
        supports=supports_narrow,
        bands=(TokenBand(_MOST_ROWS + 1, _NARROW_ROWS + 1),),
        summary=f"Up to {NARROW} outputs, as a router's: many programs share them, and none waits for a launch.",
    )
    return [*few_rows, narrow, _by_bulk("linear", "linear")]


def _by_bulk(kind: str, name: str) -> KernelSpec:
    """A product whose weight comes by the bulk copy engine."""
    return _kernel(
        f"{name}_bulk",
        kind,
        f"gemm.small_m:{name}",
        op=name if kind == "op" else "",
        opt_in="it is faster than the platform's library on some shapes alone",
        needs=_HOPPER,
        supports=supports_bulk,
        bands=(TokenBand(_MOST_ROWS + 1, _SOME_ROWS + 1),),
        summary=f"Up to {_SOME_ROWS} rows, the weight streamed by Hopper's bulk copy engine; chosen by measurement.",
    )


@hookimpl
def llmk_ops() -> Iterable[KernelSpec]:
    """Fused ops."""
    few_rows = [
        _kernel(
            name,
            "op",
            f"gemm.small_m:{name}",
            op=name,
            supports=_SUPPORTS.get(name, _among(*_LAYOUTS)),
            bands=(TokenBand(1, most + 1),),
            summary=summary,
        )
        for name, most, summary in _FEW_ROWS
    ]
    others = [
        _kernel(
            name,
            "op",
            where,
            op=name,
            supports=_SUPPORTS.get(name, supports_norm if "norm" in name else lambda query: OK),
            deterministic=True,
            summary=summary,
        )
        for name, where, summary in _OPS
    ]
    return [*few_rows, _by_bulk("op", "gate_up_silu"), *others]
