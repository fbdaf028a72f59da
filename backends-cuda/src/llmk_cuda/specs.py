"""The plugin ``cuda``: platform, linear kernels, FlashInfer's attention, defaults and checks. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable

from llmk.api import (
    OK,
    ArchRange,
    AttentionQuery,
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
from llmk_cuda.defaults import advise
from llmk_cuda.probe import KNOWN, probe

_MANY_ROWS = 17
"""Rows (M) from which on cuBLAS keeps the tensor cores busy. With fewer, a GEMM is bound by reading the weight, and
small-M kernels read it faster."""

_PREPARED = "llmk.reference.quantized_weight"
"""fp8 weights have the reference's layout, so that small-M kernels can share a site."""

_FLASHINFER_HEADS = (64, 128, 256)

_ALIGNMENT = 16
_BLOCK_ALIGNMENT = 512
"""cuBLAS needs each row of the weights' block scales to start at a multiple of 16 bytes, hence four blocks of 128."""


@hookimpl
def llmk_platforms() -> list[PlatformSpec]:
    """NVIDIA GPUs, ranked above the CPU."""
    return [
        PlatformSpec(
            id="cuda.cuda",
            name="cuda",
            implementation="llmk_cuda.platform:CUDAPlatform",
            ranks=RankRules(
                resource="GPU",
                network=("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"),
                visible=("CUDA_VISIBLE_DEVICES",),
            ),
            probe=probe,
            known=KNOWN,
            vouches=("llmk-triton",),
            rank=100,
            early_setup="llmk_cuda.early_setup:early_setup",
            summary="NVIDIA GPUs, through torch's CUDA build",
        )
    ]


_FP8 = ArchRange("cuda", (8, 9))
"""Chips that multiply fp8."""
_FP8_BLOCKS = ArchRange("cuda", (9, 0), (10, 0))
"""Those on which cuBLAS multiplies blocks of fp8 with scales of their own."""


def stored_as(*formats: str) -> Callable[[LinearQuery], Verdict]:
    """Matches sites whose weights are stored in one of ``formats``."""

    def supports(query: LinearQuery) -> Verdict:
        if query.weight_format in formats:
            return OK
        return no("weight_format", wanted=query.weight_format, found=" or ".join(formats))

    return supports


def supports_rowwise(weight_format: str) -> Callable[[LinearQuery], Verdict]:
    """Matches sites of ``weight_format`` with sizes that ``torch._scaled_mm`` supports."""

    def supports(query: LinearQuery) -> Verdict:
        return stored_as(weight_format)(query) & _multiple(query, _ALIGNMENT, _ALIGNMENT)

    return supports


def supports_block(query: LinearQuery) -> Verdict:
    """Blocks of 128x128."""
    return stored_as("fp8_block")(query) & _multiple(query, _BLOCK_ALIGNMENT, _ALIGNMENT)


def _multiple(query: LinearQuery, inputs: int, outputs: int) -> Verdict:
    verdict = OK
    for name, size, unit in (("in_features", query.in_features, inputs), ("out_features", query.out_features, outputs)):
        if size % unit:
            verdict &= no(name, wanted=f"a multiple of {unit}", found=size)
    return verdict


def supports_flashinfer(query: AttentionQuery) -> Verdict:
    """A cache of the engine's dtype, and heads of some sizes."""
    verdict = OK
    if query.cache_dtype != query.dtype:
        verdict &= no("cache_dtype", wanted=query.cache_dtype, found=query.dtype)
    if query.head_dim not in _FLASHINFER_HEADS:
        verdict &= no("head_dim", wanted=query.head_dim, found=", ".join(map(str, _FLASHINFER_HEADS)))
    if query.num_heads % query.num_kv_heads:
        verdict &= no("num_kv_heads", wanted=f"{query.num_heads} heads", found=f"{query.num_kv_heads} K/V heads")
    return verdict


@hookimpl
def llmk_attention_backends() -> list[KernelSpec]:
    """FlashInfer, if it is installed; chosen only by name or by measurement, because it compiles for long."""
    return [
        KernelSpec(
            id="cuda.flashinfer",
            kind="attention",
            implementation="llmk_cuda.flashinfer_attention:FlashInferAttention",
            tier=Tier.VENDOR,
            needs=Needs(
                platforms=("cuda",),
                archs=(ArchRange("cuda", (8, 0)),),
                dtypes=("bfloat16", "float16"),
                packages=("flashinfer-python>=0.6",),
            ),
            supports=supports_flashinfer,
            knows=frozenset({"softcap"}),
            layout="flashinfer_hnd",
            host_lengths=True,
            host_cost_us=500.0,
            jit=True,
            opt_in="it compiles for tens of seconds at first",
            summary="FlashInfer's paged attention, planned on the host for each step",
        )
    ]


@hookimpl
def llmk_linear_kernels() -> list[KernelSpec]:
    """cuBLAS for plain weights, and for fp8 weights on chips that multiply fp8."""
    return [
        KernelSpec(
            id="cuda.linear",
            kind="linear",
            implementation="llmk_cuda.gemm:linear",
            # The tier is portable, so that small-M kernels can rank above it in their bands.
            tier=Tier.PORTABLE,
            bands=(TokenBand(1, _MANY_ROWS), TokenBand(_MANY_ROWS, score=100)),
            needs=Needs(platforms=("cuda",)),
            supports=stored_as("plain"),
            capture="full",
            summary="cuBLAS through torch",
        ),
        _fp8(
            "tensor", "rowwise", supports_rowwise("fp8_tensor"), f"{_PREPARED}:prepare_fp8_tensor_by_channel", "channel"
        ),
        _fp8("channel", "rowwise", supports_rowwise("fp8_channel"), f"{_PREPARED}:prepare_fp8_channel", "channel"),
        _fp8("block", "block", supports_block, f"{_PREPARED}:prepare_fp8_block", "block", _FP8_BLOCKS),
        KernelSpec(
            id="cuda.linear_int8",
            kind="linear",
            implementation="llmk_cuda.int8:linear",
            prepare=f"{_PREPARED}:prepare_int8_channel",
            layout="reference_int8_channel",
            tier=Tier.PORTABLE,
            needs=Needs(
                platforms=("cuda",),
                archs=(ArchRange("cuda", (8, 0)),),
                dtypes=("bfloat16", "float16"),
                packages=("triton>=3.6,<3.10",),
            ),
            jit=True,
            supports=supports_rowwise("int8_dynamic"),
            capture="full",
            summary="int8 weights with scales by channel, activations quantized to int8",
        ),
    ]


def _fp8(
    granularity: str,
    function: str,
    supports: Callable[[LinearQuery], Verdict],
    prepare: str,
    kept: str,
    archs: ArchRange = _FP8,
) -> KernelSpec:
    return KernelSpec(
        id=f"cuda.linear_fp8_{granularity}",
        kind="linear",
        implementation=f"llmk_cuda.fp8:linear_{function}",
        prepare=prepare,
        layout=f"reference_fp8_{kept}",
        # As for plain weights.
        tier=Tier.PORTABLE,
        bands=(TokenBand(1, _MANY_ROWS), TokenBand(_MANY_ROWS, score=100)),
        needs=Needs(platforms=("cuda",), archs=(archs,), dtypes=("bfloat16",), packages=("triton>=3.6,<3.10",)),
        jit=True,
        supports=supports,
        capture="full",
        summary=f"fp8 weights with scales by {granularity}, activations quantized to fp8",
    )


@hookimpl
def llmk_config_defaults(platform: PlatformFacts, model: ModelFacts | None) -> list[Default]:
    """Sizes that fit the GPU's memory."""
    return list(advise(platform)) if platform.name == "cuda" else []
