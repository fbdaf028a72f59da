"""The program of a step: embeds the step's tokens, runs the layers over the paged cache, samples, and keeps the sampled
tokens for the next step. All of it runs on the device; the host sends one array and reads one back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from llmk.tree import Attend, CausalLM, Experts, SelfAttention
from llmk_tpu import paged
from llmk_tpu.binding import Binding
from llmk_tpu.grouped import Stack
from llmk_tpu.model import hidden_states, hold_experts, logits, run_layer, with_experts
from llmk_tpu.packing import unpack
from llmk_tpu.parameters import Parameters, Run
from llmk_tpu.ranks import Ranks
from llmk_tpu.sampling import Controls, sample
from llmk_tpu.shapes import Shape


class State(NamedTuple):
    """What stays on the device from step to step. Each step takes it over, and returns it changed.

    ``cache``: as in :class:`llmk_tpu.paged.Pages`; ``tables``: int32 ``[groups, slots, max_blocks]``; ``last``: int32
    ``[slots]``, the token that was sampled last for each slot.
    """

    cache: Array
    tables: Array
    last: Array


@dataclass(slots=True)
class _CachedTokens:
    """The tokens of a step, in one layer. Each attention writes to the cache first, and leaves it changed."""

    positions: Array
    ranks: Ranks
    binding: Binding
    pages: paged.Pages
    tiles: paged.Tiles
    tile: int
    places: list[Array]
    """Buffer and group of each attention of the layer, in order."""

    def attend(self, spec: Attend, q: Array, k: Array, v: Array) -> Array:
        """As in :class:`llmk_tpu.blocks.Context`."""
        place, compute, share = self.places.pop(0), self.binding.of(spec, q.shape[0]), self.ranks.share(spec)
        self.pages = self.pages._replace(cache=paged.write(self.pages, place, self.positions, k, v))
        found: Array = compute(share, q, self.pages, place, self.positions, self.tiles, self.tile)
        return found

    def multiply(self, spec: Experts, rows: Array, weights: Stack, rows_of: Array) -> Array:
        """As in :class:`llmk_tpu.blocks.Context`."""
        found: Array = self.binding.of(spec, self.positions.shape[0])(rows, weights, rows_of)
        return found


@dataclass(frozen=True, slots=True)
class Program:
    """What a step's program is made of.

    ``places`` are buffer and group of each attention of the model, in order; ``binding``, what computes its sites;
    ``ranks``, the devices that the program is spread over.
    """

    model: CausalLM
    places: Sequence[tuple[int, int]]
    binding: Binding
    ranks: Ranks


def run_step(program: Program, shape: Shape, own: Parameters, state: State, packed: Array) -> tuple[State, Array]:
    """One step, on each of the program's devices.

    Args:
        own: :func:`llmk_tpu.parameters.model_parameters`, or the device's share of them, as of the state.
        packed: :func:`llmk_tpu.packing.pack`.

    Returns:
        The state after it, and int32 ``[2, requests]``: for each request a token, and whether its logits are finite.
        Both mean something only where the step samples.
    """
    model, ranks = program.model, program.ranks
    given = unpack(shape, packed)
    tiles = paged.Tiles(*(given[name] for name in paged.Tiles._fields))
    rows, slots = given["rows"], given["slots"]
    pages = paged.Pages(state.cache, state.tables[:, slots], rows)
    known = given["positions"], ranks, program.binding
    newest = state.last[slots[jnp.minimum(rows, shape.requests - 1)]]
    token_ids = jnp.where(given["token_ids"] < 0, newest, given["token_ids"])
    per_layer = _attentions_of(model)

    def layers(run: Run, parameters: Any, first: int, x: Array) -> Array:
        nonlocal pages
        count = per_layer[first]
        start = sum(per_layer[:first])
        here = jnp.asarray(program.places[start : start + count * run.length], jnp.int32).reshape(run.length, count, 2)

        rest, held = hold_experts(run, parameters)

        def one(carry: tuple[Array, Array], layer: tuple[Any, Array, Array]) -> tuple[tuple[Array, Array], None]:
            x, cache = carry
            own, at, number = layer
            tokens = _CachedTokens(*known, pages._replace(cache=cache), tiles, shape.tile, list(at))
            x = run_layer(run.layer, with_experts(own, held, number), x, tokens)
            return (x, tokens.pages.cache), None

        (x, cache), _ = lax.scan(one, (x, pages.cache), (rest, here, jnp.arange(run.length)))
        pages = pages._replace(cache=cache)
        return x

    hidden = hidden_states(model, own, token_ids, layers, ranks)
    found = logits(model, own, hidden[given["sampled_at"]], ranks)
    tokens = sample(found, Controls(*(given[name] for name in Controls._fields)))
    last = state.last.at[given["sampled_slots"]].set(tokens, mode="drop")
    is_fine = jnp.isfinite(found.max(axis=-1)).astype(jnp.int32)
    return State(pages.cache, state.tables, last), jnp.stack((tokens, is_fine))


def change_tables(state: State, changes: Array) -> State:
    """Writes int32 ``[changes, 4]`` (group, slot, index, block) to the block tables; what is out of range is left."""
    group, slot, index, block = changes.T
    return state._replace(tables=state.tables.at[group, slot, index].set(block, mode="drop"))


def attentions(model: CausalLM) -> list[Attend]:
    """Every attention of a model, in the order in which it computes."""
    parts = (part for layer in model.layers for part in layer)
    blocks = (getattr(part, "block", None) for part in parts)
    return [block.attend for block in blocks if isinstance(block, SelfAttention)]


def _attentions_of(model: CausalLM) -> list[int]:
    """How many attentions each layer has."""
    return [sum(isinstance(getattr(part, "block", None), SelfAttention) for part in layer) for layer in model.layers]
