"""Attention backends. Imports neither torch nor Triton."""

from __future__ import annotations

from typing import Any

from llmk.api import KernelSpec
from llmk_triton.attention_support import (
    supports_attention,
    supports_int8,
    supports_latent,
    supports_padded,
    supports_specialized,
)
from llmk_triton.kernel_spec import HALVES, HOPPER, kernel_spec

_LAYOUT = "paged_hnd"
_INT8_LAYOUT = "paged_hnd_int8"
_LATENT_LAYOUT = "paged_latent"


def attention_specs() -> list[KernelSpec]:
    """Paged attention."""
    return [
        kernel_spec(
            "attention",
            "attention",
            "attention.backend:TritonAttention",
            supports=supports_attention,
            knows=frozenset({"sliding_window", "softcap", "sinks", "value_dim", "chunked"}),
            layout=_LAYOUT,
            deterministic=True,
            host_cost_us=10.0,
            summary="Tiled attention through the block table; split-K for decode.",
        ),
        _specialized("attention_specialized", supports=supports_specialized),
        _specialized(
            "attention_specialized_padded",
            supports=supports_padded,
            opt_in="it is faster for some of these groups of heads, slower for others",
        ),
        kernel_spec(
            "attention_int8",
            "attention",
            "attention.int8_cache:Int8Attention",
            supports=supports_int8,
            knows=frozenset({"sliding_window", "softcap", "sinks"}),
            layout=_INT8_LAYOUT,
            deterministic=True,
            host_cost_us=10.0,
            summary="The same over an int8 cache with a scale per token and head.",
        ),
        kernel_spec(
            "attention_latent",
            "attention",
            "latent.backend:LatentAttention",
            needs=HALVES,
            supports=supports_latent,
            knows=frozenset({"latent_dim"}),
            layout=_LATENT_LAYOUT,
            host_cost_us=10.0,
            summary="Latent attention (MLA): all heads of a tile in one GEMM; split-K for decode.",
        ),
    ]


def _specialized(name: str, **fields: Any) -> KernelSpec:
    return kernel_spec(
        name,
        "attention",
        "attention.backend:SpecializedAttention",
        needs=HOPPER,
        knows=frozenset({"sliding_window", "softcap", "sinks"}),
        layout=_LAYOUT,
        score=50,
        host_cost_us=10.0,
        summary="The same, with prompts by specialized warps: TMA loads, asynchronous GEMMs.",
        **fields,
    )
