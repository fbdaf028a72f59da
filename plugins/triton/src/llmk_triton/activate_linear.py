"""The op ``activate_linear``: an activation without a gate and the linear layer after it, in models that name neither
together. Its reference and its examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from llmk.api import LinearQuery
from llmk.reference.op_examples import Draw, Facts, OpExamples


def make_activate_linear(parts: Mapping[str, Callable[..., Tensor]]) -> Callable[..., Tensor]:
    """Builds ``activate_linear`` from ``activate`` and the site's linear kernel."""
    activate, linear = parts["activate"], parts["linear"]

    def activate_linear(x: Tensor, activation: str, weight: Any, bias: Tensor | None) -> Tensor:
        """``linear(activate(x, activation), weight, bias)``; ``weight`` is the linear kernel's prepared weight."""
        return linear(activate(x, activation), weight, bias)

    return activate_linear


def _facts(site: LinearQuery) -> tuple[Facts, ...]:
    size = site.in_features
    return tuple({"intermediate_size": size, "activation": name} for name in ("silu", "gelu", "gelu_tanh", "relu2"))


def _arguments(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    return draw.floats(rows, facts["in_features"]), facts["activation"]


EXAMPLES = OpExamples(_facts, _arguments, by_row=("x",))
