"""What a built block is."""

from __future__ import annotations

from abc import abstractmethod
from typing import Protocol

from torch import Tensor

from llmk.nn.context import StepContext


class Block(Protocol):
    """A block of a residual stream, built from a :class:`llmk.tree.Block`. Hidden states are ``[tokens, hidden]``."""

    @abstractmethod
    def __call__(self, x: Tensor, step: StepContext) -> Tensor:
        """Maps normed hidden states to what is added to the residual stream."""
        ...


class Entered(Block, Protocol):
    """A block whose spec has an ``entry``: a kernel may compute its start along with the norm before it."""

    @abstractmethod
    def after(self, *first: Tensor, step: StepContext) -> Tensor:
        """The same from the results of the entry's op, apart from the last one, which is the residual."""
        ...
