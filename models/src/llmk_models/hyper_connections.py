"""Residual streams side by side: each block reads a mixture of them, and what it computes is added to all, whose
shares are computed for each token (hyper-connections, arXiv:2409.19606; mHC, arXiv:2512.24880).
Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from llmk.tree import Block, Leaf, Norm, Spec, Stream, Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamShares(Leaf):
    """What computes shares of ``streams`` from all of them: logits in ``outputs``, each with a scale and biases, by a
    projection of the normed streams. Computed in float32. ``at`` is what its tensors' names start with."""

    streams: int
    size: int
    """Elements of a stream."""
    outputs: tuple[int, ...]
    eps: float
    """Of the norm, which has no weight."""

    def tensors(self) -> tuple[Tensor, ...]:
        rows, columns = sum(self.outputs), self.streams * self.size
        shapes = {"fn": (rows, columns), "base": (rows,), "scale": (len(self.outputs),)}
        return tuple(Tensor(f"{self.at}_{name}", shape) for name, shape in shapes.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class HyperStream(Stream):
    """Equal streams at the start; at the end, a weighted sum of them. Token ids are carried along."""

    implementation: ClassVar[str] = "llmk_models.hyper_connection_layers:HyperStream"

    shares: StreamShares
    floor: float
    """Added to shares."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HyperResidual(Spec):
    """A block of streams. They are mixed by a matrix whose rows and columns add up to 1 (Sinkhorn and Knopp)."""

    implementation: ClassVar[str] = "llmk_models.hyper_connection_layers:HyperResidual"

    shares: StreamShares
    """Those by which the block reads the streams, those by which it adds to them, and the matrix."""
    norm: Norm
    block: Block
    reads_tokens: bool
    """Whether the block gets the token ids in place of the step."""
    iterations: int
    floor: float
