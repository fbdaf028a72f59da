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
    OpQuery,
    Tier,
    Verdict,
    hookimpl,
    no,
)

_DTYPES = ("float32", "bfloat16", "float16")
_HYPER_CONNECT = "lagoon_hyper_connect"
_LARGEST_VOCABULARY = 1 << 30
"""Twice an id, and one more, must be an int32."""

_CACHE_DTYPES = (*_DTYPES, "float8_e4m3fn", "float8_e5m2")
_ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu", "drelu")
_SCORINGS = ("softmax", "sigmoid", "sqrtsoftplus")
_GROUP_SCORINGS = ("max", "top2_sum")


def supports_penalties(query: OpQuery) -> Verdict:
    """Vocabularies of any model that there is."""
    size = query.facts.get("vocab_size", 0)
    if size >= _LARGEST_VOCABULARY:
        return no("vocab_size", wanted=size, found=f"less than {_LARGEST_VOCABULARY}")
    return OK


def supports_experts(query: MoEQuery) -> Verdict:
    """Plain weights of gated experts, in equal groups of which those that are chosen have enough experts."""
    verdict = OK
    for name, served in (
        ("weight_format", ("plain",)),
        ("activation", _ACTIVATIONS),
        ("scoring", _SCORINGS),
        ("group_scoring", _GROUP_SCORINGS),
    ):
        if (wanted := getattr(query, name)) not in served:
            verdict &= no(name, wanted=wanted, found=", ".join(served))
    size, left_over = divmod(query.num_experts, query.num_groups)
    least = 2 if query.group_scoring == "top2_sum" and query.num_groups > 1 else 1
    if left_over or size < least or query.top_k > size * min(query.top_groups, query.num_groups):
        groups = f"{query.top_groups} of {query.num_groups} groups of {query.num_experts} experts"
        verdict &= no("num_groups", wanted=f"{query.top_k} experts from {groups}", found="equal groups that have them")
    return verdict


def supports_attention(query: AttentionQuery) -> Verdict:
    """Floating-point caches, and heads that are shared evenly."""
    verdict = OK
    if query.cache_dtype not in _CACHE_DTYPES:
        verdict &= no("cache_dtype", wanted=query.cache_dtype, found=", ".join(_CACHE_DTYPES))
    if query.num_heads % query.num_kv_heads:
        verdict &= no("num_kv_heads", wanted=f"{query.num_heads} heads", found=f"{query.num_kv_heads} key heads")
    return verdict


@hookimpl
def llmk_ops() -> list[KernelSpec | OpContract]:
    """Hyper-connections, an op of this wheel, with two kernels; and sampling penalties."""
    return [
        OpContract(
            id="teal.hyper_connect",
            op=_HYPER_CONNECT,
            signature="(streams, out, mix, post, pre, iterations) -> read",
            facts=("size", "num_streams", "iterations"),
            examples="llmk_lagoon.teal_hyper_examples:HYPER_CONNECT",
            mutates_args=("streams",),
            summary="Mixes residual streams, adds a block's output to each, and reads the next block's input.",
        ),
        KernelSpec(
            id="teal.hyper_connect",
            kind="op",
            op=_HYPER_CONNECT,
            implementation="llmk_lagoon.teal_hyper:hyper_connect",
            tier=Tier.REFERENCE,
            capture="full",
            summary="Manifold-constrained hyper-connections, with Sinkhorn's iterations on logarithms.",
        ),
        KernelSpec(
            id="teal.hyper_connect_planes",
            kind="op",
            op=_HYPER_CONNECT,
            implementation="llmk_lagoon.teal_hyper:hyper_connect_planes",
            tier=Tier.PORTABLE,
            needs=Needs(dtypes=_DTYPES),
            capture="full",
            summary="The same, with the entries of all tokens' matrices side by side, and one GEMM per token.",
        ),
        KernelSpec(
            id="teal.apply_penalties_sorted",
            kind="op",
            op="apply_penalties",
            implementation="llmk_lagoon.teal_penalties:apply_penalties",
            tier=Tier.PORTABLE,
            supports=supports_penalties,
            deterministic=True,
            capture="full",
            summary="Penalties on the logits of a request's own tokens alone, which are counted by sorting.",
        ),
    ]


@hookimpl
def llmk_moe_kernels() -> list[KernelSpec]:
    """Mixtures of experts."""
    return [
        KernelSpec(
            id="teal.permuted_experts",
            kind="moe",
            implementation="llmk_lagoon.teal_moe:permuted_experts",
            prepare="llmk_lagoon.teal_moe:prepare_transposed",
            layout="teal_transposed",
            tier=Tier.PORTABLE,
            needs=Needs(dtypes=_DTYPES),
            supports=supports_experts,
            knows=FIRST_FIELDS | {"activation_limit"},
            examples="llmk_lagoon.teal_moe_examples:EXPERTS",
            summary="Rows in the order of their experts, which sum them by gathering; with ReLU gates.",
        )
    ]


@hookimpl
def llmk_attention_backends() -> list[KernelSpec]:
    """Attention backends."""
    return [
        KernelSpec(
            id="teal.transposed_keys",
            kind="attention",
            implementation="llmk_lagoon.teal_attention:TransposedKeyAttention",
            layout="teal_transposed_keys",
            tier=Tier.PORTABLE,
            needs=Needs(dtypes=_DTYPES),
            supports=supports_attention,
            knows=frozenset({"sliding_window", "chunked", "softcap", "sinks"}),
            host_cost_us=150.0,
            summary="Tiles of blocks whose keys are stored transposed, with an online softmax.",
        )
    ]


@hookimpl
def llmk_models() -> list[ModelSpec]:
    """Model families, by what ``architectures`` says in their checkpoints' ``config.json``."""
    return [
        ModelSpec(
            id="teal.afmoe",
            architectures=("AfmoeForCausalLM",),
            tree="llmk_lagoon.teal_afmoe:tree",
            deterministic=True,
            examples="llmk_lagoon.teal_afmoe_examples:CHECKPOINTS",
            summary="AFMoE (Arcee Trinity): gated attention, windows with rotation, sigmoid-scored experts",
        )
    ]
