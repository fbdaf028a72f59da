"""The plugin ``avocet``: attention over columns, experts by panels, a fused op, and AFMoE. It imports no torch."""

from __future__ import annotations

from llmk.api import (
    FIRST_FIELDS,
    OK,
    AttentionQuery,
    KernelSpec,
    ModelSpec,
    MoEQuery,
    Needs,
    OpQuery,
    Tier,
    Verdict,
    hookimpl,
    no,
)

_DTYPES = ("float32", "bfloat16", "float16")
_CACHE_DTYPES = (*_DTYPES, "float8_e4m3fn")
_GATED = ("silu", "gelu", "gelu_tanh", "reglu")
_PLAIN = ("silu", "gelu", "gelu_tanh", "relu", "relu2")
_SCORINGS = ("softmax", "sigmoid", "sqrt_softplus")
_GROUP_SCORINGS = ("max", "top2_sum")


def supports_attention(query: AttentionQuery) -> Verdict:
    """Causal attention with heads that share keys evenly, over plain and fp8 caches."""
    verdict = OK
    if query.cache_dtype not in _CACHE_DTYPES:
        verdict &= no("cache_dtype", wanted=query.cache_dtype, found=", ".join(_CACHE_DTYPES))
    if query.num_heads % query.num_kv_heads:
        verdict &= no("num_kv_heads", wanted=f"{query.num_heads} heads", found=f"{query.num_kv_heads} key heads")
    return verdict


def supports_moe(query: MoEQuery) -> Verdict:
    """Plain weights, in equal groups of experts that have as many as a token takes."""
    verdict, known = OK, _GATED if query.gated else _PLAIN
    if query.weight_format != "plain":
        verdict &= no("weight_format", wanted=query.weight_format, found="plain")
    if query.activation not in known:
        verdict &= no("activation", wanted=query.activation, found=", ".join(known))
    if not query.gated and (query.activation_alpha, query.activation_limit, query.up_offset) != (1.0, None, 0.0):
        verdict &= no("gated", wanted="parameters of a gated activation", found="experts without gates")
    if query.scoring not in _SCORINGS:
        verdict &= no("scoring", wanted=query.scoring, found=", ".join(_SCORINGS))
    if query.group_scoring not in _GROUP_SCORINGS:
        verdict &= no("group_scoring", wanted=query.group_scoring, found=", ".join(_GROUP_SCORINGS))
    size, left_over = divmod(query.num_experts, query.num_groups)
    least = 2 if query.group_scoring == "top2_sum" and query.num_groups > 1 else 1
    if left_over or size < least or query.top_k > min(query.top_groups, query.num_groups) * size:
        wanted = f"{query.top_k} experts of {query.top_groups} of {query.num_groups} groups of {query.num_experts}"
        verdict &= no("num_groups", wanted=wanted, found="equal groups that have them")
    return verdict


def supports_op(query: OpQuery) -> Verdict:
    """Rotations of whole pairs."""
    rotary_dim = query.facts.get("rotary_dim", 0)
    return OK if rotary_dim % 2 == 0 else no("rotary_dim", wanted=rotary_dim, found="even sizes")


@hookimpl
def llmk_attention_backends() -> list[KernelSpec]:
    """Attention over columns."""
    return [
        KernelSpec(
            id="avocet.attention",
            kind="attention",
            implementation="llmk_estuary.avocet_attention:ColumnAttention",
            layout="avocet_columns",
            tier=Tier.PORTABLE,
            needs=Needs(dtypes=_DTYPES),
            supports=supports_attention,
            knows=frozenset({"sliding_window", "softcap", "sinks", "value_dim", "chunked", "alibi"}),
            host_cost_us=150.0,
            summary="tiles of transposed keys and values with a running softmax, in float32",
        )
    ]


@hookimpl
def llmk_moe_kernels() -> list[KernelSpec]:
    """Experts by panels."""
    return [
        KernelSpec(
            id="avocet.moe",
            kind="moe",
            implementation="llmk_estuary.avocet_moe:panel_moe",
            prepare="llmk_estuary.avocet_moe:prepare",
            layout="avocet_panels",
            tier=Tier.PORTABLE,
            needs=Needs(dtypes=_DTYPES),
            supports=supports_moe,
            knows=FIRST_FIELDS
            | {"activation_alpha", "activation_limit", "up_offset", "gated", "router_softcap", "renormalize_floor"},
            examples="llmk_estuary.avocet_examples:MIXTURES",
            summary="panels of gate and up features of each expert's own rows",
        )
    ]


@hookimpl
def llmk_ops() -> list[KernelSpec]:
    """Norms and rotation of queries and keys, and the write to the cache, in one pass."""
    later = {"value_dim", "no_rope", "norm_after_rope", "shared_kv", "rotary_sections", "rotary_neighbours"}
    return [
        KernelSpec(
            id="avocet.qk_norm_rope_write_kv",
            kind="op",
            op="qk_norm_rope_write_kv",
            implementation="llmk_estuary.avocet_op:make_one_pass",
            parts=("attention.write",),
            tier=Tier.PORTABLE,
            needs=Needs(dtypes=_DTYPES),
            supports=supports_op,
            knows=FIRST_FIELDS | later | {"norm_offset"},
            deterministic=True,
            capture="full",
            summary="norms and rotations of queries and keys in one float32 buffer, rounded once",
        )
    ]


@hookimpl
def llmk_models() -> list[ModelSpec]:
    """Arcee's Trinity."""
    return [
        ModelSpec(
            id="avocet.afmoe",
            architectures=("AfmoeForCausalLM",),
            tree="llmk_estuary.avocet_model:tree",
            deterministic=True,
            examples="llmk_estuary.avocet_examples:CHECKPOINTS",
            summary="AFMoE: gated attention, windows with rotation, sigmoid-scored experts",
        )
    ]
