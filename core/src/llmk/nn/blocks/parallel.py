"""Blocks side by side."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any

from torch import Tensor

from llmk.nn.context import StepContext

if TYPE_CHECKING:
    from llmk import tree
    from llmk.nn.builder import Builder


class Parallel:
    """Follows :class:`~llmk.nn.blocks.block.Block`: the sum of several blocks, each with a norm of its own or none."""

    def __init__(self, builder: Builder, spec: tree.Parallel, *, fused: bool) -> None:
        self._branches: list[tuple[Any, Any]] = [
            (None if branch.norm is None else builder.norm(branch.norm), builder.block(branch.block))
            for branch in spec.branches
        ]

    def __call__(self, x: Tensor, step: StepContext) -> Tensor:
        total: Tensor = reduce(add, (block(x if norm is None else norm(x), step) for norm, block in self._branches))
        return total
