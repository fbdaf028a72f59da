"""What holds of linear and MoE kernels alike: of their ``prepare``, of several layers, and of the memory they keep."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from llmk.api import LinearQuery, MoEQuery, TokenBand
from llmk_testing.candidate import Asked
from llmk_testing.held import bytes_of, held_bytes
from llmk_testing.settings import leaving_settings
from llmk_testing.tolerance import check_same

Q = TypeVar("Q", LinearQuery, MoEQuery)

_MORE = 0.6
"""Share of its parameters that a layer may hold beyond them: rows that fill up tiles, scales in another dtype."""
_SMALL = 1 << 16
"""Bytes that don't count: tables that all layers share."""
_BATCHES = range(2, 42)
"""Numbers of rows of many steps."""


class Layer(Protocol):
    """A kernel with the prepared weights of one layer."""

    parameters: dict[str, Tensor]
    """On the device."""
    weights: Any
    prepare: Callable[[dict[str, Tensor]], Any]

    def inputs(self, count: int) -> tuple[Tensor, ...]:
        """Of ``count`` rows, on the host."""
        ...

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        """The kernel's result for inputs."""
        ...

    def check(self, *args: Any, **kwargs: Any) -> float:
        """Compares a result, which is followed by its inputs, after which comes what it is, in words."""
        ...


def several(served: Sequence[Asked[Q]], unlike: Iterable[Callable[[Q], Any]]) -> list[Asked[Q]]:
    """The first two queries, and the first for each other value of the properties ``unlike``."""
    found = list(served[:2])
    for value_of in unlike:
        known = {value_of(asked.query) for asked in found}
        for asked in served:
            if value_of(asked.query) not in known:
                known.add(value_of(asked.query))
                found.append(asked)
    return found


def first_of_each(served: Sequence[Asked[Q]]) -> list[Asked[Q]]:
    """The first query of each weight format."""
    found: dict[str, Asked[Q]] = {}
    for asked in served:
        found.setdefault(asked.query.weight_format, asked)
    return list(found.values())


def largest(served: Sequence[Asked[Q]], size_of: Callable[[Q], int]) -> list[Asked[Q]]:
    """The largest query of each weight format."""
    return first_of_each(sorted(served, key=lambda asked: -size_of(asked.query)))


def smallest(served: Sequence[Asked[Q]], size_of: Callable[[Q], int]) -> list[Asked[Q]]:
    """The smallest query of each weight format."""
    return first_of_each(sorted(served, key=lambda asked: size_of(asked.query)))


def check_prepare(layer: Layer, count: int) -> None:
    """Twice, and on the host of tensors that are aligned to their elements only; the layer's parameters stay."""
    before = {name: tensor.clone() for name, tensor in layer.parameters.items()}
    given = dict(layer.parameters)
    inputs = layer.inputs(count)
    for what in ("the parameters", "the same parameters again"):
        with leaving_settings():
            layer.weights = layer.prepare(given)
        _check_parameters(given, before, f"prepare of {what}")
        out = layer(*inputs)
        _check_parameters(given, before, f"a call after prepare of {what}")
        layer.check(out, *inputs, f"after prepare of {what}")
    if any(tensor.device.type != "cpu" for tensor in before.values()):
        return
    layer.weights = layer.prepare({name: _unaligned(tensor) for name, tensor in before.items()})
    layer.check(layer(*inputs), *inputs, "with parameters that are aligned to their elements only")


def _check_parameters(given: dict[str, Tensor], before: dict[str, Tensor], what: str) -> None:
    assert given.keys() == before.keys(), f"{what} leaves {', '.join(given)} of {', '.join(before)}"
    for name, tensor in before.items():
        shape = list(given[name].shape)
        assert shape == list(tensor.shape), f"{what} makes {name} of {list(tensor.shape)} one of {shape}"
        check_same(given[name], tensor, f"{name} after {what}")


def _unaligned(tensor: Tensor) -> Tensor:
    memory = torch.empty(tensor.numel() + 1, dtype=tensor.dtype, device=tensor.device)
    return memory[1:].view(tensor.shape).copy_(tensor)


def check_layers(make: Callable[[int], Layer], count: int) -> None:
    """Layers of one shape with other weights, one after the other and again."""
    layers = [make(number) for number in range(3)]
    inputs = layers[0].inputs(count)
    results = [layer(*inputs) for layer in (*layers, *layers)]
    for number, out in enumerate(results):
        what = f"layer {number % 3} of three of one shape, {'again' if number > 2 else 'at first'}"
        layers[number % 3].check(out, *inputs, what)


def check_caller(layer: Layer, count: int, device: torch.device) -> None:
    """The caller writes the next inputs to the same tensors, and over the result."""
    given, other = layer.inputs(count), layer.inputs(count)
    inputs = [tensor.to(device, copy=True) for tensor in given]
    with leaving_settings():
        out = layer(*inputs)
    assert out.stride(-1) == 1 or out.shape[-1] == 1, f"the elements of a result's row are {out.stride(-1)} apart"
    layer.check(out, *given, "the first call")
    out.fill_(torch.nan)
    layer.check(layer(*inputs), *given, "a call after its first result was written over")
    for tensor, values in zip(inputs, other, strict=True):
        tensor.copy_(values)
    layer.check(layer(*inputs), *other, "a call for other rows at the same address")


def check_held(make: Callable[[int], Layer], bands: Sequence[TokenBand]) -> str:
    """Of the second of two layers, because the first may fill tables that all share."""
    batches = [count for band in bands for count in _BATCHES if band.start <= count < band.stop]
    batches = batches or [band.start for band in bands]
    _run(make(0), batches)
    layer = make(1)
    layer.weights = None
    size, before = bytes_of(layer.parameters), held_bytes()
    layer.weights = layer.prepare({name: tensor.clone() for name, tensor in layer.parameters.items()})
    step = 4 * _run(layer, batches[:1])
    kept = held_bytes() - before
    assert kept <= (1 + _MORE) * size + _SMALL + step, (
        f"a layer holds {kept:,} bytes when it is prepared and was run, of parameters that take {size:,}"
    )
    step = 4 * _run(layer, batches)
    more = held_bytes() - before - kept
    assert more <= _SMALL + step, (
        f"a layer holds {more:,} bytes more after {len(batches)} steps of other numbers of rows"
    )
    layer.weights = None
    left = held_bytes() - before
    assert left <= _SMALL + step, f"{left:,} bytes are still held when a layer's weights are gone"
    return f"{kept / size:.2f} times its parameters"


def _run(layer: Layer, batches: Iterable[int]) -> int:
    """Returns the bytes of the largest result."""
    return max(layer(*layer.inputs(count)).nbytes for count in batches)
