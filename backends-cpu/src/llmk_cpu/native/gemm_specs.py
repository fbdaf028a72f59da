"""Specs of the native GEMMs, and what they support. Imports no torch."""

from __future__ import annotations

from typing import Any

from llmk.api import FIRST_FIELDS, KernelSpec, LinearQuery, MoEQuery, Needs, Tier, TokenBand, Verdict, no
from llmk.reference.specs import supports_activation
from llmk_cpu.native.specs import DTYPES, supports_library

_NARROW = ("bfloat16", "float16")
"""Dtypes that lose more than rounding activations to 16-bit integers does."""

_PREPARED = "llmk.reference.quantized_weight:prepare_"
_SCORINGS = ("softmax", "sigmoid")
_MANY = 96
"""Rows from which copying the weights pays, measured on Zen 3 and Zen 5 with one thread."""
_MULTIPLE = 32
"""Inputs of weights in groups, which are whole blocks of the kernel."""

_ALSO = {"int8_channel": ("int8_dynamic",)}
"""Further formats with the same weights. Activations as 16-bit integers are finer than what they allow."""


def linear_kernels() -> list[KernelSpec]:
    """GEMMs with plain weights in the layout of checkpoints, and with integer weights."""
    return [
        _kernel("linear", "linear:linear", "plain", DTYPES, summary="GEMMs that read the checkpoint's layout"),
        _kernel(
            "linear_many",
            "linear:linear_many",
            "plain",
            DTYPES,
            deterministic=False,
            bands=(TokenBand(_MANY, score=1),),
            summary="GEMMs that first copy weights in blocks, for many rows",
        ),
        _kernel(
            "linear_int8",
            "quantized:linear_int8",
            "int8_channel",
            _NARROW,
            prepare=f"{_PREPARED}int8_channel",
            layout="reference_int8_channel",
            summary="GEMMs of int8 weights and activations as 16-bit integers",
        ),
        *(kernel for bits in (4, 8) for kernel in _group_kernels(bits)),
        *(_converted(weight_format) for weight_format in ("fp8_tensor", "fp8_channel", "fp8_block")),
    ]


def _group_kernels(bits: int) -> list[KernelSpec]:
    same: dict[str, Any] = {
        "prepare": f"llmk_cpu.native.quantized:prepare_int{bits}",
        "layout": f"cpu_int{bits}_group",
        "knows": FIRST_FIELDS | {"lookup"},
    }
    return [
        _kernel(
            f"linear_int{bits}_group",
            "quantized:linear_groups",
            f"int{bits}_group",
            _NARROW,
            summary=f"GEMMs of int{bits} weights and activations as 16-bit integers",
            **same,
        ),
        _kernel(
            f"linear_int{bits}_group_many",
            "quantized:linear_groups_many",
            f"int{bits}_group",
            _NARROW,
            deterministic=False,
            bands=(TokenBand(_MANY, score=1),),
            summary=f"GEMMs that first widen int{bits} weights, for many rows",
            **same,
        ),
    ]


def moe_kernels() -> list[KernelSpec]:
    """Mixtures of experts with plain and integer weights."""
    return [
        _experts("", "plain", "prepare_plain", DTYPES),
        _experts("_int8", "int8_channel", "prepare_int8_experts", _NARROW),
        _experts("_int4_group", "int4_group", "prepare_int4_group_experts", _NARROW),
        _experts("_int8_group", "int8_group", "prepare_int8_group_experts", _NARROW),
    ]


def _experts(suffix: str, weight_format: str, prepare: str, dtypes: tuple[str, ...]) -> KernelSpec:
    def supports(query: MoEQuery) -> Verdict:
        verdict = supports_library(query) & supports_activation(query)
        if query.weight_format not in (weight_format, *_ALSO.get(weight_format, ())):
            verdict &= no("weight_format", wanted=query.weight_format, found=weight_format)
        elif weight_format.endswith("_group"):
            for name in ("hidden_size", "intermediate_size"):
                if (size := getattr(query, name)) % _MULTIPLE:
                    verdict &= no(name, wanted=size, found=f"multiples of {_MULTIPLE}")
        if query.scoring not in _SCORINGS:
            verdict &= no("scoring", wanted=query.scoring, found=", ".join(_SCORINGS))
        size, left_over = divmod(query.num_experts, query.num_groups)
        smallest = 2 if query.group_scoring == "top2_sum" and query.num_groups > 1 else 1
        if left_over or size < smallest or query.top_k > min(query.top_groups, query.num_groups) * size:
            groups = f"{query.top_groups} of {query.num_groups} groups of {query.num_experts} experts"
            verdict &= no("num_groups", wanted=f"{query.top_k} experts from {groups}", found="equal groups that fit")
        return verdict

    return KernelSpec(
        id=f"cpu.fused_moe{suffix}",
        kind="moe",
        implementation="llmk_cpu.native.experts:fused_moe",
        prepare=f"llmk_cpu.native.experts:{prepare}",
        layout=f"cpu_experts{suffix}",
        tier=Tier.NATIVE,
        score=1,
        needs=Needs(platforms=("cpu",), dtypes=dtypes),
        supports=supports,
        knows=FIRST_FIELDS | {"activation_alpha", "activation_limit", "up_offset", "gated", "router_softcap"},
        deterministic=True,
        capture="full",
        summary="reads the weights of chosen experts only",
    )


def _converted(weight_format: str) -> KernelSpec:
    return _kernel(
        f"linear_{weight_format}",
        "linear:linear_converted",
        weight_format,
        DTYPES,
        prepare=f"{_PREPARED}{weight_format}",
        layout=f"reference_{weight_format}",
        summary="GEMMs of weights that are converted in every call",
    )


def _kernel(
    name: str, where: str, weight_format: str, dtypes: tuple[str, ...], *, layout: str = "plain", **fields: Any
) -> KernelSpec:
    def supports(query: LinearQuery) -> Verdict:
        verdict = supports_library(query)
        if query.weight_format not in (weight_format, *_ALSO.get(weight_format, ())):
            verdict &= no("weight_format", wanted=query.weight_format, found=weight_format)
        elif weight_format.endswith("_group") and query.in_features % _MULTIPLE:
            verdict &= no("in_features", wanted=query.in_features, found=f"multiples of {_MULTIPLE}")
        return verdict

    return KernelSpec(
        id=f"cpu.{name}",
        kind="linear",
        implementation=f"llmk_cpu.native.{where}",
        tier=Tier.NATIVE,
        score=1,
        needs=Needs(platforms=("cpu",), dtypes=dtypes),
        supports=supports,
        layout=layout,
        capture="full",
        **{"deterministic": True, **fields},
    )
