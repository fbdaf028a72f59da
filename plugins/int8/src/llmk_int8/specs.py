"""The plugin module of ``llmk-int8``: a method that quantizes while loading, and linear kernels. Imports no torch."""

from __future__ import annotations

from llmk.api import (
    OK,
    ArchRange,
    Checkpoint,
    KernelSpec,
    LinearQuery,
    Needs,
    QuantizationSpec,
    Tier,
    TokenBand,
    Verdict,
    hookimpl,
    no,
)

_FORMAT, _DYNAMIC = "int8_channel", "int8_dynamic"
_PREPARE = "llmk_int8.linear:prepare"
_LAYOUT = "reference_int8_channel"
"""Weights have the reference's layout, so that all kernels of a site share them."""

_ALIGNMENT = 32
"""torch's GEMM reads rows in whole vectors, and out of bounds if the row size is not a multiple of one."""
_MOST_ROWS = 16
"""Most rows (M) for which it was faster than converting the weights, measured (README)."""


@hookimpl
def llmk_quantization_methods() -> list[QuantizationSpec]:
    """Plain weights, quantized to int8 with a scale per output channel, or to int4 with a scale per group."""
    return [
        QuantizationSpec(
            id="int8.int8",
            name="int8",
            weight_format=_FORMAT,
            claims=claims_plain,
            implementation="llmk_int8.method:Int8",
            examples="llmk_int8.examples:INT8",
            online=True,
            summary="int8 quantized while loading, a scale per output channel",
        ),
        QuantizationSpec(
            id="int8.int4",
            name="int4",
            weight_format="int4_group",
            claims=claims_plain,
            implementation="llmk_int8.method:Int4",
            examples="llmk_int8.examples:INT4",
            weight_bits=4.5,
            online=True,
            summary="int4 quantized while loading, a scale per 32 inputs",
        ),
    ]


@hookimpl
def llmk_linear_kernels() -> list[KernelSpec]:
    """A small-M GEMM that reads int8 weights, and a GEMM for many rows that converts the weights first."""
    return [
        KernelSpec(
            id="int8.linear_packed",
            kind="linear",
            implementation="llmk_int8.linear:linear_packed",
            prepare=_PREPARE,
            layout=_LAYOUT,
            tier=Tier.NATIVE,
            needs=Needs(platforms=("cpu",), archs=(ArchRange("x86_64", (4,)),), dtypes=("bfloat16",)),
            supports=supports_packed,
            bands=(TokenBand(1, _MOST_ROWS + 1),),
            summary="torch's own small-M GEMM with int8 weights",
        ),
        KernelSpec(
            id="int8.linear_widened",
            kind="linear",
            implementation="llmk_int8.linear:linear_widened",
            prepare=_PREPARE,
            layout=_LAYOUT,
            tier=Tier.PORTABLE,
            needs=Needs(dtypes=("bfloat16", "float32")),
            supports=supports_format,
            capture="full",
            summary="torch's own GEMM with converted weights, scaled afterwards",
        ),
    ]


def claims_plain(checkpoint: Checkpoint) -> Verdict:
    """Claims weights that are not quantized yet."""
    if not checkpoint.quantization:
        return OK
    found = checkpoint.quantization.get("quant_method", "unnamed")
    return no("quantized", wanted="plain weights", found=found, hint="leave out model.quantization")


def supports_format(query: LinearQuery) -> Verdict:
    """int8 weights with a scale per output channel."""
    able = query.weight_format in (_FORMAT, _DYNAMIC)
    return OK if able else no("weight_format", wanted=query.weight_format, found=f"{_FORMAT} or {_DYNAMIC}")


def supports_packed(query: LinearQuery) -> Verdict:
    """The same, with rows of whole vectors."""
    verdict = supports_format(query)
    if query.in_features % _ALIGNMENT:
        verdict &= no("in_features", wanted=f"a multiple of {_ALIGNMENT}", found=query.in_features)
    return verdict
