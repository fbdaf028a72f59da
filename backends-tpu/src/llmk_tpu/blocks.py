"""The blocks of decoders in JAX: what each spec computes.

Each function takes a spec, its parameters as :func:`llmk_tpu.parameters.parameters` returns them, hidden states
``[tokens, hidden]``, and the program that it is a part of. Rounding is that of ``llmk.reference``: norms, angles,
scores and softmax are float32, GEMMs have the dtype of the weights.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import Array, lax

from llmk import tree
from llmk_tpu.grouped import Stack
from llmk_tpu.parameters import Parameters
from llmk_tpu.ranks import Ranks
from llmk_tpu.rope import inverse_frequencies

_ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = {
    "silu": jax.nn.silu,
    "gelu_tanh": partial(jax.nn.gelu, approximate=True),
}


class Context(Protocol):
    """The program that blocks are a part of: the positions of its tokens, int32 ``[tokens]``, what computes its sites,
    and the devices that it runs on."""

    positions: Array
    ranks: Ranks

    @abstractmethod
    def attend(self, spec: tree.Attend, q: Array, k: Array, v: Array) -> Array:
        """Attention of queries ``[tokens, heads, head_dim]``, with keys and values ``[tokens, kv_heads, head_dim]`` of
        the same tokens, all rotated; shaped as the queries."""
        ...

    @abstractmethod
    def multiply(self, spec: tree.Experts, rows: Array, weights: Stack, rows_of: Array) -> Array:
        """A grouped GEMM (:mod:`llmk_tpu.grouped`)."""
        ...


def residual(spec: tree.Residual, own: Parameters, x: Array, context: Context) -> Array:
    """``x + post(block(norm(x)))``."""
    inner = x if spec.norm is None else norm(spec.norm, own["norm"], x)
    out = BLOCKS[type(spec.block)](spec.block, own["block"], inner, context)
    return x + (out if spec.post is None else norm(spec.post, own["post"], out))


def norm(spec: tree.Norm, own: Parameters, x: Array) -> Array:
    """A root-mean-square norm."""
    return _rms_norm(x, own["weight"], spec.eps, spec.offset)


def softcap(x: Array, cap: float | None) -> Array:
    """``cap * tanh(x / cap)``, or ``x`` without a cap."""
    return x if cap is None else cap * jnp.tanh(x / cap)


def _rms_norm(x: Array, weight: Array, eps: float, offset: float) -> Array:
    wide = x.astype(jnp.float32)
    normed = wide * lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + eps)
    if offset:
        return (normed * (offset + weight.astype(jnp.float32))).astype(x.dtype)
    return weight * normed.astype(x.dtype)


def linear(spec: tree.Linear, own: Parameters, x: Array, context: Context) -> Array:
    """A GEMM with a weight. Devices that each have some of its input features add up their results."""
    out: Array = x @ own["weight"].T
    if spec.cut == "row":
        out = context.ranks.sum(out)
    return out + own["bias"] if "bias" in own else out


def _self_attention(spec: tree.SelfAttention, own: Parameters, x: Array, context: Context) -> Array:
    attend, count = context.ranks.share(spec.attend), x.shape[0]
    heads = linear(spec.qkv, own["qkv"], x, context).reshape(count, -1, attend.head_dim)
    q, k, v = jnp.split(heads, (attend.heads, attend.heads + attend.kv_heads), axis=1)
    if attend.qk_norm is not None:
        weights = own["attend"]["q_norm.weight"], own["attend"]["k_norm.weight"]
        q, k = (
            _rms_norm(each, of, attend.qk_norm, attend.norm_offset) for each, of in zip((q, k), weights, strict=True)
        )
    assert attend.rope is not None
    q, k = (_rotate(attend.rope, each, context.positions) for each in (q, k))
    return linear(spec.out, own["out"], context.attend(spec.attend, q, k, v).reshape(count, -1), context)


def _rotate(rope: tree.Rope, x: Array, positions: Array) -> Array:
    """Rotates the first ``rotary_dim`` elements of each head, ``[tokens, heads, head_dim]``, element ``i`` paired with
    ``i + rotary_dim / 2``."""
    frequencies, scaling = inverse_frequencies(rope)
    angles = jnp.outer(positions.astype(jnp.float32), jnp.asarray(frequencies))[:, None]
    cos, sin = jnp.cos(angles) * scaling, jnp.sin(angles) * scaling
    half = rope.rotary_dim // 2
    first, second, rest = jnp.split(x, (half, 2 * half), axis=-1)
    rotated = first * cos - second * sin, second * cos + first * sin
    return jnp.concatenate((*(each.astype(x.dtype) for each in rotated), rest), axis=-1)


def _gated(activation: str, gate_up: Array) -> Array:
    gate, up = jnp.split(gate_up, 2, axis=-1)
    return _ACTIVATIONS[activation](gate.astype(jnp.float32)).astype(up.dtype) * up


def _gated_mlp(spec: tree.GatedMLP, own: Parameters, x: Array, context: Context) -> Array:
    gate_up = linear(spec.gate_up, own["gate_up"], x, context)
    return linear(spec.down, own["down"], _gated(spec.activation, gate_up), context)


def _moe(spec: tree.MoE, own: Parameters, x: Array, context: Context) -> Array:
    """Sorts the rows by expert, for one grouped GEMM over all experts."""
    facts, weights = spec.experts.facts, own["experts"]
    scores = jax.nn.softmax(linear(spec.router, own["router"], x, context).astype(jnp.float32), axis=-1)
    shares, chosen = lax.top_k(scores, facts.top_k)
    if facts.renormalize:
        shares = shares / shares.sum(-1, keepdims=True)
    order = jnp.argsort(chosen.ravel())
    rows_of = jnp.bincount(chosen.ravel(), length=facts.num_experts)
    gate_up = context.multiply(spec.experts, x[order // facts.top_k], weights["gate_up"], rows_of)
    out = context.multiply(spec.experts, _gated(facts.activation, gate_up), weights["down"], rows_of)
    back = jnp.zeros_like(out).at[order].set(out).reshape(*chosen.shape, -1)
    summed = jnp.einsum("tk,tkh->th", shares, back.astype(jnp.float32))
    return context.ranks.sum(summed).astype(x.dtype)


BLOCKS: Mapping[type[tree.Block], Callable[[Any, Parameters, Array, Context], Array]] = {
    tree.SelfAttention: _self_attention,
    tree.GatedMLP: _gated_mlp,
    tree.MoE: _moe,
}
"""What computes a block, by the type of its spec; :data:`llmk_tpu.support.READ` has the same blocks."""
