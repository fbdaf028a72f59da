"""Where this process stands among those that run one model together, and how they exchange tensors."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Parallel:
    """One process alone. Layers ask it for their share of a model that several processes hold between them.

    ``tensor_size`` processes cut every layer between them (tensor parallel), ``num_stages`` groups of such processes
    hold the layers one after the other (pipeline parallel).
    """

    tensor_rank: int = 0
    tensor_size: int = 1
    stage: int = 0
    num_stages: int = 1

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum of every process's ``x`` of this stage."""
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        """Every process's ``x`` of this stage, one after the other along the last dimension."""
        return x
