"""A tree as a JAX program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import groupby
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from llmk.tree import CausalLM, nameless
from llmk_tpu.blocks import Parameters, norm, parameters, residual, softcap
from llmk_tpu.support import check
from llmk_tpu.weights import check_weights

Logits = Callable[[Any], Array]
"""From token ids, an array or a sequence ``[tokens]``, to logits ``[tokens, vocab]`` in float32."""


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
    runs = [list(run) for _, run in groupby(model.layers, key=nameless)]
    own = {
        "embed": parameters(model.embed, weights, dtype),
        "runs": [_stacked([[parameters(part, weights, dtype) for part in layer] for layer in run]) for run in runs],
        "norm": parameters(model.norm, weights, dtype),
        "head": parameters(model.head, weights, dtype),
    }
    compiled = jax.jit(partial(_logits, model, [run[0] for run in runs]))
    return lambda token_ids: compiled(own, jnp.asarray(token_ids, jnp.int32))


def _stacked(layers: list[list[Parameters]]) -> Any:
    return jax.tree.map(lambda *each: jnp.stack(each), *layers)


def _logits(model: CausalLM, kinds: list[Any], own: Parameters, token_ids: Array) -> Array:
    table = own["embed"]["weight"]
    x = table[token_ids]
    if model.embed.scale is not None:
        x = x * jnp.asarray(model.embed.scale, x.dtype)
    for kind, run in zip(kinds, own["runs"], strict=True):
        x, _ = lax.scan(partial(_layer, kind), x, run)
    head = table if model.head.tied else own["head"]["weight"]
    logits = norm(model.norm, own["norm"], x) @ head.T
    return softcap(logits, model.head.softcap).astype(jnp.float32)


def _layer(kind: Any, x: Array, own: list[Parameters]) -> tuple[Array, None]:
    for spec, of in zip(kind, own, strict=True):
        x = residual(spec, of, x)
    return x, None
