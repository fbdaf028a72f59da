"""Linear layers of llmk in the place of those of transformers' modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from llmk.api import CheckpointError, StoredTensor
from llmk.nn import Build, Experts, Linear
from llmk.nn.layer import stored_dtype

PLANNED = ("colwise", "rowwise")
"""What the config class may plan for layers that are sharded."""


class LinearModule(nn.Module):
    """A layer of llmk where a module of torch was. ``weight`` is empty: its dtype and device are those of the other."""

    def __init__(self, layer: Linear, like: nn.Linear, device: torch.device) -> None:
        super().__init__()
        self._layer = layer
        self.in_features, self.out_features = like.in_features, like.out_features
        self.weight = torch.empty(0, dtype=like.weight.dtype, device=device)

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[..., in_features]`` to ``[..., out_features]``, of which a rank may have some."""
        out: Tensor = self._layer(x.flatten(0, -2)).unflatten(0, x.shape[:-1])
        return out


def fits(module: nn.Module | None, size: int, rows: int, *, bias: bool) -> bool:
    """Whether a module is just such a linear layer."""
    if type(module) is not nn.Linear:
        return False
    return (module.in_features, module.out_features, module.bias is not None) == (size, rows, bias)


@contextmanager
def called(modules: Mapping[str, nn.Module]) -> Iterator[dict[str, tuple[Any, ...]]]:
    """The inputs with which those of ``modules`` that are called within are called, by name, at the last call: others
    may be used in another way."""
    found: dict[str, tuple[Any, ...]] = {}

    def note(name: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def hook(module: nn.Module, inputs: tuple[Any, ...]) -> None:
            found[name] = inputs

        return hook

    handles = [module.register_forward_pre_hook(note(name)) for name, module in modules.items()]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def fill_from_module(layer: Linear, module: nn.Linear) -> None:
    """Loads what torch's module holds, and prepares the layer for its kernel."""
    values = {"weight": module.weight, "bias": module.bias}
    for parameter in layer.parameters:
        for name, shards in parameter.targets.items():
            parameter.load(shards, values[name.rpartition(".")[2]].detach())
    layer.finish()


def fill_from_files(layer: Linear | Experts, stored: Mapping[str, Sequence[StoredTensor]]) -> None:
    """Loads what the files hold, by module, in a format of quantized weights, or to be quantized."""
    layer.discover(stored)
    tensors = {tensor.name: tensor for each in stored.values() for tensor in each}
    for parameter in layer.parameters:
        for name, shards in parameter.targets.items():
            if name in tensors:
                parameter.load(shards, _read(tensors[name]))
        if not parameter.complete:
            raise CheckpointError(
                f"the files lack {', '.join(parameter.missing)}", hint="check that the download is complete"
            )
    layer.finish()


def presented(build: Build, stored: Sequence[StoredTensor]) -> dict[str, list[StoredTensor]]:
    """The stored tensors by module, as the quantization methods present them."""
    by_module: dict[str, list[StoredTensor]] = {}
    for tensor in stored:
        by_module.setdefault(tensor.name.rpartition(".")[0], []).append(tensor)
    for module, tensors in by_module.items():
        for method in build.methods.values():
            tensors[:] = method.present(module, tensors)
    return by_module


def _read(tensor: StoredTensor) -> Tensor:
    if tensor.decode is not None:
        raise CheckpointError(
            f"{tensor.name} is stored in a format that can't be read for transformers' modules",
            hint="use a checkpoint in 8 bits or an unquantized one, or a natively implemented family",
        )
    with tensor.file.open() as file:
        file.seek(tensor.start)
        data = bytearray(file.read(tensor.num_bytes))
    return torch.frombuffer(data, dtype=stored_dtype(tensor)).view(tensor.shape)
