"""Blocks side by side."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

from torch import Tensor

from llmk.nn.context import StepContext

if TYPE_CHECKING:
    from llmk import tree
    from llmk.nn.builder import Builder

Run = Callable[[], Tensor]


class Parallel:
    """Follows :class:`~llmk.nn.blocks.block.Block`: the sum of several blocks, each with a norm of its own or none."""

    def __init__(self, builder: Builder, spec: tree.Parallel, *, fused: bool) -> None:
        self._branches: list[tuple[Any, Any]] = [
            (None if branch.norm is None else builder.norm(branch.norm), builder.block(branch.block))
            for branch in spec.branches
        ]
        # Blocks may end with a collective, and those of all ranks must run in the same order.
        self._concurrent = builder.build.concurrent if builder.build.parallel.tensor_size == 1 else None

    def __call__(self, x: Tensor, step: StepContext) -> Tensor:
        runs: list[Run] = [partial(_branch, norm, block, x, step) for norm, block in self._branches]
        return reduce(self._joined, runs)()

    def _joined(self, first: Run, second: Run) -> Run:
        return partial(self._sum, first, second)

    def _sum(self, first: Run, second: Run) -> Tensor:
        one, other = (first(), second()) if self._concurrent is None else self._concurrent(first, second)
        total: Tensor = one + other
        return total


def _branch(norm: Any, block: Any, x: Tensor, step: StepContext) -> Tensor:
    found: Tensor = block(x if norm is None else norm(x), step)
    return found
