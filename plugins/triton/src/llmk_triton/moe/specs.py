"""The kernel of mixtures of experts. Imports neither torch nor Triton."""

from __future__ import annotations

from functools import partial

from llmk.api import FIRST_FIELDS, KernelSpec, MoEQuery, Needs, TokenBand, Verdict, no
from llmk.reference.specs import supports_activation, supports_groups
from llmk_triton.attention_support import NO_FP8
from llmk_triton.kernel_spec import HALVES, kernel_spec, widens_fp8

_KNOWN = FIRST_FIELDS | {"activation_alpha", "activation_limit", "up_offset", "gated"}
_SCORINGS = ("softmax", "sigmoid")
_GROUP_SCORINGS = ("max", "top2_sum")
_MANY_TOKENS = 2048
_ALIGNMENT = 8
"""Elements of 16 bytes, at multiples of which rows of the library's operands start."""
_LARGE_EXPERT = 1 << 24
_ROWS, _ROWS_OF_LARGE = 256, 128
"""Rows of an expert, on average, from which on the library is faster, measured on an H100: 256, or 128 where a weight
has :data:`_LARGE_EXPERT` elements."""
_MOST_SUMMED = 32
"""Most experts of a token whose outputs one program sums: with more, it takes minutes to compile."""
_MOST_GROUPS = 32
"""Most groups of experts, whose scores a program computes one after the other."""
_MOST_EXPERTS = 1024
"""Most experts whose logits one program holds for a few tokens."""


def moe_spec() -> KernelSpec:
    """Routing and experts."""
    summary = "Routing on the device; GEMVs for few tokens, grouped GEMM for more."
    where = "moe.fused:fused_moe"
    return kernel_spec("fused_moe", "moe", where, supports=supports_moe, knows=_KNOWN, summary=summary)


def library_moe_spec() -> KernelSpec:
    """The same for steps in which each expert has many rows."""
    return kernel_spec(
        "fused_moe_library",
        "moe",
        "moe.library:fused_moe",
        needs=Needs(
            features=("triton",),
            archs=("sm_90",),
            dtypes=("bfloat16",),
            packages=("triton>=3.6,<3.10",),
        ),
        bands=(TokenBand(_MANY_TOKENS, score=50),),
        supports=supports_library,
        knows=FIRST_FIELDS | {"gated", "activation_limit"},
        summary="Routing on the device; torch's grouped GEMM (CUTLASS) of each expert's rows.",
    )


def quantized_moe_specs() -> tuple[KernelSpec, ...]:
    """The same of experts with 4-bit and with fp8 weights."""
    fp8 = (
        kernel_spec(
            f"fused_moe_{weight_format}",
            "moe",
            "moe.fused:fused_moe",
            prepare="llmk_triton.moe.fused:prepare_fp8",
            layout=f"triton_experts_{weight_format}",
            supports=partial(supports_moe, weight_format=weight_format),
            knows=_KNOWN,
            summary="Routing on the device; grouped GEMM of fp8 weights, widened in registers.",
        )
        for weight_format in ("fp8_channel", "fp8_block")
    )
    int4 = kernel_spec(
        "fused_moe_int4",
        "moe",
        "moe.int4:fused_moe",
        prepare="llmk_triton.moe.int4:prepare",
        layout="triton_experts_int4_group",
        needs=HALVES,
        supports=partial(supports_moe, weight_format="int4_group"),
        knows=FIRST_FIELDS | {"gated"},
        summary="Routing on the device; grouped GEMM of 4-bit weights, unpacked in registers.",
    )
    return int4, *fp8


def supports_library(query: MoEQuery) -> Verdict:
    """Plain experts without biases, few enough, or large enough, that copying their rows and storing what the
    activation reads costs less than the library's GEMMs gain."""
    verdict = supports_moe(query)
    if query.bias:
        verdict &= no("bias", wanted="experts with biases", found="experts without biases")
    if query.top_k > _MOST_SUMMED:
        verdict &= no("top_k", wanted=query.top_k, found=f"up to {_MOST_SUMMED}")
    for name in ("hidden_size", "intermediate_size"):
        if getattr(query, name) % _ALIGNMENT:
            verdict &= no(name, wanted=f"a multiple of {_ALIGNMENT}", found=getattr(query, name))
    least = _ROWS if query.hidden_size * query.intermediate_size < _LARGE_EXPERT else _ROWS_OF_LARGE
    rows = _MANY_TOKENS * query.top_k // query.num_experts
    if rows < least:
        found = f"{rows} of {_MANY_TOKENS} tokens"
        verdict &= no("num_experts", wanted=f"{least} rows for each expert on average", found=found)
    return verdict


def supports_moe(query: MoEQuery, weight_format: str = "plain") -> Verdict:
    """Experts stored in a format, those in 4 bits without biases."""
    verdict = supports_activation(query) & supports_groups(query)
    if query.weight_format != weight_format:
        verdict &= no("weight_format", wanted=query.weight_format, found=weight_format)
    elif weight_format.startswith("fp8") and not widens_fp8(query.platform):
        verdict &= NO_FP8
    if query.scoring not in _SCORINGS:
        verdict &= no("scoring", wanted=query.scoring, found=", ".join(_SCORINGS))
    if query.bias and weight_format == "int4_group":
        verdict &= no("bias", wanted="experts with biases", found="experts without biases")
    if query.group_scoring not in _GROUP_SCORINGS:
        verdict &= no("group_scoring", wanted=query.group_scoring, found=", ".join(_GROUP_SCORINGS))
    if query.num_groups > _MOST_GROUPS:
        verdict &= no("num_groups", wanted=query.num_groups, found=f"up to {_MOST_GROUPS}")
    if query.num_experts > _MOST_EXPERTS:
        verdict &= no("num_experts", wanted=query.num_experts, found=f"up to {_MOST_EXPERTS}")
    return verdict
