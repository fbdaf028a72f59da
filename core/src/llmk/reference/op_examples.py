"""What ops are tried and measured on, whoever brings them: arguments, and what becomes of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from llmk.api import PluginError
from llmk.kernel.loader import load_object

Facts = Mapping[str, Any]


class Draw:
    """Random tensors, on the device of ``random``; ``dtype`` is the engine's."""

    def __init__(self, random: torch.Generator, dtype: torch.dtype) -> None:
        self.random, self.dtype = random, dtype
        self._where: dict[str, Any] = {"generator": random, "device": random.device}

    def floats(self, *shape: int, scale: float = 1.0) -> Tensor:
        """Normal numbers in the engine's dtype."""
        return torch.randn(shape, dtype=self.dtype, **self._where).mul_(scale)

    def reals(self, *shape: int) -> Tensor:
        """Normal numbers in float32."""
        return torch.randn(shape, dtype=torch.float32, **self._where)

    def whole(self, low: int, high: int, *shape: int) -> Tensor:
        """int64 from ``low`` to ``high - 1``."""
        return torch.randint(low, high, shape, **self._where)

    def order(self, count: int) -> Tensor:
        """0 to ``count - 1`` in random order."""
        return torch.randperm(count, **self._where)


@dataclass(frozen=True, slots=True)
class OpExamples:
    """What an op is tried on by the conformance kit and measured on by ``llmk tune``, and what shadows must know of it.

    ``make`` is called with a :class:`Draw`, facts as in :class:`~llmk.api.OpQuery`, and a number of rows (tokens,
    mostly), and returns the op's arguments. The same draw must give the same arguments. The kit asks with ``facts`` and
    on the host, and moves what it gets; ``llmk tune`` asks with a model's facts, up to some thousand rows, on the
    device. A fact that is missing there may raise ``KeyError``: the site is then not measured.
    """

    facts: tuple[Facts, ...]
    """What the kit asks the op with, ordinary first, then awkward."""
    make: Callable[[Draw, Facts, int], tuple[Any, ...]]
    by_row: tuple[int, ...] = ()
    """Positions of arguments of which row ``i`` is the result's row ``i``'s own."""
    wide: tuple[int, ...] = ()
    """Positions of those that models hand over as parts of wider rows."""
    options: Facts = field(default_factory=dict)
    """Keyword arguments of every call."""
    chained: bool = False
    """Whether it is several ops that round what they hand on, to what they keep in float32 as well."""
    changed: tuple[int, ...] = ()
    """Positions of tensors that it changes in place."""
    weights: tuple[int, ...] = ()
    """Positions of weights: too large to copy for each call, and never changed."""


def load_examples(location: str) -> OpExamples | None:
    """What a ``KernelSpec.examples`` names; ``None`` for an empty one. Raises :class:`~llmk.api.PluginError` where that
    can't be had."""
    if not location:
        return None
    found = load_object(location)
    if not isinstance(found, OpExamples):
        raise PluginError(
            f"{location} is {found!r}, not the examples of an op",
            hint=f"KernelSpec.examples of an op names an OpExamples of {__name__}",
        )
    return found
