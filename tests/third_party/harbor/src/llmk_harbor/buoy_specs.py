"""The plugin module of ``buoy``: an op, a MoE kernel, an attention backend and a model family. It imports no torch."""

from __future__ import annotations

from llmk.api import (
    FIRST_FIELDS,
    OK,
    AttentionQuery,
    KernelSpec,
    ModelSpec,
    MoEQuery,
    OpQuery,
    Tier,
    Verdict,
    hookimpl,
    no,
)

_CACHE_DTYPES = ("float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")
_ACTIVATIONS = ("silu", "reglu2")
_SCORINGS = ("softmax", "sigmoid", "softsign")
_GROUP_SCORINGS = ("max", "top2_sum")


def supports_gate_up(query: OpQuery) -> Verdict:
    """Linear layers whose weight is kept as it is stored, ``[out, in]``: the op cuts panels out of it."""
    if query.weight_layout != "plain":
        return no("weight", wanted=query.weight_layout or "a linear layer", found="plain")
    return OK


def supports_attention(query: AttentionQuery) -> Verdict:
    """Heads in equal groups, over keys and values that are stored as numbers, or as fp8 with a scale per layer."""
    verdict = OK
    if query.cache_dtype not in _CACHE_DTYPES:
        verdict &= no("cache_dtype", wanted=query.cache_dtype, found=", ".join(_CACHE_DTYPES))
    if query.num_heads % query.num_kv_heads:
        verdict &= no("num_kv_heads", wanted=f"{query.num_heads} heads", found=f"{query.num_kv_heads} key heads")
    return verdict


def supports_moe(query: MoEQuery) -> Verdict:
    """Plain weights, the scorings and activations of :mod:`llmk_harbor.buoy_moe`, groups of equal size, and
    ``min_share`` from 0 to 1."""
    verdict = OK
    for field, served in (
        ("weight_format", ("plain",)),
        ("activation", _ACTIVATIONS),
        ("scoring", _SCORINGS),
        ("group_scoring", _GROUP_SCORINGS),
    ):
        if getattr(query, field) not in served:
            verdict &= no(field, wanted=getattr(query, field), found=", ".join(served))
    if not 1 <= query.top_k <= query.num_experts:
        verdict &= no("top_k", wanted=query.top_k, found=f"1 to {query.num_experts}, of as many experts")
    share = query.facts.get("min_share", 0.0)
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share <= 1:
        verdict &= no("facts", wanted=f"min_share = {share!r}", found="a number from 0 to 1")
    return verdict & _supports_groups(query)


def _supports_groups(query: MoEQuery) -> Verdict:
    groups, best = query.num_groups, query.top_groups
    if groups < 1 or query.num_experts % groups:
        return no("num_groups", wanted=groups, found=f"a divisor of {query.num_experts}, the number of experts")
    if best >= groups:
        return OK  # experts of all groups may be chosen
    size = query.num_experts // groups
    if best < 1 or best * size < query.top_k:
        return no("top_groups", wanted=best, found=f"groups of {size} experts, and {query.top_k} experts per token")
    if query.group_scoring == "top2_sum" and size < 2:
        return no("group_scoring", wanted="top2_sum", found="groups of one expert")
    return OK


@hookimpl
def llmk_ops() -> list[KernelSpec]:
    """The start of an MLP in one call."""
    return [
        KernelSpec(
            id="buoy.add_rms_norm_gate_up_silu",
            kind="op",
            op="add_rms_norm_gate_up_silu",
            implementation="llmk_harbor.buoy_op:add_rms_norm_gate_up_silu",
            tier=Tier.PORTABLE,
            supports=supports_gate_up,
            knows=FIRST_FIELDS | {"residual_multiplier", "activation_alpha", "activation_limit", "up_offset"},
            capture="full",
            summary="Residual sum and norm, then gate and up projection by panels that are activated while in cache.",
        )
    ]


@hookimpl
def llmk_moe_kernels() -> list[KernelSpec]:
    """Experts over sorted tokens."""
    return [
        KernelSpec(
            id="buoy.sorted_experts",
            kind="moe",
            implementation="llmk_harbor.buoy_moe:sorted_experts",
            prepare="llmk_harbor.buoy_moe:prepare",
            layout="harbor_transposed_experts",
            tier=Tier.PORTABLE,
            supports=supports_moe,
            knows=FIRST_FIELDS | {"activation_limit", "min_share"},
            examples="llmk_harbor.buoy_examples:EXPERTS",
            summary="Tokens sorted by expert, weights transposed; leaves out experts of little weight (min_share).",
        )
    ]


@hookimpl
def llmk_attention_backends() -> list[KernelSpec]:
    """Attention over columns."""
    return [
        KernelSpec(
            id="buoy.column_attention",
            kind="attention",
            implementation="llmk_harbor.buoy_attention:ColumnAttention",
            tier=Tier.PORTABLE,
            supports=supports_attention,
            knows=frozenset({"sliding_window", "softcap", "sinks", "value_dim", "chunked", "alibi"}),
            layout="harbor_columns",
            host_cost_us=200.0,
            summary="A token is a column of its block; keys in tiles, with a running softmax in float32.",
        )
    ]


@hookimpl
def llmk_models() -> list[ModelSpec]:
    """HyperCLOVA X."""
    return [
        ModelSpec(
            id="buoy.hyperclovax",
            architectures=("HyperCLOVAXForCausalLM",),
            tree="llmk_harbor.buoy_model:tree",
            deterministic=True,
            examples="llmk_harbor.buoy_examples:CHECKPOINTS",
            summary="HyperCLOVA X: muP factors, norms after the blocks",
        )
    ]
