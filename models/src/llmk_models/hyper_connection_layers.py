"""The modules of :mod:`llmk_models.hyper_connections`. Streams are side by side, ``[tokens, streams * hidden]``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from llmk.nn import Layer, Parameter, StepContext
from llmk.reference.pointwise import sigmoid
from llmk.reference.tiles import tiled

if TYPE_CHECKING:
    from llmk.nn import Builder
    from llmk_models import hyper_connections


class StreamShares(Layer):
    """Logits of shares."""

    def __init__(self, builder: Builder, spec: hyper_connections.StreamShares) -> None:
        self._outputs, self._eps = spec.outputs, spec.eps
        own: Any = {"dtype": torch.float32}
        named = [Parameter(builder.build, [name], shape[:1], shape[1:], **own) for name, shape, _ in spec.tensors()]
        super().__init__(builder.build, named)

    def finish(self) -> None:
        weight, base, scale = (parameter.take() for parameter in self.parameters)
        self._weight, self._base, self._scale = tiled(weight), base.split(self._outputs), scale.unbind()

    def __call__(self, streams: Tensor) -> list[Tensor]:
        """Each part, float32 ``[tokens, part]``."""
        wide = streams.float()
        normed = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self._eps)
        parts = self._weight.multiply(normed).split(self._outputs, dim=1)
        return [part * scale + base for part, scale, base in zip(parts, self._scale, self._base, strict=True)]


class HyperStream:
    """Starts and ends streams."""

    def __init__(self, builder: Builder, spec: hyper_connections.HyperStream) -> None:
        self._shares, self._floor, self._count = StreamShares(builder, spec.shares), spec.floor, spec.shares.streams

    def start(self, x: Tensor, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        """What the first layer gets."""
        return x.repeat(1, self._count), token_ids[:, None]

    def end(self, streams: Tensor, token_ids: Tensor) -> Tensor:
        """The final hidden states."""
        (logits,) = self._shares(streams)
        return _mixed(sigmoid(logits) + self._floor, streams)


class HyperResidual:
    """A block of streams."""

    def __init__(self, builder: Builder, spec: hyper_connections.HyperResidual) -> None:
        self._shares, self._norm, self._block = (
            StreamShares(builder, spec.shares),
            builder.norm(spec.norm),
            builder.block(spec.block),
        )
        self._iterations, self._floor, self._reads_tokens = spec.iterations, spec.floor, spec.reads_tokens

    def __call__(self, streams: Tensor, token_ids: Tensor, step: StepContext) -> tuple[Tensor, Tensor]:
        """Maps the streams; passes on the token ids."""
        read, add, matrix = self._shares(streams)
        x = self._norm(_mixed(sigmoid(read) + self._floor, streams))
        out = self._block(x, token_ids[:, 0] if self._reads_tokens else step)
        total = (2 * sigmoid(add))[..., None] * out[:, None].float()
        mix = _doubly_stochastic(matrix.unflatten(1, (add.shape[1], -1)), self._iterations, self._floor)
        for row, stream in zip(mix.unbind(1), streams.chunk(add.shape[1], dim=1), strict=True):
            total += row[..., None] * stream[:, None].float()
        return total.flatten(1).to(streams.dtype), token_ids


def _mixed(shares: Tensor, streams: Tensor) -> Tensor:
    """The sum of the streams by ``shares``, ``[tokens, streams]``, in the streams' dtype."""
    each = streams.chunk(shares.shape[1], dim=1)
    total = sum(share * stream.float() for share, stream in zip(shares.split(1, dim=1), each, strict=True))
    assert isinstance(total, Tensor)
    return total.to(streams.dtype)


def _doubly_stochastic(logits: Tensor, iterations: int, floor: float) -> Tensor:
    """Positive matrices ``[tokens, streams, streams]`` whose rows and columns add up to 1, nearly: rows and columns are
    divided by their sums in turn."""
    found = torch.softmax(logits, dim=-1) + floor
    found = found / (found.sum(dim=1, keepdim=True) + floor)
    for _ in range(iterations - 1):
        found = found / (found.sum(dim=2, keepdim=True) + floor)
        found = found / (found.sum(dim=1, keepdim=True) + floor)
    return found
