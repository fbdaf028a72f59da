"""The plugin module: the specs of this distribution. It imports no torch."""

from __future__ import annotations

from llmk.api import (
    FIRST_FIELDS,
    OK,
    AttentionQuery,
    KernelSpec,
    ModelSpec,
    MoEQuery,
    Needs,
    OpContract,
    Tier,
    Verdict,
    hookimpl,
    no,
)

_FLOATS = Needs(dtypes=("bfloat16", "float16", "float32"))
_SHIFT = "egret_token_shift"


def supports_attention(query: AttentionQuery) -> Verdict:
    """Caches in the engine's dtype or fp8."""
    if query.cache_dtype not in (query.dtype, "float8_e4m3fn", "float8_e5m2"):
        return no("cache_dtype", wanted=query.cache_dtype, found=f"{query.dtype}, float8_e4m3fn, float8_e5m2")
    return OK


def supports_experts(query: MoEQuery) -> Verdict:
    """Gated experts with plain weights. Where the sparse mixer routes, there is one group, and it scores by itself."""
    verdict = OK
    if query.weight_format != "plain":
        verdict &= no("weight_format", wanted=query.weight_format, found="plain")
    if query.activation not in ("silu", "gelu", "gelu_tanh"):
        verdict &= no("activation", wanted=query.activation, found="silu, gelu, gelu_tanh")
    if query.scoring not in ("softmax", "sigmoid"):
        verdict &= no("scoring", wanted=query.scoring, found="softmax, sigmoid")
    if query.group_scoring not in ("max", "top2_sum"):
        verdict &= no("group_scoring", wanted=query.group_scoring, found="max, top2_sum")
    if "sparsemixer_eps" in query.facts:
        if query.scoring != "softmax":
            verdict &= no("scoring", wanted=query.scoring, found="softmax with a sparse mixer")
        if query.num_groups > 1:
            verdict &= no("num_groups", wanted=query.num_groups, found="one group with a sparse mixer")
    return verdict


@hookimpl
def llmk_attention_backends() -> list[KernelSpec]:
    """Paged attention in planes."""
    return [
        KernelSpec(
            id="egret.planes",
            kind="attention",
            implementation="llmk_delta.egret_planes:PlanesAttention",
            layout="egret_planes",
            tier=Tier.PORTABLE,
            needs=_FLOATS,
            supports=supports_attention,
            knows=frozenset({"sliding_window", "softcap", "sinks", "chunked", "alibi"}),
            summary="online softmax over tiles of keys, decoding requests side by side",
        )
    ]


@hookimpl
def llmk_moe_kernels() -> list[KernelSpec]:
    """Experts with Phi's sparse mixer."""
    return [
        KernelSpec(
            id="egret.sparse_mixer",
            kind="moe",
            implementation="llmk_delta.egret_sparse_mixer:sparse_mixer_moe",
            prepare="llmk_delta.egret_sparse_mixer:prepare",
            layout="egret_turned",
            tier=Tier.PORTABLE,
            needs=_FLOATS,
            supports=supports_experts,
            knows=FIRST_FIELDS | {"sparsemixer_eps"},
            examples="llmk_delta.egret_sparse_mixer_examples:SPARSE_MIXER",
            summary="a place for each chosen expert; also the sparse mixer",
        )
    ]


@hookimpl
def llmk_models() -> list[ModelSpec]:
    """Model families, by what ``architectures`` says in their checkpoints' ``config.json``."""
    return [
        ModelSpec(
            id="egret.afmoe",
            architectures=("AfmoeForCausalLM",),
            tree="llmk_delta.egret_afmoe:tree",
            deterministic=True,
            examples="llmk_delta.egret_afmoe_examples:CHECKPOINTS",
            summary="AFMoE: gated attention, windows in most layers, sigmoid-scored experts",
        )
    ]


@hookimpl
def llmk_ops() -> list[KernelSpec | OpContract]:
    """RWKV's token shift with two kernels, and a kernel of the core's truncation."""
    return [
        OpContract(
            id="egret.token_shift",
            op=_SHIFT,
            signature="(x, state, slots, starts, fresh, mix, inner, down, up) -> shifted",
            facts=("size", "branches", "rank"),
            examples="llmk_delta.egret_token_shift_examples:TOKEN_SHIFT",
            mutates_args=("state",),
            weights=("mix", "inner", "down", "up"),
            summary="Mixtures of each token and the one before it, whose shares may depend on the token.",
        ),
        KernelSpec(
            id="egret.token_shift",
            kind="op",
            op=_SHIFT,
            implementation="llmk_delta.egret_token_shift:token_shift",
            tier=Tier.REFERENCE,
            summary="token shift, request by request",
        ),
        KernelSpec(
            id="egret.token_shift_gathered",
            kind="op",
            op=_SHIFT,
            implementation="llmk_delta.egret_token_shift:token_shift_gathered",
            tier=Tier.PORTABLE,
            needs=_FLOATS,
            summary="token shift of all requests at once",
        ),
        KernelSpec(
            id="egret.mask_by_bisection",
            kind="op",
            op="mask_top_k_top_p_min_p",
            implementation="llmk_delta.egret_truncation:mask_by_bisection",
            tier=Tier.PORTABLE,
            needs=_FLOATS,
            deterministic=True,
            capture="full",
            summary="truncation without sorting, by bisection over the bits of floats",
        ),
    ]
