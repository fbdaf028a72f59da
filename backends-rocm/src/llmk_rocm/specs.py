"""The plugin ``rocm``: platform, linear kernels, AITER's kernels, defaults and checks. Imports no torch."""

from __future__ import annotations

from typing import Any

from llmk.api import (
    OK,
    Default,
    KernelSpec,
    LinearQuery,
    ModelFacts,
    Needs,
    PlatformFacts,
    PlatformSpec,
    RankRules,
    Tier,
    TokenBand,
    Verdict,
    hookimpl,
    no,
)
from llmk_rocm.aiter.specs import attention_specs, linear_specs, moe_specs, op_specs
from llmk_rocm.architectures import KNOWN
from llmk_rocm.defaults import advise
from llmk_rocm.probe import probe

_MANY_ROWS = 17
"""Rows (M) from which on the library keeps the matrix units busy. With fewer, a GEMM is bound by reading the weight,
and small-M kernels read it faster."""
_ALIGNMENT = 16
"""``torch._scaled_mm`` takes sizes that are multiples of it."""
_PREPARE = {
    "tensor": "llmk.reference.quantized_weight:prepare_fp8_tensor_by_channel",
    "channel": "llmk.reference.quantized_weight:prepare_fp8_channel",
}


@hookimpl
def llmk_platforms() -> list[PlatformSpec]:
    """AMD GPUs, ranked above the CPU."""
    return [
        PlatformSpec(
            id="rocm.rocm",
            name="rocm",
            implementation="llmk_rocm.platform:ROCmPlatform",
            ranks=RankRules(
                resource="GPU",
                network=("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"),
                visible=("HIP_VISIBLE_DEVICES",),
            ),
            probe=probe,
            known=KNOWN,
            vouches=("llmk-triton",),
            rank=100,
            summary="AMD GPUs, through torch's ROCm build",
        )
    ]


@hookimpl
def llmk_linear_kernels() -> list[KernelSpec]:
    """hipBLASLt for plain weights, and for fp8 weights in the format that the chip multiplies."""
    return [
        _linear(
            "linear",
            implementation="torch.nn.functional:linear",
            needs=Needs(platforms=("rocm",)),
            supports=_supports_plain,
            summary="hipBLASLt through torch",
        ),
        *(_fp8(granularity, fnuz=fnuz) for granularity in ("tensor", "channel") for fnuz in (False, True)),
        *linear_specs(),
    ]


def _fp8(granularity: str, *, fnuz: bool) -> KernelSpec:
    name = f"fp8_{granularity}" + ("_fnuz" if fnuz else "")

    def supports(query: LinearQuery) -> Verdict:
        verdict = _stored_as(query, f"fp8_{granularity}")
        for field, size in (("in_features", query.in_features), ("out_features", query.out_features)):
            if size % _ALIGNMENT:
                verdict &= no(field, wanted=f"a multiple of {_ALIGNMENT}", found=size)
        return verdict

    return _linear(
        f"linear_{name}",
        implementation="llmk_rocm.fp8:linear_rowwise",
        prepare=f"llmk_rocm.fp8:prepare_{granularity}_fnuz" if fnuz else _PREPARE[granularity],
        # The reference's layout, so that small-M kernels can share the site; they don't know the other format.
        layout="rocm_fp8_channel_fnuz" if fnuz else "reference_fp8_channel",
        needs=Needs(platforms=("rocm",), features=("fp8_fnuz" if fnuz else "fp8", "triton"), dtypes=("bfloat16",)),
        supports=supports,
        jit=True,
        summary=f"fp8 weights with scales by {granularity}, activations quantized to "
        + ("fnuz" if fnuz else "OCP fp8"),
    )


def _linear(name: str, **fields: Any) -> KernelSpec:
    """A GEMM of the library. The tier is portable, so that small-M kernels can rank above it in their bands."""
    return KernelSpec(
        id=f"rocm.{name}",
        kind="linear",
        tier=Tier.PORTABLE,
        bands=(TokenBand(1, _MANY_ROWS), TokenBand(_MANY_ROWS, score=100)),
        capture="full",
        **fields,
    )


def _supports_plain(query: LinearQuery) -> Verdict:
    return _stored_as(query, "plain")


def _stored_as(query: LinearQuery, weight_format: str) -> Verdict:
    if query.weight_format == weight_format:
        return OK
    return no("weight_format", wanted=query.weight_format, found=weight_format)


@hookimpl
def llmk_attention_backends() -> list[KernelSpec]:
    """AITER's, by choice."""
    return attention_specs()


@hookimpl
def llmk_moe_kernels() -> list[KernelSpec]:
    """AITER's, by choice."""
    return moe_specs()


@hookimpl
def llmk_ops() -> list[KernelSpec]:
    """AITER's, by choice."""
    return op_specs()


@hookimpl
def llmk_config_defaults(platform: PlatformFacts, model: ModelFacts | None) -> list[Default]:
    """Sizes that fit the GPU's memory."""
    return list(advise(platform)) if platform.name == "rocm" else []
