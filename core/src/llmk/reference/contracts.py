"""The contracts of the core's ops. Torch-free; what their examples name is imported by those who test or measure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llmk.api import OpContract
from llmk.reference.row_contracts import LATENT, OVER_ROWS
from llmk.reference.step_contracts import BATCH, SAMPLING, contract

_HEADS = ("num_heads", "num_kv_heads", "head_dim", "rotary_dim")
_SPACE = ("num_heads", "head_dim", "num_groups", "state_size")
_DELTA = ("num_heads", "num_key_heads", "key_dim", "value_dim")


def _like(contract: OpContract, op: str, summary: str, *, examples: str = "", **changes: Any) -> OpContract:
    """The contract of an op that differs from another's by ``changes``."""
    place = f"llmk.reference.examples.{examples}" if examples else contract.examples
    return replace(contract, id=f"reference.{op}", op=op, summary=summary, examples=place, **changes)


_NORM = contract(
    op="rms_norm",
    signature="(x, weight, eps) -> normed",
    facts=("size",),
    examples="rows:RMS_NORM",
    summary="Root-mean-square norm.",
)
_ADD_NORM = contract(
    op="add_rms_norm",
    signature="(x, residual, weight, eps) -> normed, total",
    facts=("size",),
    parts=("rms_norm",),
    examples="rows:ADD_RMS_NORM",
    summary="Residual sum, then norm.",
)
_GATED = contract(
    op="silu_and_mul",
    signature="(x) -> gated",
    facts=("intermediate_size",),
    examples="rows:GATED",
    summary="SwiGLU.",
)
_ROPE = contract(
    op="rope",
    signature="(q, k, positions, cos_sin) -> q, k",
    facts=_HEADS,
    examples="rows:ROPE",
    summary="RoPE over the two halves of each head, in float32.",
)
_WRITE_KV = contract(
    op="qk_norm_rope_write_kv",
    signature="(q, k, v, q_weight, k_weight, eps, positions, cos_sin, cache, meta) -> q",
    facts=(*_HEADS, "qk_norm"),
    parts=("rms_norm", "rope", "attention.write"),
    examples="attention:QK_NORM_ROPE",
    summary="Q and K norms, RoPE, K/V write.",
)
_ATTENTION = contract(
    op="qk_norm_rope_attention",
    signature="(q, k, v, q_weight, k_weight, eps, positions, cos_sin, cache, meta) -> out",
    facts=(*_HEADS, "qk_norm"),
    parts=("qk_norm_rope_write_kv", "attention.run"),
    examples="attention:QK_NORM_ROPE",
    summary="Q and K norms, RoPE, K/V write, attention.",
)
_GATE_UP = contract(
    op="gate_up_silu",
    signature="(x, weight, bias) -> gated",
    facts=("intermediate_size",),
    parts=("linear", "silu_and_mul"),
    examples="linear:GATE_UP",
    weights=("weight",),
    summary="Gate and up projection, then SwiGLU.",
)
_NORM_LINEAR = contract(
    op="add_rms_norm_linear",
    signature="(x, residual, norm_weight, eps, weight, bias) -> out, total",
    facts=("size",),
    parts=("rms_norm", "add_rms_norm", "linear"),
    examples="linear:NORMED_LINEAR",
    weights=("weight",),
    summary="Residual sum and norm, then a linear layer.",
)


_NORMS = (
    _NORM,
    _ADD_NORM,
    _like(
        _NORM,
        "layer_norm",
        "LayerNorm.",
        signature="(x, weight, bias, eps) -> normed",
        examples="rows:LAYER_NORM",
    ),
    _like(
        _ADD_NORM,
        "add_layer_norm",
        "Residual sum, then LayerNorm.",
        signature="(x, residual, weight, bias, eps) -> normed, total",
        parts=("layer_norm",),
        examples="rows:ADD_LAYER_NORM",
    ),
    _like(
        _ADD_NORM,
        "rms_norm_add",
        "Norm after a block, then residual sum.",
        signature="(x, residual, weight, eps) -> total",
        examples="rows:RMS_NORM_ADD",
    ),
    _like(
        _ADD_NORM,
        "sandwich_norm",
        "Norm after a block, residual sum, norm before the next.",
        signature="(x, residual, post_weight, pre_weight, eps) -> normed, total",
        parts=("rms_norm", "add_rms_norm"),
        examples="rows:SANDWICH_NORM",
    ),
    _like(
        _ADD_NORM,
        "add_rms_norm_fp32_residual",
        "Residual sum in float32, then norm.",
        examples="rows:ADD_RMS_NORM_FP32_RESIDUAL",
    ),
)

_ROWS = (
    _GATED,
    contract(
        op="activate",
        signature="(x, activation) -> activated",
        facts=("intermediate_size", "activation"),
        examples="rows:ACTIVATE",
        summary="An activation without a gate.",
    ),
    contract(
        op="xielu",
        signature="(x, alpha_p, alpha_n, beta, eps) -> activated",
        facts=("intermediate_size",),
        examples="rows:XIELU",
        summary="xIELU, an activation with parameters.",
    ),
    _like(_GATED, "gelu_and_mul", "GEGLU with the exact GELU."),
    _like(_GATED, "gelu_tanh_and_mul", "GEGLU with GELU's tanh approximation."),
    _ROPE,
    _like(
        _ROPE,
        "rope_interleaved",
        "RoPE over neighbouring elements of each head, in float32.",
        facts=("num_heads", "qk_rope_head_dim"),
        examples="rows:ROPE_INTERLEAVED",
    ),
    contract(
        op="softcap",
        signature="(x, cap) -> bounded",
        facts=("size",),
        examples="rows:SOFTCAP",
        summary="Soft cap by a hyperbolic tangent.",
    ),
    contract(
        op="sigmoid_gate",
        signature="(x, gate) -> gated",
        facts=("size", "gate_size"),
        examples="rows:SIGMOID_GATE",
        summary="Multiplies by a sigmoid gate.",
    ),
    contract(
        op="embedding",
        signature="(ids, weight) -> rows",
        facts=("vocab_size", "hidden_size"),
        examples="rows:EMBEDDING",
        weights=("weight",),
        summary="Token embedding.",
    ),
    contract(
        op="scaled_embedding",
        signature="(ids, weight, scale) -> rows",
        facts=("vocab_size", "hidden_size"),
        parts=("embedding",),
        examples="rows:SCALED_EMBEDDING",
        weights=("weight",),
        summary="Token embedding, scaled.",
    ),
    contract(
        op="add_adapters",
        signature="(y, x, index, a, b, scale, sizes) -> y",
        facts=("in_features", "out_features", "num_parts", "num_adapters", "rank"),
        examples="adapters:ADD_ADAPTERS",
        mutates_args=("y",),
        weights=("a", "b"),
        summary="Adds the results of each token's low-rank adapter, in place.",
    ),
    contract(
        op="per_head_matmul",
        signature="(x, weight) -> out",
        facts=("num_heads", "qk_nope_head_dim", "kv_lora_rank"),
        examples="rows:PER_HEAD_MATMUL",
        summary="Matrix product with one matrix per head.",
    ),
)

_OVER_ATTENTION = (
    _WRITE_KV,
    _ATTENTION,
    contract(
        op="norm_rope_write_latent",
        signature="(q_rope, latent, weight, eps, positions, cos_sin, cache, meta) -> q_rope",
        facts=("num_heads", "kv_lora_rank", "qk_rope_head_dim"),
        parts=("rms_norm", "rope_interleaved", "attention.write"),
        examples="attention:WRITE_LATENT",
        summary="K norm and RoPE of the latent row, and its write to the cache.",
    ),
    contract(
        op="latent_attention",
        signature="(q, latent, norm_weight, eps, k_up, v_up, positions, cos_sin, cache, meta) -> out",
        facts=LATENT,
        parts=("norm_rope_write_latent", "per_head_matmul", "attention.run"),
        examples="attention:LATENT_ATTENTION",
        weights=("k_up", "v_up"),
        summary="Multi-head latent attention, with the K and V projections absorbed.",
    ),
)

_WITH_LINEAR = (
    _GATE_UP,
    _like(
        _GATE_UP,
        "gate_up_gelu",
        "Gate and up projection, then GEGLU with the exact GELU.",
        parts=("linear", "gelu_and_mul"),
    ),
    _like(
        _GATE_UP,
        "gate_up_gelu_tanh",
        "Gate and up projection, then GEGLU with GELU's tanh approximation.",
        parts=("linear", "gelu_tanh_and_mul"),
    ),
    _NORM_LINEAR,
    _like(
        _NORM_LINEAR,
        "add_rms_norm_router",
        "Residual sum and norm, then the router; also returns the normed sum.",
        signature="(x, residual, norm_weight, eps, weight, bias) -> logits, normed, total",
    ),
    _like(
        _NORM_LINEAR,
        "add_rms_norm_gate_up_silu",
        "Residual sum and norm, then gate and up projection and SwiGLU.",
        signature="(x, residual, norm_weight, eps, weight, bias) -> gated, total",
        facts=("size", "intermediate_size"),
        parts=("rms_norm", "add_rms_norm", "gate_up_silu"),
        examples="linear:NORMED_GATE_UP",
    ),
)

_RECURRENT = (
    contract(
        op="causal_conv",
        signature="(x, weight, bias, cache, step) -> out",
        facts=(*_SPACE, "conv_kernel"),
        examples="recurrent:CAUSAL_CONV",
        measured=False,
        mutates_args=("cache",),
        summary="Causal convolution per channel, with the last inputs of each request kept.",
    ),
    contract(
        op="state_space_scan",
        signature="(x, dt, a, b, c, d, dt_bias, dt_limits, cache, step) -> out",
        facts=(*_SPACE, "dt_limits"),
        examples="recurrent:STATE_SPACE_SCAN",
        measured=False,
        mutates_args=("cache",),
        summary="Selective scan over a state space",
    ),
    contract(
        op="gated_delta_rule",
        signature="(q, k, v, g, beta, cache, step) -> out",
        facts=_DELTA,
        examples="recurrent:GATED_DELTA_RULE",
        measured=False,
        mutates_args=("cache",),
        summary="Gated delta rule",
    ),
    contract(
        op="gated_rms_norm",
        signature="(x, gate, weight, eps) -> normed",
        facts=("num_heads", "head_dim"),
        examples="rows:GATED_RMS_NORM",
        measured=False,
        summary="Root-mean-square norm with a SiLU gate.",
    ),
    contract(
        op="short_conv",
        signature="(x, weight, bias, caches, step) -> out",
        facts=("channels", "conv_kernel", "gated", "activation"),
        examples="recurrent:SHORT_CONV",
        measured=False,
        mutates_args=("caches",),
        summary="Causal convolution per channel, gated before and after or activated.",
    ),
    contract(
        op="selective_scan",
        signature="(x, dt, a, b, c, d, dt_bias, gate, cache, step) -> out",
        facts=("channels", "state_size"),
        examples="recurrent:SELECTIVE_SCAN",
        measured=False,
        mutates_args=("cache",),
        summary="Selective scan of each channel by itself, and its gate.",
    ),
    contract(
        op="state_space_mixer",
        signature=(
            "(projected, conv_weight, conv_bias, a, d, dt_bias, dt_limits, norm_weight, eps, caches, step) -> out"
        ),
        facts=(*_SPACE, "conv_kernel", "dt_limits"),
        parts=("causal_conv", "state_space_scan", "gated_rms_norm"),
        examples="recurrent:STATE_SPACE_MIXER",
        measured=False,
        mutates_args=("caches",),
        summary="Convolution, selective scan and gated norm.",
    ),
    contract(
        op="lightning_attention",
        signature="(q, k, v, decay, caches, step) -> out",
        facts=(*_SPACE, "dt_limits"),
        parts=("state_space_scan",),
        examples="recurrent:LIGHTNING_ATTENTION",
        measured=False,
        mutates_args=("caches",),
        summary="Linear attention with constant decays.",
    ),
    contract(
        op="gated_delta_net",
        signature="(q, k, v, gate, a, b, conv_weight, decay, dt_bias, norm_weight, eps, caches, step) -> out",
        facts=(*_DELTA, "conv_kernel"),
        parts=("causal_conv", "gated_delta_rule", "gated_rms_norm"),
        examples="recurrent:GATED_DELTA_NET",
        measured=False,
        mutates_args=("caches",),
        summary="Gated DeltaNet without its projections.",
    ),
)

CONTRACTS: Mapping[str, OpContract] = {
    each.op: each
    for group in (_NORMS, _ROWS, _OVER_ATTENTION, _WITH_LINEAR, SAMPLING, BATCH, _RECURRENT, OVER_ROWS)
    for each in group
}
"""By the op's name."""
