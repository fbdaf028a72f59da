"""A tree as a JAX program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from llmk.tree import Attend, CausalLM, Experts, MoE, Residual
from llmk_tpu import grouped
from llmk_tpu.blocks import Context, norm, residual, softcap
from llmk_tpu.grouped import Stack
from llmk_tpu.parameters import Parameters, Run, model_parameters, runs_of, values_of
from llmk_tpu.ranks import Ranks
from llmk_tpu.support import check
from llmk_tpu.weights import check_weights

Logits = Callable[[Any], Array]
"""From token ids, an array or a sequence ``[tokens]``, to logits ``[tokens, vocab]`` in float32."""

Layers = Callable[[Run, Any, int, Array], Array]
"""Runs layers that are alike: the run, its parameters, the number of its first layer, and the hidden states."""


def build(model: CausalLM, weights: Mapping[str, Any], *, dtype: str = "float32") -> Logits:
    """The logits of a tree's model for a whole sequence, as a compiled function without a cache.

    It is compiled once per number of tokens; no token sees later ones, so sequences may be padded at their end. Layers
    in a row that are alike (:func:`llmk.tree.nameless`) are compiled once, and run in a loop.

    Args:
        weights: arrays by the names of the tree's weight map, as :func:`llmk_tpu.weights.read_weights` returns them.
        dtype: that of weights and hidden states.

    Raises:
        SelectionError: the tree has a spec, or an option of one, that this runtime does not have.
        CheckpointError: a tensor is missing, or has another shape.
    """
    check(model)
    check_weights(model, weights)
    own = jax.device_put(values_of(model_parameters(model, weights, dtype)))
    compiled = jax.jit(partial(_whole_sequence, model))
    return lambda token_ids: compiled(own, jnp.asarray(token_ids, jnp.int32))


def hidden_states(model: CausalLM, own: Parameters, token_ids: Array, layers: Layers, ranks: Ranks) -> Array:
    """Final hidden states ``[tokens, hidden]``, normed, of ``token_ids`` ``[tokens]``."""
    x = ranks.look_up(own["embed"]["weight"], token_ids)
    if model.embed.scale is not None:
        x = x * jnp.asarray(model.embed.scale, x.dtype)
    first = 0
    for run, parameters in zip(runs_of(model), own["runs"], strict=True):
        x = layers(run, parameters, first, x)
        first += run.length
    return norm(model.norm, own["norm"], x)


def logits(model: CausalLM, own: Parameters, hidden: Array, ranks: Ranks) -> Array:
    """Logits ``[tokens, vocab]`` of final hidden states, in float32."""
    head = own["embed"]["weight"] if model.head.tied else own["head"]["weight"]
    found = ranks.join(hidden @ head.T)[:, : model.head.vocab_size]
    return softcap(found, model.head.softcap).astype(jnp.float32)


def hold_experts(run: Run, own: list[Parameters]) -> tuple[list[Parameters], dict[int, Parameters]]:
    """The parameters of a run without those of experts, which loops over layers would copy, and these, by the numbers
    of the layer's parts."""
    held = {at: own[at]["block"]["experts"] for at, part in enumerate(run.layer) if _has_experts(part)}
    rest = [
        {**of, "block": {name: each for name, each in of["block"].items() if name != "experts"}} if at in held else of
        for at, of in enumerate(own)
    ]
    return rest, held


def with_experts(own: list[Parameters], held: dict[int, Parameters], layer: Array) -> list[Parameters]:
    """One layer's parameters, with those of experts in a :class:`~llmk_tpu.grouped.Stack`."""
    stacks = {at: {name: Stack(each, layer) for name, each in of.items()} for at, of in held.items()}
    return [
        {**of, "block": {**of["block"], "experts": stacks[at]}} if at in stacks else of for at, of in enumerate(own)
    ]


def _has_experts(part: Any) -> bool:
    return isinstance(part, Residual) and isinstance(part.block, MoE)


def run_layer(layer: tuple[Any, ...], own: list[Parameters], x: Array, context: Context) -> Array:
    """One layer."""
    for spec, of in zip(layer, own, strict=True):
        assert isinstance(spec, Residual)
        x = residual(spec, of, x, context)
    return x


@dataclass(slots=True)
class WholeSequence:
    """The tokens of one sequence, all of them: each attends to itself and to those before it."""

    positions: Array
    ranks: Ranks

    def attend(self, spec: Attend, q: Array, k: Array, v: Array) -> Array:
        """As in :class:`llmk_tpu.blocks.Context`."""
        tokens = q.shape[0]
        grouped = q.reshape(tokens, spec.kv_heads, -1, spec.head_dim)
        scale = spec.head_dim**-0.5 if spec.scale is None else spec.scale
        scores = jnp.einsum("qhgd,khd->hgqk", grouped, k, preferred_element_type=jnp.float32) * scale
        back = self.positions[:, None] - self.positions
        seen = (back >= 0) & (back < (spec.window or tokens))
        shares = jax.nn.softmax(jnp.where(seen, softcap(scores, spec.softcap), -jnp.inf), axis=-1)
        return jnp.einsum("hgqk,khd->qhgd", shares.astype(v.dtype), v).reshape(q.shape)

    def multiply(self, spec: Experts, rows: Array, weights: Stack, rows_of: Array) -> Array:
        """As in :class:`llmk_tpu.blocks.Context`."""
        return grouped.by_lax(rows, weights, rows_of)


def _whole_sequence(model: CausalLM, own: Parameters, token_ids: Array) -> Array:
    context = WholeSequence(jnp.arange(token_ids.shape[0]), Ranks())

    def layers(run: Run, parameters: Any, first: int, x: Array) -> Array:
        rest, held = hold_experts(run, parameters)

        def one(x: Array, layer: tuple[list[Parameters], Array]) -> tuple[Array, None]:
            own, number = layer
            return run_layer(run.layer, with_experts(own, held, number), x, context), None

        return lax.scan(one, x, (rest, jnp.arange(run.length)))[0]

    return logits(model, own, hidden_states(model, own, token_ids, layers, context.ranks), context.ranks)
