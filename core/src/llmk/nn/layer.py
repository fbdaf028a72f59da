"""Layers that own parameters, and how the checkpoint's tensors find their way into them.

This is the one place that knows how a parameter lies in a checkpoint's tensors, and which part of them a process reads.
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
    from llmk.nn.build import Build
    from llmk.nn.tensor_file import StoredTensor


STORED_DTYPES: Mapping[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""torch's dtypes by the names that safetensors files use, where torch has them."""


def stored_dtype(tensor: StoredTensor) -> torch.dtype:
    """In what a tensor is stored. Raises CheckpointError where no layer could take it so."""
    if tensor.dtype not in STORED_DTYPES:
        raise CheckpointError(
            f"tensor {tensor.name!r} in {tensor.file} is stored as {tensor.dtype}, which no layer takes",
            hint=f"they take {', '.join(STORED_DTYPES)}",
        )
    return STORED_DTYPES[tensor.dtype]


class Place(NamedTuple):
    """Where rows ``start`` to ``stop - 1`` of a stored tensor belong. ``columns``: what is kept of each; none: all."""

    start: int
    stop: int
    columns: tuple[slice, ...]
    into: Tensor


class Parameter:
    """A tensor of shape ``[sum(rows), *columns]`` that checkpoints store in shards along its rows, or whole; or that
    part of it which this process keeps.

    Args:
        names: the checkpoint's name of each shard.
        rows: rows of each shard.
        columns: the remaining dimensions.
        others: further names under which the checkpoint may store a run of shards, such as the already packed tensor.
        dummy_std: standard deviation of dummy values; ``None``: ones.
        stacks: where given, the parameter is ``[stacks, sum(rows) / stacks, *columns]``, and so may be a tensor that
            holds several of these.
        kept_rows: what the process keeps of each shard's rows, in runs; ``None``: all.
        kept_columns: what it keeps of the first of ``columns``; ``None``: all.
        room: rows that it sets aside where it keeps fewer; the last ones are zeros.
    """

    def __init__(
        self,
        build: Build,
        names: Sequence[str],
        rows: Sequence[int],
        columns: Sequence[int] = (),
        *,
        others: Mapping[str, tuple[int, ...]] | None = None,
        dtype: torch.dtype | None = None,
        dummy_std: float | None = 0.02,
        stacks: int = 0,
        kept_rows: Sequence[Sequence[slice]] | None = None,
        kept_columns: slice | None = None,
        room: int = 0,
    ) -> None:
        self.names = tuple(names)
        self.targets: dict[str, tuple[int, ...]] = {name: (i,) for i, name in enumerate(names)} | dict(others or {})
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
        """The shape of the tensor that holds ``shards``, which follow one another."""
        return (sum(self._rows[i] for i in shards), *self._columns)

    def fits(self, shards: tuple[int, ...], shape: tuple[int, ...]) -> bool:
        """Whether a tensor of ``shape`` can hold ``shards``."""
        expected = self.shape(shards)
        if self._stacks and len(shape) > len(expected):
            rows = sum(self._rows) // self._stacks
            return shape == (expected[0] // rows, rows, *self._columns)
        return shape == expected or (shape == () and expected == (1,))

    def places(self, shards: tuple[int, ...]) -> Iterator[Place]:
        """Where what this process keeps of ``shards`` belongs, of a tensor that holds them one below the other. All but
        the parameter's own columns are its rows, so that a stack of matrices counts as one."""
        storage, above = self._storage(), 0
        for shard in shards:
            start = self._starts[shard]
            for run in self._kept_rows[shard]:
                stop = start + run.stop - run.start
                yield Place(above + run.start, above + run.stop, self._kept_columns, storage[start:stop])
                start = stop
            above += self._rows[shard]

    def loaded(self, shards: tuple[int, ...]) -> None:
        """Notes that ``shards`` are at their places."""
        self._loaded.update(shards)

    def load(self, shards: tuple[int, ...], values: Tensor) -> None:
        """Copies what this process keeps of ``shards``, all of which ``values`` holds, to their places, in the
        parameter's own dtype and on its device."""
        rows = values.reshape(self.shape(shards))
        for place in self.places(shards):
            place.into.copy_(rows[(slice(place.start, place.stop), *place.columns)])
        self.loaded(shards)

    def fill(self, seed: int) -> None:
        """Fills every shard with random values that depend on its name and ``seed`` only, however it is cut."""
        for i, name in enumerate(self.names):
            shape = self.shape((i,))
            if self._dummy_std is None:
                values = torch.ones(shape)
            else:
                # Drawn where they stay: a host takes minutes for a large model. Other kinds of device, other values.
                generator = torch.Generator(self._device).manual_seed(zlib.crc32(name.encode()) ^ seed)
                values = torch.empty(shape, device=self._device).normal_(0.0, self._dummy_std, generator=generator)
            self.load((i,), values)

    def take(self) -> Tensor:
        """The complete tensor, which the parameter lets go of."""
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
        here: whether the layer is of this process's stage; else nothing is loaded into it, and it never runs.
    """

    def __init__(self, build: Build, parameters: Sequence[Parameter]) -> None:
        self.parameters = tuple(parameters)
        self.here = build.here
        build.layers.append(self)

    def discover(self, stored: Mapping[str, Sequence[StoredTensor]]) -> None:  # noqa: B027
        """Before loading: ``stored`` is, by prefix, what the files hold. Most layers know what they want."""

    @abstractmethod
    def finish(self) -> None:
        """Takes over the loaded tensors and prepares them for the layer's kernel."""
