"""Reads the weights of a tree of specs into NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from llmk.api import Checkpoint, CheckpointError, StoredTensor
from llmk.nn.tensor_file import stored_tensors

Array = NDArray[np.float32]
_DTYPES = {"F64": np.dtype("<f8"), "F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}


class Weights:
    """The tensors of a checkpoint, by the names that a tree gives them."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        if checkpoint.quantization:
            raise CheckpointError("the weights are quantized, which the NumPy executor does not read")
        self._stored = {tensor.name: tensor for tensor in stored_tensors(checkpoint)}

    def read(self, names: tuple[str, ...], shape: tuple[int, ...]) -> Array:
        """The tensor that has one of ``names``."""
        stored = next((self._stored[name] for name in names if name in self._stored), None)
        if stored is None:
            raise CheckpointError(f"the checkpoint has no tensor {names[0]!r}")
        if tuple(stored.shape) != shape:
            raise CheckpointError(f"{stored.name!r} has the shape {tuple(stored.shape)}, and should have {shape}")
        return _values(stored)

    def linear(self, spec: Any, what: str) -> Array:
        """The ``"weight"`` or ``"bias"`` of a linear layer: whole, or its parts one below the other."""
        columns = (spec.size,) if what == "weight" else ()
        whole = tuple(f"{at}.{what}" for at in (spec.at, *spec.aliases))
        if any(name in self._stored for name in whole):
            return self.read(whole, (spec.rows, *columns))
        parents = [at.rpartition(".")[0] for at in spec.aliases]
        parts = []
        for module, rows in spec.modules.items():
            leaf = module.rpartition(".")[2]
            names = (module, *(f"{parent}.{leaf}" for parent in parents))
            parts.append(self.read(tuple(f"{name}.{what}" for name in names), (rows, *columns)))
        return np.concatenate(parts)


def _values(stored: StoredTensor) -> Array:
    """Of any dtype, as float32."""
    with stored.file.open() as file:
        file.seek(stored.start)
        data = file.read(stored.stop - stored.start)
    if len(data) != stored.stop - stored.start:
        raise CheckpointError(f"{stored.file} ends before {stored.name!r} does")
    if stored.decode is not None:
        rows = stored.shape[0] if stored.decode.multiple else 1
        decoded = stored.decode(torch.frombuffer(bytearray(data), dtype=torch.uint8).view(rows, -1))
        return decoded.to(torch.float32).reshape(stored.shape).numpy()
    if stored.dtype not in _DTYPES:
        raise CheckpointError(f"{stored.name!r} has the dtype {stored.dtype}; known are {', '.join(_DTYPES)}")
    values = np.frombuffer(data, _DTYPES[stored.dtype]).reshape(stored.shape)
    if stored.dtype == "BF16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32)
