"""The modules of :mod:`llmk_models.zamba2`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from llmk.nn import Attention, StepContext

if TYPE_CHECKING:
    from llmk.nn import Builder
    from llmk_models import zamba2


class ZambaStream:
    """Hidden states and embeddings, both ``[tokens, hidden]``."""

    def __init__(self, builder: Builder, spec: zamba2.ZambaStream) -> None:
        pass

    def start(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What the first layer gets."""
        return x, x

    def end(self, x: Tensor, embedded: Tensor) -> Tensor:
        """The final hidden states."""
        return x


class LowRank:
    """What an adapter adds."""

    def __init__(self, builder: Builder, spec: zamba2.LowRank) -> None:
        self._downs, self._ups = builder.linear(spec.downs), [builder.linear(up) for up in spec.ups]

    def __call__(self, x: Tensor) -> Tensor:
        """Maps ``[tokens, in]`` to ``[tokens, out]``, the results of all parts side by side."""
        narrow = self._downs(x).chunk(len(self._ups), dim=1)
        return torch.cat([up(part) for up, part in zip(self._ups, narrow, strict=True)], dim=1)


class SharedMLP:
    """An MLP with an adapter."""

    def __init__(self, builder: Builder, spec: zamba2.SharedMLP) -> None:
        self._gate_up, self._adapter = builder.linear(spec.gate_up), LowRank(builder, spec.adapter)
        self._activate, self._down = builder.kernel(spec), builder.linear(spec.down)

    def __call__(self, x: Tensor, step: StepContext) -> Tensor:
        """Maps ``[tokens, hidden]`` to the same."""
        return self._down(self._activate(self._gate_up(x) + self._adapter(x)))


class SharedBlock:
    """Attention and an MLP whose weights several layers share."""

    def __init__(self, builder: Builder, spec: zamba2.SharedBlock) -> None:
        self._norm, self._qkv = builder.norm(spec.norm), builder.linear(spec.qkv)
        self._adapter = None if spec.adapter is None else LowRank(builder, spec.adapter)
        self._attend, self._project = builder.attention(spec.attend, Attention), builder.linear(spec.project)
        self._mlp_norm, self._mlp = builder.norm(spec.mlp_norm), builder.block(spec.mlp)
        self._out = builder.linear(spec.out)

    def __call__(self, x: Tensor, embedded: Tensor, step: StepContext) -> Tensor:
        """Maps hidden states and embeddings, both ``[tokens, hidden]``, to what is added to the mixer's input."""
        normed = self._norm(torch.cat((x, embedded), dim=1))
        qkv = self._qkv(normed)
        if self._adapter is not None:
            qkv = qkv + self._adapter(normed)
        attended = self._project(self._attend(qkv, step))
        return self._out(self._mlp(self._mlp_norm(attended), step))


class ZambaLayer:
    """A whole layer."""

    def __init__(self, builder: Builder, spec: zamba2.ZambaLayer) -> None:
        self._shared = None if spec.shared is None else SharedBlock(builder, spec.shared)
        self._norm, self._mixer = builder.norm(spec.norm), builder.block(spec.mixer)

    def __call__(self, x: Tensor, embedded: Tensor, step: StepContext) -> tuple[Tensor, Tensor]:
        """Maps hidden states ``[tokens, hidden]``; passes on the embeddings."""
        given = x if self._shared is None else x + self._shared(x, embedded, step)
        return x + self._mixer(self._norm(given), step), embedded
