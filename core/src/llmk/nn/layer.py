"""Layers that own parameters, and how the checkpoint's tensors are loaded into them.

Only this module maps a checkpoint's tensors to parameters, and knows which part of them a rank reads.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from llmk.api import CheckpointError

if TYPE_CHECKING:
    from llmk.api import StoredTensor
    from llmk.nn.build import Build


STORED_DTYPES: Mapping[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""torch's dtypes by the names that safetensors files use, where torch has them."""


def stored_dtype(tensor: StoredTensor) -> torch.dtype:
    """The torch dtype of a stored tensor. Raises CheckpointError if no layer can load it."""
    if tensor.dtype not in STORED_DTYPES:
        raise CheckpointError(
            f"tensor {tensor.name!r} in {tensor.file} is stored as {tensor.dtype}, which no layer can load",
            hint=f"layers load {', '.join(STORED_DTYPES)}",
        )
    return STORED_DTYPES[tensor.dtype]


class Place(NamedTuple):
    """Rows ``start`` to ``stop - 1`` of a stored tensor, and the part ``into`` of a parameter that they are copied to.
    ``columns`` selects columns; empty: all."""

    start: int
    stop: int
    columns: tuple[slice, ...]
    into: Tensor


class Parameter:
    """A tensor of shape ``[sum(rows), *columns]``, or this rank's part of it. Checkpoints store it in shards along its
    rows, or packed in one tensor.

    Args:
        names: the checkpoint's name of each shard.
        rows: rows of each shard.
        columns: the remaining dimensions.
        aliases: further names under which the checkpoint may store consecutive shards, such as a packed tensor's; maps
            each name to the indices of its shards.
        dummy_std: standard deviation of dummy values; ``None``: ones.
        stacks: if given, the parameter is a stack ``[stacks, sum(rows) / stacks, *columns]``; a stored tensor may hold
            several matrices of the stack.
        kept_rows: runs of each shard's rows that this rank keeps; ``None``: all.
        kept_columns: part of the first of ``columns`` that this rank keeps; ``None``: all.
        room: rows to allocate, if more than this rank keeps; the remaining rows are zeros.
    """

    def __init__(
        self,
        build: Build,
        names: Sequence[str],
        rows: Sequence[int],
        columns: Sequence[int] = (),
        *,
        aliases: Mapping[str, tuple[int, ...]] | None = None,
        dtype: torch.dtype | None = None,
        dummy_std: float | None = 0.02,
        stacks: int = 0,
        kept_rows: Sequence[Sequence[slice]] | None = None,
        kept_columns: slice | None = None,
        room: int = 0,
    ) -> None:
        self.names = tuple(names)
        self.targets: dict[str, tuple[int, ...]] = {name: (i,) for i, name in enumerate(names)} | dict(aliases or {})
        self.dtype = dtype or build.dtype
        self._device = build.device
        self._rows = tuple(rows)
        self._columns = tuple(columns)
        self._stacks = stacks
        self._kept_rows = kept_rows or [[slice(0, count)] for count in rows]
        self._kept_columns = () if kept_columns is None else (kept_columns,)
        self._starts = (0, *accumulate(sum(run.stop - run.start for run in kept) for kept in self._kept_rows))
        self._room = max(room, self._starts[-1])
        self._dummy_std = dummy_std
        self._loaded: set[int] = set()
        self._value: Tensor | None = None

    @property
    def rows(self) -> list[int]:
        """Rows of each shard that this process keeps."""
        return [stop - start for start, stop in pairwise(self._starts)]

    @property
    def complete(self) -> bool:
        """Whether every shard has been loaded."""
        return len(self._loaded) == len(self.names)

    @property
    def missing(self) -> list[str]:
        """Names of the shards that have not been loaded."""
        return [name for i, name in enumerate(self.names) if i not in self._loaded]

    def shape(self, shards: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the stored tensor that holds ``shards``, which are consecutive."""
        return (sum(self._rows[i] for i in shards), *self._columns)

    def fits(self, shards: tuple[int, ...], shape: tuple[int, ...]) -> bool:
        """Whether a tensor of ``shape`` can hold ``shards``."""
        expected = self.shape(shards)
        if self._stacks and len(shape) > len(expected):
            rows = sum(self._rows) // self._stacks
            return shape == (expected[0] // rows, rows, *self._columns)
        # Dimensions of one element don't change what lies where: one row may be stored as a vector.
        return [size for size in shape if size != 1] == [size for size in expected if size != 1]

    def places(self, shards: tuple[int, ...]) -> Iterator[Place]:
        """Where this rank's part of ``shards`` is copied to, from a stored tensor that holds these shards one below the
        other. A stack of matrices counts as one matrix of all their rows."""
        storage, first_row = self._storage(), 0
        for shard in shards:
            start = self._starts[shard]
            for run in self._kept_rows[shard]:
                stop = start + run.stop - run.start
                yield Place(first_row + run.start, first_row + run.stop, self._kept_columns, storage[start:stop])
                start = stop
            first_row += self._rows[shard]

    def mark_loaded(self, shards: tuple[int, ...]) -> None:
        """Records that ``shards`` have been loaded."""
        self._loaded.update(shards)

    def load(self, shards: tuple[int, ...], values: Tensor) -> None:
        """Copies this rank's part of ``shards`` from ``values``, which holds all of them, to the parameter, in the
        parameter's dtype and on its device."""
        rows = values.reshape(self.shape(shards))
        for place in self.places(shards):
            place.into.copy_(rows[(slice(place.start, place.stop), *place.columns)])
        self.mark_loaded(shards)

    def fill(self, seed: int) -> None:
        """Fills every shard with random values. They depend only on its name and ``seed``, not on how it is sharded."""
        for i, name in enumerate(self.names):
            shape = self.shape((i,))
            if self._dummy_std is None:
                values = torch.ones(shape)
            else:
                # Drawn on the device, because the host takes minutes for a large model. Another kind of device draws
                # other values.
                generator = torch.Generator(self._device).manual_seed(zlib.crc32(name.encode()) ^ seed)
                values = torch.empty(shape, device=self._device).normal_(0.0, self._dummy_std, generator=generator)
            self.load((i,), values)

    @property
    def storage(self) -> Tensor:
        """What places lie in: all rows that this rank keeps, and those that are only allocated."""
        return self._storage()

    def adopt(self, values: Tensor) -> None:
        """Takes a tensor that is like :attr:`storage`, and holds what would be loaded, in its place."""
        self._value = values

    def take(self) -> Tensor:
        """Returns the complete tensor, and drops the parameter's own reference to it."""
        value, self._value = self._storage(), None
        return value.view(self._stacks, -1, *value.shape[1:]) if self._stacks else value

    def _storage(self) -> Tensor:
        if self._value is None:
            columns = [*self._columns]
            for kept in self._kept_columns:
                columns[0] = kept.stop - kept.start
            self._value = torch.empty((self._room, *columns), dtype=self.dtype, device=self._device)
            self._value[self._starts[-1] :] = 0
        return self._value


class Layer(ABC):
    """Base of layers that own parameters. The loader fills ``parameters`` and then calls :meth:`finish`, once.

    Attributes:
        here: whether the layer belongs to this process's pipeline stage. Otherwise, nothing is loaded into it, and it
            never runs.
    """

    def __init__(self, build: Build, parameters: Sequence[Parameter]) -> None:
        self.parameters = tuple(parameters)
        self.here = build.here
        build.layers.append(self)

    def discover(self, stored: Mapping[str, Sequence[StoredTensor]]) -> None:  # noqa: B027
        """Called before loading with the stored tensors by module prefix, for layers whose parameters depend on them.
        Most layers need not override it."""

    @abstractmethod
    def finish(self) -> None:
        """Takes over the loaded tensors and prepares them for the layer's kernel."""
