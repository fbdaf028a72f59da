"""The executor: holds a model and its cache on the devices that JAX has, and carries out the engine's steps."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from llmk.api import (
    CacheSpec,
    EngineDead,
    ExecutorContext,
    FullAttentionCache,
    LayerGroup,
    SlidingWindowCache,
    Step,
    StepTokens,
)
from llmk.api.cache import DTYPE_BYTES
from llmk_tpu.binding import Binding
from llmk_tpu.devices import Devices
from llmk_tpu.packing import sizes
from llmk_tpu.parameters import model_parameters
from llmk_tpu.platform import TPUMemory
from llmk_tpu.ranks import Ranks
from llmk_tpu.shapes import Shape, shape_for, shapes
from llmk_tpu.slots import NO_ROW, Slots
from llmk_tpu.step import Program, State, attentions, change_tables
from llmk_tpu.weights import read_weights

logger = logging.getLogger(__name__)

_CHANGES = 256
"""How many entries of block tables are changed at once."""


@dataclass(slots=True)
class _Pending:
    """A step on the device. ``rows`` are its sampled requests; ``found`` is what :func:`run_step` returns."""

    rows: list[int]
    found: jax.Array | None

    def is_done(self) -> bool:
        return self.found is None or bool(self.found.is_ready())  # type: ignore[attr-defined] # jax's annotations lack it

    def result(self) -> StepTokens:
        if self.found is None:
            return StepTokens(())
        try:
            tokens, is_fine = np.asarray(self.found)[:, self.rows].tolist()
        except jax.errors.JaxRuntimeError as error:
            raise EngineDead(f"the device failed in a step: {error}", hint="its messages are on stderr") from error
        return StepTokens(tokens, [row for row, fine in enumerate(is_fine) if not fine])


class JaxExecutor:
    """Follows :class:`llmk.api.ModelExecutor`."""

    def __init__(self, context: ExecutorContext) -> None:
        query, options = context.query, context.options
        self._emulated = bool(options.get("emulate"))
        if self._emulated:
            emulate(query.tensor)
        if folder := options.get("compilation_cache"):
            jax.config.update("jax_compilation_cache_dir", folder)  # type: ignore[no-untyped-call]
        self.asynchronous = f"{query.platform.label} runs programs while the host goes on"
        self._context, self._model = context, query.tree
        self._memory = TPUMemory()
        self._shapes = shapes(context.max_num_seqs, context.max_num_batched_tokens)
        self._programs: dict[Shape, Any] = {}
        self._devices = Devices.of(jax.devices(), query.tensor)
        self._binding = Binding(self._model, context.plan)
        self._change = jax.jit(change_tables, donate_argnums=0, out_shardings=self._devices.state_shardings)
        self.cache_specs = cache_specs(context)
        weights = read_weights(self._model, context.checkpoint)
        own = model_parameters(self._model, weights, query.dtype, ranks=query.tensor)
        self._cuts, self._own = self._devices.cuts(own), self._devices.put(own)

    def available(self) -> int:
        """Bytes that are free, once the largest step has what it needs; emulated, what a step needs is small."""
        if self._emulated:
            return self._memory.available() // self._context.query.tensor
        groups = [_Group(self._context.block_size, tuple(range(len(self.cache_specs))))]
        state = jax.eval_shape(partial(self._state, 1, groups))
        needed = self._compile(self._shapes[-1], _places(groups, len(self.cache_specs)), state).memory_analysis()
        return max(0, self._memory.available() - int(needed.temp_size_in_bytes))

    def allocate(self, num_blocks: int, groups: Sequence[LayerGroup]) -> None:
        """Allocates the cache. With ``warm_up``, compiles all shapes, else each when it is first needed."""
        self._places = _places(groups, len(self.cache_specs))
        make = partial(self._state, num_blocks, groups)
        self._state_now = jax.jit(make, out_shardings=self._devices.state_shardings)()
        self._slots = Slots(len(groups))
        start = time.perf_counter()
        if self._context.warm_up:
            for shape in self._shapes:
                self._program(shape)
        count, total = len(self._programs), len(self._shapes)
        logger.info("programs: %d of %d shapes compiled in %.1f s", count, total, time.perf_counter() - start)

    def submit(self, step: Step) -> _Pending:
        """Issues a step."""
        changes = self._slots.apply(step)
        for start in range(0, len(changes), _CHANGES):
            some = np.full((_CHANGES, 4), NO_ROW, np.int32)
            some[: len(changes) - start] = changes[start : start + _CHANGES]
            self._state_now = self._change(self._state_now, some)
        if not step.work:
            return _Pending([], None)
        shape = shape_for(self._shapes, [work.num_tokens for work in step.work])
        packed = self._slots.lay_out(step.work, shape)
        self._state_now, found = self._program(shape)(self._own, self._state_now, packed)
        found.copy_to_host_async()
        return _Pending([row for row, work in enumerate(step.work) if work.sample], found)

    def close(self) -> None:
        """Leaves everything to the end of the process."""

    def _program(self, shape: Shape) -> Any:
        if shape not in self._programs:
            self._programs[shape] = self._compile(shape, self._places, self._state_now)
        return self._programs[shape]

    def _compile(self, shape: Shape, places: Sequence[tuple[int, int]], state: Any) -> Any:
        packed = np.zeros(sum(sizes(shape).values()), np.int32)
        program = Program(self._model, places, self._binding, self._devices.ranks)
        return self._devices.jit(program, shape, self._cuts).lower(self._own, state, packed).compile()

    def _state(self, num_blocks: int, groups: Sequence[LayerGroup]) -> State:
        """A new state: an empty cache."""
        first, context = self._devices.ranks.share(attentions(self._model)[0]), self._context
        buffers, slots = max(len(group.layers) for group in groups), context.max_num_seqs
        size = groups[0].block_size
        heads = context.query.tensor * 2 * first.kv_heads
        kept = (buffers, num_blocks, heads, size, first.head_dim)
        width = -(-(context.max_model_len + 1) // size)
        return State(
            jnp.zeros(kept, context.query.cache_dtype),
            jnp.zeros((len(groups), slots, width), jnp.int32),
            jnp.zeros(slots, jnp.int32),
        )


@dataclass(frozen=True, slots=True)
class _Group:
    block_size: int
    layers: tuple[int, ...]


def emulate(count: int) -> None:
    """Has JAX use the CPU, as so many devices, if it was not used before."""
    jax.config.update("jax_platforms", "cpu")  # type: ignore[no-untyped-call]
    if count > 1 and "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        with suppress(RuntimeError):
            jax.config.update("jax_num_cpu_devices", count)  # type: ignore[no-untyped-call]


def cache_specs(context: ExecutorContext) -> list[CacheSpec]:
    """What each attention of the model keeps, on each device."""
    found: list[CacheSpec] = []
    ranks = Ranks(context.query.tensor)
    for spec in map(ranks.share, attentions(context.query.tree)):
        page = context.block_size * 2 * spec.kv_heads * spec.head_dim * DTYPE_BYTES[context.query.cache_dtype]
        kind = FullAttentionCache if spec.window is None else partial(SlidingWindowCache, window=spec.window)
        found.append(kind(context.block_size, page))
    return found


def _places(groups: Sequence[LayerGroup], num_layers: int) -> list[tuple[int, int]]:
    """Buffer and group of each layer: the layers of a group have one buffer each, and those of other groups the same
    ones."""
    found = {layer: (i, number) for number, group in enumerate(groups) for i, layer in enumerate(group.layers)}
    return [found[layer] for layer in range(num_layers)]
