"""The plugin ``xpu``: platform, attention, linear kernels, defaults and checks. Imports no torch."""

from __future__ import annotations

from typing import Any

from llmk.api import (
    OK,
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
from llmk_xpu.architectures import KNOWN
from llmk_xpu.defaults import advise
from llmk_xpu.probe import probe

_MANY_ROWS = 17
"""Rows (M) from which on the library keeps the matrix units busy. With fewer, a GEMM is bound by reading the weight,
and small-M kernels read it faster."""
_ALIGNMENT = 16
"""``torch._scaled_mm`` takes sizes that are multiples of it."""
_CACHE_DTYPES = ("bfloat16", "float16", "float32")


@hookimpl
def llmk_platforms() -> list[PlatformSpec]:
    """Intel GPUs, ranked above the CPU, and below other vendors' cards, next to which they are often graphics only."""
    return [
        PlatformSpec(
            id="xpu.xpu",
            name="xpu",
            implementation="llmk_xpu.platform:XPUPlatform",
            ranks=RankRules(
                resource="GPU", network=("FI_TCP_IFACE", "GLOO_SOCKET_IFNAME"), visible=("ZE_AFFINITY_MASK",)
            ),
            probe=probe,
            known=KNOWN,
            vouches=("llmk-triton",),
            rank=80,
            summary="Intel GPUs, through torch's XPU build",
        )
    ]


@hookimpl
def llmk_attention_backends() -> list[KernelSpec]:
    """Attention for where Triton is not installed, and for latent vectors."""
    return [
        KernelSpec(
            id="xpu.attention",
            kind="attention",
            implementation="llmk_xpu.attention:SDPAAttention",
            tier=Tier.PORTABLE,
            # Triton's kernel reads keys and values in place.
            score=-50,
            needs=Needs(platforms=("xpu",)),
            supports=_supports_attention,
            knows=frozenset({"sliding_window", "latent_dim", "value_dim"}),
            layout="reference",
            host_cost_us=100.0,
            summary="Gathers by block table, then attends through torch's fused kernel, by oneDNN",
        )
    ]


def _supports_attention(query: AttentionQuery) -> Verdict:
    """Any heads, over a cache that torch can compute with."""
    verdict = OK
    if query.cache_dtype not in _CACHE_DTYPES:
        verdict &= no("cache_dtype", wanted=query.cache_dtype, found=", ".join(_CACHE_DTYPES))
    if not query.causal:
        verdict &= no("causal", wanted="attention to later tokens", found="causal attention")
    if query.num_heads % query.num_kv_heads:
        verdict &= no("num_kv_heads", wanted=f"{query.num_heads} heads", found=f"{query.num_kv_heads} K/V heads")
    return verdict


@hookimpl
def llmk_linear_kernels() -> list[KernelSpec]:
    """oneDNN for plain weights, and for fp8 weights with scales by tensor or channel."""
    own = "llmk_xpu.fp8:"
    return [
        _linear(
            "linear",
            implementation="torch.nn.functional:linear",
            needs=Needs(platforms=("xpu",)),
            supports=_supports_plain,
            summary="oneDNN through torch",
        ),
        *(
            _linear(
                f"linear_fp8_{granularity}",
                implementation=f"{own}linear_rowwise",
                prepare=prepare,
                layout="reference_fp8_channel",
                needs=Needs(platforms=("xpu",), features=("xmx",), dtypes=("bfloat16",), packages=("torch>=2.10",)),
                supports=_supports_fp8(f"fp8_{granularity}"),
                summary=f"fp8 weights with scales by {granularity}, activations quantized to fp8, widened by oneDNN",
            )
            for granularity, prepare in (
                ("tensor", "llmk.reference.quantized_weight:prepare_fp8_tensor_by_channel"),
                ("channel", "llmk.reference.quantized_weight:prepare_fp8_channel"),
            )
        ),
    ]


def _linear(name: str, **fields: Any) -> KernelSpec:
    """A GEMM of the library. The tier is portable, so that small-M kernels can rank above it in their bands."""
    return KernelSpec(
        id=f"xpu.{name}",
        kind="linear",
        tier=Tier.PORTABLE,
        bands=(TokenBand(1, _MANY_ROWS), TokenBand(_MANY_ROWS, score=100)),
        capture="full",
        **fields,
    )


def _supports_plain(query: LinearQuery) -> Verdict:
    return _stored_as(query, "plain")


def _supports_fp8(weight_format: str) -> Any:
    def supports(query: LinearQuery) -> Verdict:
        verdict = _stored_as(query, weight_format)
        for field, size in (("in_features", query.in_features), ("out_features", query.out_features)):
            if size % _ALIGNMENT:
                verdict &= no(field, wanted=f"a multiple of {_ALIGNMENT}", found=size)
        return verdict

    return supports


def _stored_as(query: LinearQuery, weight_format: str) -> Verdict:
    if query.weight_format == weight_format:
        return OK
    return no("weight_format", wanted=query.weight_format, found=weight_format)


@hookimpl
def llmk_config_defaults(platform: PlatformFacts, model: ModelFacts | None) -> list[Default]:
    """Sizes that fit the GPU's memory, and no graphs."""
    return list(advise(platform)) if platform.name == "xpu" else []
