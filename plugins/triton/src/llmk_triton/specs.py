"""The plugin ``triton``: kernels for every platform that publishes the feature ``triton``. Imports neither torch nor
Triton."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from llmk.api import (
    FIRST_FIELDS,
    OK,
    KernelSpec,
    LinearQuery,
    OpContract,
    OpQuery,
    Tier,
    TokenBand,
    Verdict,
    hookimpl,
    no,
)
from llmk_triton.attention.specs import attention_specs
from llmk_triton.attention_support import NO_FP8, supports_latent_op, supports_write
from llmk_triton.kernel_spec import HALVES, HOPPER, SMALL_N, WIDEST_ROW, kernel_spec, widens_fp8
from llmk_triton.latent.specs import selected_specs
from llmk_triton.moe.specs import library_moe_spec, moe_spec, quantized_moe_specs
from llmk_triton.recurrent.specs import recurrent_specs

_NORM_FACTS = frozenset({"norm_offset"})
_SUM_FACTS = frozenset({"residual_multiplier"})
_GATED_FACTS = frozenset({"activation_alpha", "activation_limit", "up_offset"})
_WRITE_FACTS = _NORM_FACTS | {"value_dim", "no_rope", "norm_after_rope", "rotary_neighbours", "shared_kv"}
_LATER_FACTS = {
    **dict.fromkeys(("rms_norm", "layer_norm", "rms_norm_add", "sandwich_norm"), _NORM_FACTS),
    **dict.fromkeys(("add_rms_norm", "add_layer_norm"), _NORM_FACTS | _SUM_FACTS),
    "qk_norm_rope_write_kv": _WRITE_FACTS,
    "qk_norm_rope_attention": _WRITE_FACTS | {"attention_sinks"},
    **dict.fromkeys(("silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul"), _GATED_FACTS),
}
"""By op, the facts that were added after the first release and that its kernel knows."""

_OPS = (
    ("rms_norm", "common.norms:rms_norm", "Root-mean-square norm, whole rows per program."),
    ("add_rms_norm", "common.norms:add_rms_norm", "Residual sum and norm in one launch."),
    (
        "add_rms_norm_fp32_residual",
        "common.norms:add_rms_norm_fp32_residual",
        "Residual sum in float32 and norm in one launch.",
    ),
    ("rms_norm_add", "common.norms:rms_norm_add", "Norm and residual sum in one launch."),
    ("sandwich_norm", "common.norms:sandwich_norm", "Norm, residual sum and norm in one launch."),
    ("layer_norm", "common.layer_norms:layer_norm", "LayerNorm, whole rows per program."),
    ("add_layer_norm", "common.layer_norms:add_layer_norm", "Residual sum and LayerNorm in one launch."),
    ("silu_and_mul", "common.activations:silu_and_mul", "SwiGLU in one launch."),
    ("gelu_and_mul", "common.activations:gelu_and_mul", "GEGLU with the exact GELU in one launch."),
    (
        "gelu_tanh_and_mul",
        "common.activations:gelu_tanh_and_mul",
        "GEGLU with GELU's tanh approximation.",
    ),
    ("activate", "common.activations:activation", "An activation without a gate, in one launch."),
    ("xielu", "common.activations:xielu", "xIELU in one launch."),
    ("softcap", "common.activations:softcap", "Soft cap of logits in one launch."),
    ("sigmoid_gate", "common.activations:sigmoid_gate", "Multiplies by a sigmoid gate in one launch."),
    ("embedding", "batch.embedding:embedding", "Token embedding."),
    ("scaled_embedding", "batch.embedding:scaled_embedding", "Token embedding and its factor in one launch."),
    (
        "qk_norm_rope_write_kv",
        "attention.write:qk_norm_rope_write_kv",
        "QK-norm, RoPE and K/V write in one launch.",
    ),
    (
        "qk_norm_rope_attention",
        "attention.backend:qk_norm_rope_attention",
        "The same and decode attention in one launch; two for prefill.",
    ),
    ("sample", "sampling.sample:sample", "Samples one token per row without sorting, by a hash of seed and position."),
    ("logprobs", "sampling.logprobs:logprobs", "Log-probabilities, ranks and the most likely tokens in one read."),
    (
        "apply_penalties",
        "sampling.penalties:apply_penalties",
        "Sampling penalties, in place.",
    ),
    ("apply_mask", "sampling.mask:apply_mask", "Packed masks, in one launch, in place."),
    (
        "update_rows",
        "batch.batch_state:update_rows",
        "Writes runs into rows of the batch state in one launch.",
    ),
    ("build_step", "batch.batch_state:build_step", "Builds a step's input tensors in one launch."),
    (
        "compute_slot_mapping",
        "batch.batch_state:compute_slot_mapping",
        "Block table and slot mapping of a step in one launch.",
    ),
    (
        "append_tokens",
        "batch.batch_state:append_tokens",
        "Writes sampled tokens where the next step reads them.",
    ),
    (
        "accept_drafts",
        "batch.batch_state:accept_drafts",
        "Compares drafts with what was sampled in their place in one launch.",
    ),
)


_FORMATS = {"plain": "", "fp8_channel": "reference_fp8_channel", "fp8_block": "reference_fp8_block"}
"""Weight formats of the small-M GEMMs, and the reference's layout of each."""

_LAYOUTS = ("plain", *filter(None, _FORMATS.values()))
"""Weight layouts of the small-M GEMMs."""

_INT4 = "int4_group"
_INT4_ROWS = 256
"""Most rows (M) for which 4-bit weights are multiplied packed. For more, widening them first costs less than reading
and unpacking them once for every 64 rows."""

_SMALL_M = 16
"""Most rows (M) of the small-M GEMMs, which are bound by reading the weight; for more rows, libraries are as fast
(measured on an H200)."""

_TMA_ROWS = 128
"""Most rows (M) of the TMA kernels: one tile contains them all."""
_TMA_MULTIPLE = 8
"""16-bit elements per 16 bytes: TMA needs rows whose length is a multiple of this."""

_SMALL_N_ROWS, _SMALL_N_INPUTS = 64, 4096
"""Most rows (M) and inputs (K) for which the small-N kernel is faster than a library (measured on an H200)."""

_FUSED_SMALL_M = (
    ("activate_linear", _SMALL_M, "Activation and small-M GEMM in one launch."),
    ("gate_up_silu", _SMALL_M, "Small-M gate and up projection and SwiGLU in one launch."),
    ("add_rms_norm_linear", 1, "Residual sum, norm and linear layer in one launch, for one row."),
    ("add_rms_norm_router", 1, "Residual sum, norm and router in one launch, for one row."),
    (
        "add_rms_norm_gate_up_silu",
        1,
        "Residual sum, norm, gate and up projection, SwiGLU in one launch, for one row.",
    ),
)
"""Fused small-M GEMMs: op, most rows for which fusion is faster, and summary."""


def supports_norm(query: OpQuery) -> Verdict:
    """Norms whose rows fit in one program."""
    size = query.facts.get("size", 0)
    return OK if size <= WIDEST_ROW else no("size", wanted=size, found=f"up to {WIDEST_ROW}")


def supports_gemm(query: LinearQuery | OpQuery, *layouts: str) -> Verdict:
    """Weights in one of ``layouts``. In fp8 only where devices have it, or where Triton widens it and no library
    multiplies by it: libraries have GEMMs for scales per channel in the device's own format."""
    wanted = query.weight_format if isinstance(query, LinearQuery) else query.weight_layout
    if wanted not in layouts:
        return no("weight", wanted=wanted, found=" or ".join(layouts))
    platform = query.platform
    has_fp8 = "fp8" in platform.features or (wanted.endswith("fp8_block") and widens_fp8(platform))
    return OK if has_fp8 or wanted in ("plain", _INT4) else NO_FP8


def supports_tma(query: LinearQuery | OpQuery) -> Verdict:
    """Plain weights with rows that TMA can load."""
    verdict = supports_gemm(query, "plain")
    size = query.in_features if isinstance(query, LinearQuery) else query.facts.get("size", 0)
    if size % _TMA_MULTIPLE:
        verdict &= no("size", wanted=size, found=f"multiples of {_TMA_MULTIPLE}")
    return verdict


def supports_small_n(query: LinearQuery) -> Verdict:
    """Plain weights with few outputs (N)."""
    verdict = supports_gemm(query, "plain")
    if query.out_features > SMALL_N:
        verdict &= no("out_features", wanted=query.out_features, found=f"up to {SMALL_N}")
    if query.in_features > _SMALL_N_INPUTS:
        verdict &= no("in_features", wanted=query.in_features, found=f"up to {_SMALL_N_INPUTS}")
    return verdict


def supports_router(query: OpQuery) -> Verdict:
    """Rows that fit in one program, and weights in any layout of the small-M GEMMs."""
    return supports_norm(query) & supports_gemm(query, *_LAYOUTS)


def _with_layouts(*layouts: str) -> Callable[[LinearQuery | OpQuery], Verdict]:
    return lambda query: supports_gemm(query, *layouts)


_SUPPORTS: Mapping[str, Callable[[Any], Verdict]] = {
    "qk_norm_rope_write_kv": supports_write,
    "qk_norm_rope_attention": supports_write,
    "add_rms_norm_router": supports_router,
}


@hookimpl
def llmk_attention_backends() -> Iterable[KernelSpec]:
    """Paged attention."""
    return attention_specs()


@hookimpl
def llmk_moe_kernels() -> Iterable[KernelSpec]:
    """Mixture of experts."""
    return [moe_spec(), library_moe_spec(), *quantized_moe_specs()]


@hookimpl
def llmk_linear_kernels() -> Iterable[KernelSpec]:
    """Small-M GEMMs."""
    small_m = [
        kernel_spec(
            "linear_small_m" + (f"_{weight_format}" if layout else ""),
            "linear",
            "gemm.small_m:linear",
            prepare=f"llmk.reference.quantized_weight:prepare_{weight_format}" if layout else "",
            layout=layout or "plain",
            score=50,
            supports=_with_layouts(weight_format),
            bands=(TokenBand(1, _SMALL_M + 1),),
            summary="Small-M GEMM, bound by reading the weight.",
        )
        for weight_format, layout in _FORMATS.items()
    ]
    narrow = kernel_spec(
        "linear_small_n",
        "linear",
        "gemm.small_m:linear",
        # Above the libraries' score; they are faster for more outputs.
        score=150,
        needs=HOPPER,
        supports=supports_small_n,
        bands=(TokenBand(_SMALL_M + 1, _SMALL_N_ROWS + 1),),
        summary=f"GEMM with up to {SMALL_N} outputs, such as a router's: bound by latency.",
    )
    packed = [
        kernel_spec(
            f"linear_int4{suffix}",
            "linear",
            f"gemm.int4:linear{suffix}",
            prepare="llmk_triton.gemm.int4:prepare",
            layout="triton_int4_group",
            needs=HALVES,
            supports=_with_layouts(_INT4),
            **fields,
        )
        for suffix, fields in (
            (
                "",
                {"bands": (TokenBand(1, _INT4_ROWS + 1),), "summary": "4-bit weights, unpacked in registers; split-K."},
            ),
            (
                "_many",
                {"score": -1, "summary": "The library's GEMM of 4-bit weights, first widened in one launch."},
            ),
        )
    ]
    return [*small_m, narrow, *packed, _tma_kernel("linear", "linear")]


def _tma_kernel(kind: str, name: str) -> KernelSpec:
    """A GEMM whose weight is loaded by TMA."""
    return kernel_spec(
        f"{name}_tma",
        kind,
        f"gemm.small_m:{name}",
        op=name if kind == "op" else "",
        opt_in="it is faster than the platform's library only for some shapes",
        needs=HOPPER,
        supports=supports_tma,
        bands=(TokenBand(_SMALL_M + 1, _TMA_ROWS + 1),),
        summary=f"Up to {_TMA_ROWS} rows, weight loaded by TMA; chosen by measurement.",
    )


@hookimpl
def llmk_ops() -> Iterable[KernelSpec | OpContract]:
    """Fused ops."""
    small_m = [
        kernel_spec(
            name,
            "op",
            f"gemm.small_m:{name}",
            op=name,
            supports=_SUPPORTS.get(name, _with_layouts(*_LAYOUTS)),
            bands=(TokenBand(1, most + 1),),
            knows=FIRST_FIELDS | (_SUM_FACTS if name.startswith("add_") else frozenset()),
            summary=summary,
        )
        for name, most, summary in _FUSED_SMALL_M
    ]
    others = [
        kernel_spec(
            name,
            "op",
            where,
            op=name,
            supports=_SUPPORTS.get(name, supports_norm if "norm" in name else lambda query: OK),
            knows=FIRST_FIELDS | _LATER_FACTS.get(name, frozenset()),
            deterministic=True,
            summary=summary,
        )
        for name, where, summary in _OPS
    ]
    latent = kernel_spec(
        "latent_attention",
        "op",
        "latent.backend:latent_attention",
        op="latent_attention",
        needs=HALVES,
        supports=supports_latent_op,
        summary="Norm, RoPE, cache write and absorbed queries in one launch, attention, and a GEMM per head.",
    )
    tma = _tma_kernel("op", "gate_up_silu")
    return [*small_m, *others, *_activate_linear(), tma, latent, *selected_specs(), *recurrent_specs()]


def _activate_linear() -> tuple[OpContract, KernelSpec]:
    """The contract and the reference of an op that models don't name."""
    pattern = ("activate", "linear")
    contract = OpContract(
        id="triton.activate_linear",
        op="activate_linear",
        signature="(x, activation, weight, bias) -> out",
        facts=("intermediate_size", "activation"),
        parts=pattern,
        pattern=pattern,
        examples="llmk_triton.activate_linear:EXAMPLES",
        weights=("weight",),
        summary="An activation without a gate, then a linear layer.",
    )
    reference = KernelSpec(
        id="triton.activate_linear_reference",
        kind="op",
        op=contract.op,
        implementation="llmk_triton.activate_linear:make_activate_linear",
        tier=Tier.REFERENCE,
        parts=pattern,
        deterministic=True,
        capture="full",
        summary=contract.summary,
    )
    return contract, reference
