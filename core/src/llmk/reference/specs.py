"""The plugin ``reference``: every kernel contract in plain torch, on any platform. Torch-free; what is chosen is
imported then."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from llmk.api import OK, AttentionQuery, KernelSpec, LinearQuery, MoEQuery, Tier, Verdict, hookimpl, no

_PACKAGE = "llmk.reference"
_CACHE_DTYPES = ("float32", "bfloat16", "float16", "float8_e4m3fn")
_ATTENTION_FIELDS = frozenset({"sliding_window", "softcap", "sinks", "latent_dim"})
_ACTIVATIONS = ("silu", "gelu", "gelu_tanh")
_SCORINGS = ("softmax", "sigmoid")
_GROUP_SCORINGS = ("max", "top2_sum")

_OPS = (
    ("rms_norm", "norms:rms_norm", "Root-mean-square norm in float32."),
    ("rms_norm_plus_one", "norms:rms_norm_plus_one", "Root-mean-square norm whose weight is stored less one."),
    ("rope", "rope.rotation:rope", "Rotates halves of each head, in float32."),
    ("rope_interleaved", "rope.rotation:rope_interleaved", "Rotates neighbours in each head, in float32."),
    ("softcap", "activations:softcap", "Bounds values by a hyperbolic tangent."),
    ("sigmoid_gate", "activations:sigmoid_gate", "Scales by a sigmoid."),
    ("embedding", "embedding:embedding", "Token embedding."),
    ("causal_conv", "recurrent.causal_conv:causal_conv", "Convolves each channel over its last tokens."),
    ("gated_rms_norm", "recurrent.gated_norm:gated_rms_norm", "Root-mean-square norm with a SiLU gate."),
)

_SCANS = (
    ("state_space_scan", "recurrent.state_space_scan", "Selective scan over a state space"),
    ("gated_delta_rule", "recurrent.delta_rule", "Gated delta rule"),
)
"""Each comes twice: in chunks, and token by token, which is deterministic."""

_WRITTEN_TWICE = (
    ("silu_and_mul", "activations:silu_and_mul", "SwiGLU."),
    ("gelu_and_mul", "activations:gelu_and_mul", "GEGLU with the exact GELU."),
    ("gelu_tanh_and_mul", "activations:gelu_tanh_and_mul", "GEGLU with GELU's tanh approximation."),
    ("per_head_product", "linear:per_head_product", "A product with a matrix of its own for every head."),
)
"""Each comes twice: torch's own, and another, which is deterministic."""

_SAMPLING_OPS = (
    ("apply_penalties", "sampling.sample:apply_penalties", "Repetition, frequency and presence penalties."),
    ("apply_bias", "sampling.sample:apply_bias", "Logit biases, in place."),
    ("match_suffixes", "sampling.sample:match_suffixes", "Which token sequences end the requests' tokens."),
    ("allow_tokens", "sampling.sample:allow_tokens", "Rules out all tokens but some, in place."),
    ("mask_top_k_top_p_min_p", "sampling.sample:mask_top_k_top_p_min_p", "Truncates distributions."),
    ("sample", "sampling.sample:sample", "One token per row, by a hash of seed and position."),
    ("logprobs", "sampling.sample:logprobs", "Log-probabilities, ranks and the likeliest tokens."),
)

_BATCH_OPS = (
    ("update_rows", "batch:update_rows", "Writes ragged runs into rows of the batch state, in place."),
    ("build_step", "batch:build_step", "Lays out a step's tokens, and counts them as computed."),
    ("map_slots", "batch:map_slots", "Places of a step's tokens in the cache."),
    ("append_tokens", "batch:append_tokens", "Puts sampled tokens where the next step reads them."),
)

_COMPOSITES = (
    ("add_rms_norm", "norms:make_add_rms_norm", ("rms_norm",), "Residual sum, then norm."),
    (
        "add_rms_norm_plus_one",
        "norms:make_add_rms_norm_plus_one",
        ("rms_norm_plus_one",),
        "Residual sum, then norm whose weight is stored less one.",
    ),
    (
        "sandwich_norm_plus_one",
        "norms:make_sandwich_norm_plus_one",
        ("rms_norm_plus_one", "add_rms_norm_plus_one"),
        "Norm after a block, residual sum, norm before the next; weights are stored less one.",
    ),
    (
        "add_rms_norm_fp32_residual",
        "norms:make_add_rms_norm_fp32_residual",
        ("rms_norm",),
        "Residual sum in float32, then norm.",
    ),
    ("scaled_embedding", "embedding:make_scaled_embedding", ("embedding",), "Token embedding, scaled."),
    (
        "qk_norm_rope_write_kv",
        "composites:make_qk_norm_rope_write_kv",
        ("rms_norm", "rope", "attention.write"),
        "Norms queries and keys, rotates them, stores keys and values.",
    ),
    (
        "norm_rope_write_latent",
        "composites:make_norm_rope_write_latent",
        ("rms_norm", "rope_interleaved", "attention.write"),
        "Norms latent vectors, rotates queries and the shared key, stores both.",
    ),
    (
        "latent_attention",
        "composites:make_latent_attention",
        ("norm_rope_write_latent", "per_head_product", "attention.run"),
        "Attention over latent vectors, with the products that make keys and values absorbed.",
    ),
    (
        "qk_norm_plus_one_rope_write_kv",
        "composites:make_qk_norm_plus_one_rope_write_kv",
        ("rms_norm_plus_one", "rope", "attention.write"),
        "The same with norms whose weights are stored less one.",
    ),
    (
        "qk_norm_rope_attention",
        "composites:make_qk_norm_rope_attention",
        ("qk_norm_rope_write_kv", "attention.run"),
        "Norms queries and keys, rotates them, stores keys and values, and attends.",
    ),
    (
        "qk_norm_plus_one_rope_attention",
        "composites:make_qk_norm_plus_one_rope_attention",
        ("qk_norm_plus_one_rope_write_kv", "attention.run"),
        "The same with norms whose weights are stored less one.",
    ),
    (
        "state_space_mixer",
        "recurrent.mixers:make_state_space_mixer",
        ("causal_conv", "state_space_scan", "gated_rms_norm"),
        "Convolution, selective scan and gated norm.",
    ),
    (
        "gated_delta_net",
        "recurrent.mixers:make_gated_delta_net",
        ("causal_conv", "gated_delta_rule", "gated_rms_norm"),
        "Gated DeltaNet between its products.",
    ),
    ("gate_up_silu", "activations:make_gate_up_silu", ("linear", "silu_and_mul"), "Gate and up product, then SwiGLU."),
    (
        "add_rms_norm_linear",
        "normed:make_add_rms_norm_linear",
        ("rms_norm", "add_rms_norm", "linear"),
        "Residual sum and norm, then a product.",
    ),
    (
        "add_rms_norm_router",
        "normed:make_add_rms_norm_router",
        ("rms_norm", "add_rms_norm", "linear"),
        "Residual sum and norm, then a router's product; what was normed is handed on.",
    ),
    (
        "add_rms_norm_gate_up_silu",
        "normed:make_add_rms_norm_gate_up_silu",
        ("rms_norm", "add_rms_norm", "gate_up_silu"),
        "Residual sum and norm, then gate and up product and SwiGLU.",
    ),
    (
        "gate_up_gelu_tanh",
        "activations:make_gate_up_gelu_tanh",
        ("linear", "gelu_tanh_and_mul"),
        "Gate and up product, then GEGLU with GELU's tanh approximation.",
    ),
)

_QUANTIZED = (
    ("int8_channel", "8-bit integers with a scale per output."),
    ("int4_group", "4-bit integers with a scale, and optionally a zero point, per group of inputs."),
    ("fp8_tensor", "fp8 e4m3 with one scale."),
    ("fp8_channel", "fp8 e4m3 with a scale per output."),
    ("fp8_block", "fp8 e4m3 with a scale per block of 128x128."),
)


_QUANTIZED_EXPERTS = ("int8_channel", "fp8_channel", "fp8_block")

_INVARIANT_SCORE = -1
"""Of kernels that are slower than others for being deterministic: they win where it is asked for."""


def supports_attention(query: AttentionQuery) -> Verdict:
    """Any whole number of heads per key head, in a cache of a floating-point dtype."""
    verdict = OK
    if query.cache_dtype not in _CACHE_DTYPES:
        verdict &= no("cache_dtype", wanted=query.cache_dtype, found=", ".join(_CACHE_DTYPES))
    if query.num_heads % query.num_kv_heads:
        verdict &= no("num_kv_heads", wanted=f"{query.num_heads} heads", found=f"{query.num_kv_heads} key heads")
    return verdict


def supports_moe(query: MoEQuery, weight_format: str = "plain") -> Verdict:
    """Experts with a gated activation that :mod:`llmk.reference.activations` has, in equal groups."""
    verdict = _stored_as(weight_format)(query)
    if query.activation not in _ACTIVATIONS:
        verdict &= no("activation", wanted=query.activation, found=", ".join(_ACTIVATIONS))
    if query.scoring not in _SCORINGS:
        verdict &= no("scoring", wanted=query.scoring, found=", ".join(_SCORINGS))
    if query.group_scoring not in _GROUP_SCORINGS:
        verdict &= no("group_scoring", wanted=query.group_scoring, found=", ".join(_GROUP_SCORINGS))
    size, left_over = divmod(query.num_experts, query.num_groups)
    smallest = 2 if query.group_scoring == "top2_sum" and query.num_groups > 1 else 1
    if left_over or size < smallest or query.top_k > min(query.top_groups, query.num_groups) * size:
        groups = f"{query.top_groups} of {query.num_groups} groups of {query.num_experts} experts"
        verdict &= no("num_groups", wanted=f"{query.top_k} experts from {groups}", found="equal groups that have them")
    return verdict


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
            summary="The same in float32, by blocks of keys and tiles of queries, each request alone.",
        ),
    ]


@hookimpl
def llmk_linear_kernels() -> Iterable[KernelSpec]:
    """The plain product, the same by tiles, and one by dequantization for each weight format."""
    plain = KernelSpec(
        id="reference.linear",
        kind="linear",
        implementation=f"{_PACKAGE}.linear:linear",
        prepare=f"{_PACKAGE}.linear:prepare_plain",
        tier=Tier.REFERENCE,
        supports=_stored_as("plain"),
        capture="full",
        summary="torch's own product.",
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
        summary="torch's own product by tiles of rows.",
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
            layout="reference_tiled",
            deterministic=True,
            summary="The same, each expert by tiles of tokens.",
        ),
        *(
            KernelSpec(
                id=f"reference.fused_moe_{weight_format}",
                kind="moe",
                implementation=f"{_PACKAGE}.moe:fused_moe_dequantized",
                prepare=f"{_PACKAGE}.moe:prepare_moe_{weight_format}",
                tier=Tier.REFERENCE,
                supports=partial(supports_moe, weight_format=weight_format),
                layout=f"reference_{weight_format}",
                deterministic=True,
                summary=summary,
            )
            for weight_format, summary in _QUANTIZED
            if weight_format in _QUANTIZED_EXPERTS
        ),
    ]


@hookimpl
def llmk_ops() -> Iterable[KernelSpec]:
    """All ops, plain and composite."""
    plain = [_op(name, where, summary) for name, where, summary in (*_OPS, *_SAMPLING_OPS, *_BATCH_OPS)]
    scans = [spec for scan in _SCANS for spec in _scan(*scan)]
    composite = [_op(name, where, summary, parts) for name, where, parts, summary in _COMPOSITES]
    written_out = [
        replace(_op(name, f"{where}_invariant", summary), id=f"reference.{name}_invariant", score=_INVARIANT_SCORE)
        for name, where, summary in _WRITTEN_TWICE
    ]
    quick = [replace(_op(name, where, summary), deterministic=False) for name, where, summary in _WRITTEN_TWICE]
    return plain + composite + written_out + quick + scans


def _scan(name: str, module: str, summary: str) -> tuple[KernelSpec, KernelSpec]:
    """In chunks, and token by token."""
    by_token = _op(name, f"{module}:{name}_by_token", f"{summary}, token by token.")
    chunked = replace(
        by_token,
        implementation=f"{_PACKAGE}.{module}:{name}",
        deterministic=False,
        summary=f"{summary}, prompts in chunks.",
    )
    return chunked, replace(by_token, id=f"{by_token.id}_invariant", score=_INVARIANT_SCORE)


def _op(name: str, where: str, summary: str, parts: tuple[str, ...] = ()) -> KernelSpec:
    return KernelSpec(
        id=f"reference.{name}",
        kind="op",
        op=name,
        implementation=f"{_PACKAGE}.{where}",
        tier=Tier.REFERENCE,
        parts=parts,
        deterministic=True,
        capture="none" if "recurrent" in where else "full",
        summary=summary,
    )


def _quantized(weight_format: str, summary: str) -> KernelSpec:
    return KernelSpec(
        id=f"reference.linear_{weight_format}",
        kind="linear",
        implementation=f"{_PACKAGE}.linear:linear_dequantized",
        prepare=f"{_PACKAGE}.quantized_weight:prepare_{weight_format}",
        tier=Tier.REFERENCE,
        supports=_stored_as(weight_format),
        layout=f"reference_{weight_format}",
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
