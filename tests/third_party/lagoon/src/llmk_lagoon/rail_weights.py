"""Reads a checkpoint's tensors as float32 arrays, under the names that a model's tree has for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from llmk.api import Checkpoint, CheckpointError, StoredTensor
from llmk.nn.tensor_file import stored_tensors

if TYPE_CHECKING:
    from llmk import tree

Array = NDArray[np.float32]
PLAIN = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}


class Weights:
    """The tensors of a checkpoint, in any number of files."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._stored = {tensor.name: tensor for tensor in stored_tensors(checkpoint)}

    def linear(self, spec: tree.Linear) -> tuple[Array, Array | None]:
        """The weight, and the bias if there is one. Projections that are packed may be stored apart."""
        weight = self._packed(spec, "weight", (spec.rows, spec.size))
        return weight, self._packed(spec, "bias", (spec.rows,)) if spec.bias else None

    def tensor(self, names: Sequence[str], shape: tuple[int, ...]) -> Array:
        """The tensor that has the first of ``names`` that there is."""
        for name in names:
            if name in self._stored:
                value = _read(self._stored[name])
                if value.shape != shape:
                    raise CheckpointError(f"{name} has the shape {list(value.shape)}, not {list(shape)}")
                return value
        raise CheckpointError(f"the checkpoint has no tensor {' or '.join(names)}", hint="is it quantized, or cut off?")

    def _packed(self, spec: tree.Linear, kind: str, shape: tuple[int, ...]) -> Array:
        whole = [f"{name}.{kind}" for name in (spec.at, *spec.aliases)]
        for name in (spec.at, *spec.aliases):
            parent = name.rpartition(".")[0]
            parts = [f"{parent}.{part.name}.{kind}".lstrip(".") for part in spec.outputs]
            if all(part.name for part in spec.outputs) and self._stored.keys() >= set(parts):
                rows = [part.rows for part in spec.outputs]
                return np.concatenate([self.tensor([n], (r, *shape[1:])) for n, r in zip(parts, rows, strict=True)])
        return self.tensor(whole, shape)


def _read(tensor: StoredTensor) -> Array:
    with tensor.file.open() as stream:
        stream.seek(tensor.start)
        data = stream.read(tensor.num_bytes)
    if len(data) < tensor.num_bytes:
        raise CheckpointError(f"{tensor.file} ends within {tensor.name}", hint="copy the file again")
    return _values(tensor, data).reshape(tensor.shape)


def _values(tensor: StoredTensor, data: bytes) -> Array:
    if tensor.decode is not None:
        rows = tensor.shape[0] if tensor.decode.multiple else 1
        stored = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(rows, -1)
        decoded: Array = tensor.decode(stored).float().numpy()
        return decoded
    if tensor.dtype == "BF16":
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    if tensor.dtype in PLAIN:
        return np.frombuffer(data, PLAIN[tensor.dtype]).astype(np.float32)
    raise CheckpointError(f"{tensor.name} has the dtype {tensor.dtype}", hint="store weights as floating-point numbers")
