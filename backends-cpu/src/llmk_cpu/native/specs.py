"""Specs of the native kernels, and what they support. Imports no torch."""

from __future__ import annotations

from typing import Any

from llmk.api import FIRST_FIELDS, OK, AttentionQuery, KernelSpec, Needs, OpQuery, Query, Tier, Verdict, no

FEATURE = "native_kernels"
"""Feature of a CPU for which the wheel has the C++ library."""

GRAPHS = "graphs"
"""Feature of the same: steps are recorded as calls of that library."""

PACKED = "packed_weights"
"""Feature of those with vectors: GEMMs with integer weights in groups are faster than with plain ones."""

VECTORS = {"x86_64": "avx2", "aarch64": "asimd", "ppc64le": "vsx"}
"""By architecture, the feature without which kernels are in plain C++, which only has to be right."""

DTYPES = ("bfloat16", "float16", "float32")
_CACHE_DTYPES = (*DTYPES, "float8_e4m3fn", "int8")
_ATTENTION = "cpu.attention"
_NEEDS = Needs(platforms=("cpu",), dtypes=DTYPES)
_WIDEST_HEAD = 512
_WIDEST_LATENT = 1024
_WIDEST_STATE = 512
"""Elements of a row of a recurrent layer's state."""
_NARROW_STATE = 128
"""The same where rows have decays of their own."""
_MOST_TAPS = 16
_BLOCK_MULTIPLE = 16
"""Tokens that the widest vector holds: a vector of keys is within one block."""

_GATED_FACTS = frozenset({"activation_alpha", "activation_limit", "up_offset"})
_NORM_FACTS = frozenset({"norm_offset"})
_STATE_FACTS = frozenset({"max_drafts", "state_dtype"})
_OPS: tuple[tuple[str, str, frozenset[str], str], ...] = (
    ("rms_norm", "norms", _NORM_FACTS, "Root-mean-square norm."),
    ("add_rms_norm", "norms", _NORM_FACTS | {"residual_multiplier"}, "Residual sum and norm in one call."),
    ("rms_norm_add", "norms", _NORM_FACTS, "Norm and residual sum in one call."),
    ("sandwich_norm", "norms", _NORM_FACTS, "Norm, residual sum and norm in one call."),
    ("silu_and_mul", "activations", _GATED_FACTS, "SwiGLU."),
    ("gelu_and_mul", "activations", _GATED_FACTS, "GEGLU with the exact GELU."),
    ("gelu_tanh_and_mul", "activations", _GATED_FACTS, "GEGLU with GELU's tanh approximation."),
    ("rope", "attention", frozenset({"rotary_sections"}), "RoPE over the two halves of each head."),
    ("rope_interleaved", "attention", frozenset({"rotary_sections"}), "RoPE over neighbouring elements of each head."),
    (
        "qk_norm_rope_write_kv",
        "attention",
        _NORM_FACTS | {"value_dim", "no_rope", "rotary_sections"},
        "QK-norm, RoPE and K/V write in one call.",
    ),
    ("causal_conv", "recurrent", _STATE_FACTS, "Convolution and its states in one call."),
    ("short_conv", "recurrent", frozenset({"max_drafts"}), "The same, as a layer of its own."),
    ("state_space_scan", "recurrent", _STATE_FACTS, "Selective scan over a state space, token by token."),
    ("gated_delta_rule", "recurrent", _STATE_FACTS, "Gated delta rule, token by token."),
    ("selective_scan", "recurrent", frozenset({"state_dtype"}), "Mamba-1's scan and its gate."),
    ("gated_rms_norm", "recurrent", frozenset(), "Norm and gate of a recurrent layer's result."),
    ("build_step", "batch", frozenset(), "A step's tensors."),
    ("compute_slot_mapping", "batch", frozenset(), "Where a step's tokens are cached."),
    ("append_tokens", "batch", frozenset(), "Sampled tokens, put where the next step reads them."),
    ("sample", "batch", frozenset(), "The most likely tokens, or drawn ones, without sorting."),
)
"""Op, module, facts that were added after the first release, summary."""


def supports_library(query: Query) -> Verdict:
    """Machines for which the wheel has the library, with vectors that its kernels are written for."""
    platform = query.platform
    if FEATURE not in platform.features:
        return no(
            "library",
            wanted="the C++ kernels of llmk-backends-cpu",
            found="a wheel that was built without a C++ compiler",
            hint="install one (Debian: g++) and the wheel again; until then torch's kernels serve, which are slower",
        )
    vectors = VECTORS.get(platform.arch_family, "vectors that kernels are written for")
    if vectors not in platform.features:
        return no("missing_feature", wanted=vectors, found=f"{platform.arch}, on which torch is faster")
    return OK


def supports_attention(query: AttentionQuery) -> Verdict:
    """Causal attention over keys and values in a float dtype of 16 or 32 bits, or of 8 bits."""
    verdict = supports_library(query)
    if query.cache_dtype not in _CACHE_DTYPES:
        verdict &= no("cache_dtype", wanted=query.cache_dtype, found=", ".join(_CACHE_DTYPES))
    if query.num_heads % query.num_kv_heads:
        verdict &= no("num_kv_heads", wanted=f"{query.num_heads} heads", found=f"{query.num_kv_heads} key heads")
    widest = max(query.head_dim, query.value_dim or 0)
    if widest > _WIDEST_HEAD:
        verdict &= no("head_dim", wanted=widest, found=f"up to {_WIDEST_HEAD}")
    if query.block_size % _BLOCK_MULTIPLE:
        verdict &= no("block_size", wanted=query.block_size, found=f"multiples of {_BLOCK_MULTIPLE}")
    return verdict


def supports_latent(query: AttentionQuery) -> Verdict:
    """Causal attention over latent vectors in a float dtype of 16 or 32 bits."""
    verdict = supports_library(query)
    if query.latent_dim is None or query.num_kv_heads != 1:
        verdict &= no("latent_dim", wanted=f"{query.num_kv_heads} heads of keys", found="latent vectors")
    if query.cache_dtype not in DTYPES:
        verdict &= no("cache_dtype", wanted=query.cache_dtype, found=", ".join(DTYPES))
    if query.head_dim > _WIDEST_LATENT:
        verdict &= no("head_dim", wanted=query.head_dim, found=f"up to {_WIDEST_LATENT}")
    return verdict


def supports_rope(query: OpQuery) -> Verdict:
    """Heads that fit in the kernel's buffers."""
    verdict, size = supports_library(query), query.facts.get("head_dim", 0)
    if size > _WIDEST_HEAD:
        verdict &= no("head_dim", wanted=size, found=f"up to {_WIDEST_HEAD}")
    return verdict


def supports_write(query: OpQuery) -> Verdict:
    """Writes to the cache of this plugin's attention backend."""
    verdict = supports_library(query)
    if query.attention != _ATTENTION:
        verdict &= no("attention", wanted=query.attention, found=f"writes to the cache of {_ATTENTION} only")
    return verdict


def supports_conv(query: OpQuery) -> Verdict:
    """Convolutions over a few tokens, activated by SiLU or not at all."""
    verdict, taps = supports_library(query), query.facts.get("conv_kernel", 1)
    if taps > _MOST_TAPS:
        verdict &= no("conv_kernel", wanted=taps, found=f"up to {_MOST_TAPS}")
    if (activation := query.facts.get("activation", "")) not in ("", "silu"):
        verdict &= no("activation", wanted=activation, found="silu")
    return verdict


def supports_states(query: OpQuery) -> Verdict:
    """States whose rows fit in the kernel's buffers."""
    verdict, facts = supports_library(query), query.facts
    size = max(facts.get("state_size", 0), facts.get("key_dim", 0))
    widest = _NARROW_STATE if query.op == "selective_scan" else _WIDEST_STATE
    if size > widest:
        verdict &= no("state_size", wanted=size, found=f"up to {widest}")
    if (dtype := facts.get("state_dtype", "float32")) not in DTYPES:
        verdict &= no("state_dtype", wanted=dtype, found=", ".join(DTYPES))
    return verdict


_SUPPORTS = {
    **dict.fromkeys(("causal_conv", "short_conv"), supports_conv),
    **dict.fromkeys(("state_space_scan", "gated_delta_rule", "selective_scan"), supports_states),
    "rope": supports_rope,
    "rope_interleaved": supports_rope,
    "qk_norm_rope_write_kv": supports_write,
}


def attention_backends() -> list[KernelSpec]:
    """Paged attention."""
    return [
        _kernel(
            "attention",
            "attention",
            "attention:NativeAttention",
            supports=supports_attention,
            knows=frozenset({"sliding_window", "softcap", "sinks", "value_dim"}),
            layout="cpu_paged",
            host_cost_us=5.0,
            summary="Tiled attention through the block table, in float32.",
        ),
        _kernel(
            "attention_latent",
            "attention",
            "latent:NativeLatentAttention",
            supports=supports_latent,
            knows=frozenset({"latent_dim"}),
            layout="cpu_latent",
            host_cost_us=5.0,
            summary="Attention over latent vectors through the block table, in float32.",
        ),
    ]


def ops() -> list[KernelSpec]:
    """Norms, activations, RoPE, the write to the cache, and what is around the model in a step."""
    return [
        _kernel(
            name,
            "op",
            f"{module}:{name}",
            op=name,
            supports=_SUPPORTS.get(name, supports_library),
            knows=FIRST_FIELDS | facts,
            summary=summary,
        )
        for name, module, facts, summary in _OPS
    ]


def _kernel(name: str, kind: str, where: str, **fields: Any) -> KernelSpec:
    return KernelSpec(
        id=f"cpu.{name}",
        kind=kind,
        implementation=f"llmk_cpu.native.{where}",
        tier=Tier.NATIVE,
        needs=_NEEDS,
        deterministic=True,
        capture="full",
        **fields,
    )
