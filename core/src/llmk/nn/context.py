"""What a step brings to the model besides its tokens. It is an argument of the forward pass: nothing is global."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(slots=True)
class StepContext:
    """One step's device tensors.

    Attributes:
        positions: int64 ``[tokens]``, each token's index in its own request.
        attention: by attention site, what its backend's ``prepare`` made of this step.
        caches: each layer's cache tensor, in the layers' order.
    """

    positions: Tensor
    attention: dict[str, Any]
    caches: list[Tensor]
