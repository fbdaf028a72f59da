"""The plugin ``reference``: every kernel contract in plain torch, on any platform. This module does not import torch;
only chosen kernels are imported."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from llmk.api import (
    FIRST_FIELDS,
    OK,
    AttentionQuery,
    KernelSpec,
    LinearQuery,
    MoEQuery,
    OpContract,
    Tier,
    Verdict,
    hookimpl,
    no,
)
from llmk.reference.contracts import CONTRACTS

_PACKAGE = "llmk.reference"
_CACHE_DTYPES = ("float32", "bfloat16", "float16", "float8_e4m3fn", "int8", "int4")
_ATTENTION_FIELDS = frozenset({"sliding_window", "softcap", "sinks", "latent_dim", "value_dim", "chunked", "alibi"})
_GATED_FIELDS = frozenset({"activation_alpha", "activation_limit", "up_offset"})
_MOE_FIELDS = FIRST_FIELDS | _GATED_FIELDS | {"gated", "router_softcap"}
_ACTIVATIONS = ("silu", "gelu", "gelu_tanh")
_PLAIN_ACTIVATIONS = (*_ACTIVATIONS, "relu", "relu2")
_SCORINGS = ("softmax", "sigmoid")
_GROUP_SCORINGS = ("max", "top2_sum")

_OPS = {
    "rms_norm": "norms:rms_norm",
    "rope": "rope.rotation:rope",
    "rope_interleaved": "rope.rotation:rope_interleaved",
    "activate": "activations:activate",
    "xielu": "activations:xielu",
    "softcap": "activations:softcap",
    "sigmoid_gate": "activations:sigmoid_gate",
    "embedding": "embedding:embedding",
    "causal_conv": "recurrent.causal_conv:causal_conv",
    "short_conv": "recurrent.short_conv:short_conv",
    "selective_scan": "recurrent.selective_scan:selective_scan",
    "gated_rms_norm": "recurrent.gated_norm:gated_rms_norm",
    "apply_penalties": "sampling.sample:apply_penalties",
    "apply_bias": "sampling.sample:apply_bias",
    "match_suffixes": "sampling.sample:match_suffixes",
    "allow_tokens": "sampling.sample:allow_tokens",
    "apply_mask": "sampling.sample:apply_mask",
    "mask_top_k_top_p_min_p": "sampling.sample:mask_top_k_top_p_min_p",
    "sample": "sampling.sample:sample",
    "logprobs": "sampling.sample:logprobs",
    "update_rows": "batch:update_rows",
    "build_step": "batch:build_step",
    "compute_slot_mapping": "batch:compute_slot_mapping",
    "append_tokens": "batch:append_tokens",
    "accept_drafts": "batch:accept_drafts",
    "add_rms_norm": "norms:make_add_rms_norm",
    "add_layer_norm": "norms:make_add_layer_norm",
    "rms_norm_add": "norms:make_rms_norm_add",
    "sandwich_norm": "norms:make_sandwich_norm",
    "add_rms_norm_fp32_residual": "norms:make_add_rms_norm_fp32_residual",
    "scaled_embedding": "embedding:make_scaled_embedding",
    "qk_norm_rope_write_kv": "composites:make_qk_norm_rope_write_kv",
    "norm_rope_write_latent": "composites:make_norm_rope_write_latent",
    "latent_attention": "composites:make_latent_attention",
    "qk_norm_rope_attention": "composites:make_qk_norm_rope_attention",
    "state_space_mixer": "recurrent.mixers:make_state_space_mixer",
    "lightning_attention": "recurrent.mixers:make_lightning_attention",
    "select_tokens": "attention.selected:select_tokens",
    "selected_attention": "attention.selected:selected_attention",
    "selected_latent_attention": "composites:make_selected_latent_attention",
    "select_entries": "attention.compressed:select_entries",
    "compressed_attention": "attention.compressed:compressed_attention",
    "gated_delta_net": "recurrent.mixers:make_gated_delta_net",
    "gate_up_silu": "activations:make_gate_up_silu",
    "add_rms_norm_linear": "norm_linear:make_add_rms_norm_linear",
    "add_rms_norm_router": "norm_linear:make_add_rms_norm_router",
    "add_rms_norm_gate_up_silu": "norm_linear:make_add_rms_norm_gate_up_silu",
    "gate_up_gelu": "activations:make_gate_up_gelu",
    "gate_up_gelu_tanh": "activations:make_gate_up_gelu_tanh",
}
"""Each op's reference; for a composite op, the factory that builds it from its parts."""

_SUM_FACTS = frozenset({"residual_multiplier"})
_NORM_FACTS = frozenset({"norm_offset"})
_ROTARY_FACTS = frozenset({"rotary_sections", "rotary_neighbours"})
_WRITE_FACTS = frozenset({"value_dim", "no_rope", "norm_after_rope", "shared_kv"}) | _ROTARY_FACTS | _NORM_FACTS
_STATE_FACTS = frozenset({"max_drafts", "state_dtype"})
_LATER_FACTS = {
    **dict.fromkeys(("silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul"), _GATED_FIELDS),
    **dict.fromkeys(("gate_up_silu", "gate_up_gelu", "gate_up_gelu_tanh"), _GATED_FIELDS),
    "add_rms_norm_gate_up_silu": _GATED_FIELDS | _SUM_FACTS,
    **dict.fromkeys(("rms_norm", "layer_norm", "rms_norm_add", "sandwich_norm"), _NORM_FACTS),
    **dict.fromkeys(("add_rms_norm", "add_layer_norm"), _SUM_FACTS | _NORM_FACTS),
    **dict.fromkeys(("add_rms_norm_linear", "add_rms_norm_router"), _SUM_FACTS),
    "rope": _ROTARY_FACTS,
    "rope_interleaved": frozenset({"rotary_sections"}),
    "qk_norm_rope_write_kv": _WRITE_FACTS,
    "qk_norm_rope_attention": _WRITE_FACTS | {"attention_sinks", "alibi"},
    **dict.fromkeys(("causal_conv", "state_space_scan"), _STATE_FACTS),
    "gated_delta_rule": _STATE_FACTS | {"channel_decays"},
    "gated_rms_norm": frozenset({"gate_activation"}),
    "state_space_mixer": _STATE_FACTS | {"gating"},
    "lightning_attention": _STATE_FACTS,
    "gated_delta_net": _STATE_FACTS | {"channel_decays", "decay_bound", "gate_activation"},
    "short_conv": frozenset({"max_drafts"}),
    "selective_scan": frozenset({"state_dtype"}),
}
"""By op, the facts that were added after the first release: kernels that don't know them are refused where a site has
one."""

_SCANS = {
    "state_space_scan": ("recurrent.state_space_scan", "Selective scan over a state space"),
    "gated_delta_rule": ("recurrent.delta_rule", "Gated delta rule"),
}
"""Each has two kernels: chunked, and token by token, which is batch-invariant."""

_WALKING = frozenset({"causal_conv", "short_conv", "selective_scan", "select_entries", "compressed_attention", *_SCANS})
"""Ops that read the lengths of requests on the host, so that steps with them can't be recorded."""

_TWO_VARIANTS = {
    "layer_norm": "norms:layer_norm",
    "silu_and_mul": "activations:silu_and_mul",
    "gelu_and_mul": "activations:gelu_and_mul",
    "gelu_tanh_and_mul": "activations:gelu_tanh_and_mul",
    "per_head_matmul": "linear:per_head_matmul",
    "add_adapters": "adapters:add_adapters",
}
"""Each has two kernels: torch's own, and a batch-invariant one."""

_QUANTIZED = (
    ("int8_channel", "int8 with a scale per output channel."),
    ("int8_dynamic", "The same, whose activations kernels may round to int8 with a scale per row."),
    ("int8_group", "int8 with a scale, and optionally a zero point, per group of inputs."),
    ("int4_group", "int4 with a scale, and optionally a zero point, per group of inputs."),
    ("fp8_tensor", "fp8 e4m3 with one scale."),
    ("fp8_channel", "fp8 e4m3 with a scale per output channel."),
    ("fp8_block", "fp8 e4m3 with a scale per block of 128x128."),
)


_QUANTIZED_EXPERTS = ("int8_channel", "int8_dynamic", "int8_group", "int4_group", "fp8_channel", "fp8_block")

_PREPARED_AS = {"int8_dynamic": "int8_channel"}
"""Formats whose weights are those of another."""

_INVARIANT_SCORE = -1
"""Score of the batch-invariant kernels: they are slower, so they only win if a deterministic kernel is required."""


def supports_attention(query: AttentionQuery) -> Verdict:
    """Causal attention with any integer number of query heads per K/V head."""
    verdict = OK
    if query.cache_dtype not in _CACHE_DTYPES:
        verdict &= no("cache_dtype", wanted=query.cache_dtype, found=", ".join(_CACHE_DTYPES))
    if query.num_heads % query.num_kv_heads:
        verdict &= no("num_kv_heads", wanted=f"{query.num_heads} heads", found=f"{query.num_kv_heads} key heads")
    return verdict


def supports_activation(query: MoEQuery) -> Verdict:
    """Experts with an activation of :mod:`llmk.reference.activations`."""
    verdict, activations = OK, _ACTIVATIONS if query.gated else _PLAIN_ACTIVATIONS
    if query.activation not in activations:
        verdict &= no("activation", wanted=query.activation, found=", ".join(activations))
    if not query.gated and (query.activation_alpha, query.activation_limit, query.up_offset) != (1.0, None, 0.0):
        verdict &= no("gated", wanted="parameters of a gated activation", found="experts without gates")
    return verdict


def supports_moe(query: MoEQuery, weight_format: str = "plain") -> Verdict:
    """Experts with an activation of :mod:`llmk.reference.activations`, in equal groups."""
    verdict = _stored_as(weight_format)(query) & supports_activation(query) & supports_groups(query)
    if query.scoring not in _SCORINGS:
        verdict &= no("scoring", wanted=query.scoring, found=", ".join(_SCORINGS))
    if query.group_scoring not in _GROUP_SCORINGS:
        verdict &= no("group_scoring", wanted=query.group_scoring, found=", ".join(_GROUP_SCORINGS))
    return verdict


def supports_groups(query: MoEQuery) -> Verdict:
    """Equal groups of experts, with as many experts as a token takes in those that are chosen."""
    size, left_over = divmod(query.num_experts, query.num_groups)
    smallest = 2 if query.group_scoring == "top2_sum" and query.num_groups > 1 else 1
    if left_over or size < smallest or query.top_k > min(query.top_groups, query.num_groups) * size:
        groups = f"{query.top_groups} of {query.num_groups} groups of {query.num_experts} experts"
        return no("num_groups", wanted=f"{query.top_k} experts from {groups}", found="equal groups that have them")
    return OK


@hookimpl
def llmk_attention_backends() -> Iterable[KernelSpec]:
    """Paged attention."""
    return [
        KernelSpec(
            id="reference.attention",
            kind="attention",
            implementation=f"{_PACKAGE}.attention.paged:ReferenceAttention",
            tier=Tier.REFERENCE,
            supports=supports_attention,
            knows=_ATTENTION_FIELDS,
            layout="reference",
            host_cost_us=100.0,
            summary="Gathers by block table, then attends through torch.",
        ),
        KernelSpec(
            id="reference.attention_invariant",
            kind="attention",
            implementation=f"{_PACKAGE}.attention.row_invariant:InvariantAttention",
            tier=Tier.REFERENCE,
            score=_INVARIANT_SCORE,
            supports=supports_attention,
            knows=_ATTENTION_FIELDS,
            layout="reference",
            deterministic=True,
            host_cost_us=200.0,
            summary="Batch-invariant attention in float32, by blocks of keys and tiles of queries.",
        ),
    ]


@hookimpl
def llmk_linear_kernels() -> Iterable[KernelSpec]:
    """torch's GEMM, a batch-invariant one, and one with dequantization for each weight format."""
    plain = KernelSpec(
        id="reference.linear",
        kind="linear",
        implementation=f"{_PACKAGE}.linear:linear",
        prepare=f"{_PACKAGE}.linear:prepare_plain",
        tier=Tier.REFERENCE,
        supports=_stored_as("plain"),
        capture="full",
        summary="torch's own GEMM.",
    )
    invariant = KernelSpec(
        id="reference.linear_invariant",
        kind="linear",
        implementation=f"{_PACKAGE}.linear:linear_invariant",
        prepare=f"{_PACKAGE}.linear:prepare_invariant",
        tier=Tier.REFERENCE,
        score=_INVARIANT_SCORE,
        supports=_stored_as("plain"),
        layout="reference_tiled",
        deterministic=True,
        capture="full",
        summary="torch's own GEMM by tiles of rows: batch-invariant.",
    )
    return [plain, invariant, *(_quantized(weight_format, summary) for weight_format, summary in _QUANTIZED)]


@hookimpl
def llmk_moe_kernels() -> Iterable[KernelSpec]:
    """Mixture of experts."""
    return [
        KernelSpec(
            id="reference.fused_moe",
            kind="moe",
            implementation=f"{_PACKAGE}.moe:fused_moe",
            tier=Tier.REFERENCE,
            supports=supports_moe,
            knows=_MOE_FIELDS,
            summary="Loops over the experts that tokens chose.",
        ),
        KernelSpec(
            id="reference.fused_moe_invariant",
            kind="moe",
            implementation=f"{_PACKAGE}.moe:fused_moe_invariant",
            prepare=f"{_PACKAGE}.moe:prepare_invariant",
            tier=Tier.REFERENCE,
            score=_INVARIANT_SCORE,
            supports=supports_moe,
            knows=_MOE_FIELDS,
            layout="reference_tiled",
            deterministic=True,
            summary="Each expert by tiles of tokens: batch-invariant.",
        ),
        *(
            KernelSpec(
                id=f"reference.fused_moe_{weight_format}",
                kind="moe",
                implementation=f"{_PACKAGE}.moe:fused_moe_dequantized",
                prepare=f"{_PACKAGE}.moe:prepare_moe_{_PREPARED_AS.get(weight_format, weight_format)}",
                tier=Tier.REFERENCE,
                supports=partial(supports_moe, weight_format=weight_format),
                knows=_MOE_FIELDS,
                layout=f"reference_{_PREPARED_AS.get(weight_format, weight_format)}",
                deterministic=True,
                summary=summary,
            )
            for weight_format, summary in _QUANTIZED
            if weight_format in _QUANTIZED_EXPERTS
        ),
    ]


@hookimpl
def llmk_ops() -> Iterable[KernelSpec | OpContract]:
    """The contracts of the core's ops, and their references."""
    plain = [_op(name, where) for name, where in _OPS.items()]
    scans = [spec for name, scan in _SCANS.items() for spec in _scan(name, *scan)]
    invariant = [
        replace(_op(name, f"{where}_invariant"), id=f"reference.{name}_invariant", score=_INVARIANT_SCORE)
        for name, where in _TWO_VARIANTS.items()
    ]
    fast = [replace(_op(name, where), deterministic=False) for name, where in _TWO_VARIANTS.items()]
    return [*CONTRACTS.values(), *plain, *invariant, *fast, *scans]


def _scan(name: str, module: str, summary: str) -> tuple[KernelSpec, KernelSpec]:
    """The chunked kernel, and the kernel that goes token by token."""
    by_token = replace(_op(name, f"{module}:{name}_by_token"), summary=f"{summary}, token by token.")
    chunked = replace(
        by_token,
        implementation=f"{_PACKAGE}.{module}:{name}",
        deterministic=False,
        summary=f"{summary}, prompts in chunks.",
    )
    return chunked, replace(by_token, id=f"{by_token.id}_invariant", score=_INVARIANT_SCORE)


def _op(name: str, where: str) -> KernelSpec:
    contract = CONTRACTS[name]
    return KernelSpec(
        id=f"reference.{name}",
        kind="op",
        op=name,
        implementation=f"{_PACKAGE}.{where}",
        tier=Tier.REFERENCE,
        knows=FIRST_FIELDS | _LATER_FACTS.get(name, frozenset()),
        parts=contract.parts,
        deterministic=True,
        capture="none" if name in _WALKING or "selected" in where else "full",
        summary=contract.summary,
    )


def _quantized(weight_format: str, summary: str) -> KernelSpec:
    prepared = _PREPARED_AS.get(weight_format, weight_format)
    return KernelSpec(
        id=f"reference.linear_{weight_format}",
        kind="linear",
        implementation=f"{_PACKAGE}.linear:linear_dequantized",
        prepare=f"{_PACKAGE}.quantized_weight:prepare_{prepared}",
        tier=Tier.REFERENCE,
        supports=_stored_as(weight_format),
        knows=FIRST_FIELDS | {"lookup"},
        layout=f"reference_{prepared}",
        deterministic=True,
        capture="full",
        summary=summary,
    )


def _stored_as(weight_format: str) -> Callable[[LinearQuery | MoEQuery], Verdict]:
    def supports(query: LinearQuery | MoEQuery) -> Verdict:
        if query.weight_format == weight_format:
            return OK
        return no("weight_format", wanted=query.weight_format, found=weight_format)

    return supports
