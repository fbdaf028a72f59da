"""The tensors of a safetensors checkpoint, read one by one in float32."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from llmk.api import Checkpoint, CheckpointError
from llmk.tree import Linear
from llmk_fjord.gannet_command import Entry, read_file

_DTYPES: Final = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}


class WeightFiles:
    """Tensors by name."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        if checkpoint.reader is not None or not checkpoint.weight_files:
            raise CheckpointError(f"{checkpoint.path} has no safetensors files", hint="convert it to safetensors")
        self._files = {file.name: file for file in checkpoint.weight_files}
        self._entries: dict[str, Entry] = {}
        for file in checkpoint.weight_files:
            self._entries |= {entry.name: entry for entry in read_file(file)}

    def has(self, name: str) -> bool:
        """Whether there is one of this name."""
        return name in self._entries

    def get(self, name: str, *shape: int) -> Tensor:
        """A tensor of this shape, in float32."""
        entry = self._entries.get(name)
        if entry is None:
            raise CheckpointError(f"the checkpoint has no tensor {name!r}", hint="download it again")
        if entry.dtype not in _DTYPES or entry.shape != shape:
            found = f"{entry.dtype} {list(entry.shape)}"
            raise CheckpointError(f"{name!r} is {found}, not floating-point {list(shape)}", hint="use another executor")
        with self._files[entry.file].open() as stream:
            header = int.from_bytes(stream.read(8), "little")
            stream.seek(8 + header + entry.start)
            data = bytearray(stream.read(entry.num_bytes))
        return torch.frombuffer(data, dtype=_DTYPES[entry.dtype]).reshape(shape).float()

    def first(self, names: tuple[str, ...], *shape: int) -> Tensor:
        """The first of ``names`` that there is."""
        return self.get(next((name for name in names if self.has(name)), names[0]), *shape)

    def linear(self, layer: Linear) -> tuple[Tensor, Tensor | None]:
        """The weight ``[rows, size]`` and the bias of a layer, stored whole or in parts."""
        whole = next((name for name in (layer.at, *layer.aliases) if self.has(f"{name}.weight")), "")
        modules = {whole: layer.rows} if whole else layer.modules
        weight = torch.cat([self.get(f"{name}.weight", rows, layer.size) for name, rows in modules.items()])
        if not layer.bias:
            return weight, None
        return weight, torch.cat([self.get(f"{name}.bias", rows) for name, rows in modules.items()])
