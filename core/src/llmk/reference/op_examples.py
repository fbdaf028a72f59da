"""How arguments of an op are made, to test and to measure its kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import torch
from torch import Tensor

from llmk.api import AttentionQuery, LinearQuery, OpContract, PluginError
from llmk.kernel.loader import load_object

Facts = Mapping[str, Any]


class Draw:
    """Random tensors, on the device of ``random``; ``dtype`` is the engine's.

    ``longest`` is the length of the longest sequence that :meth:`positions` are in. An op over attention gets the
    ``given`` positions of the step.
    """

    def __init__(
        self, random: torch.Generator, dtype: torch.dtype, *, longest: int = 500, given: Tensor | None = None
    ) -> None:
        self.random, self.dtype, self.longest = random, dtype, longest
        self._given = given
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

    def positions(self, count: int) -> Tensor:
        """int64 ``[count]``: the positions of tokens, below ``longest``."""
        return self.whole(0, self.longest, count) if self._given is None else self._given


Make = Callable[[Draw, Facts, int], tuple[Any, ...]]
"""Makes the positional arguments of an op at a site with these facts, for so many rows (tokens, mostly)."""


@dataclass(frozen=True, slots=True)
class OpExamples:
    """What ``OpContract.examples`` names: how to make the arguments of an op, by its facts.

    ``make`` returns all positional arguments but those that come from the op's own sites, which are the last two of an
    op over attention or a linear kernel. For an op with a linear kernel, the facts that ``make`` gets include
    ``in_features`` and ``out_features`` of that kernel. The same draw must give the same arguments. The conformance kit
    calls ``make`` on the host with ``facts``, and moves what it returns; ``llmk tune`` calls it on the device, with a
    model's facts and up to some thousand rows.
    """

    facts: tuple[Facts, ...] | Callable[[Any], tuple[Facts, ...]]
    """What the kit queries kernels with: ordinary first, then awkward, such as a size that 4 does not divide. Of an op
    over attention or with a linear kernel, they may be a function of that site's query, which returns none where the op
    is not for such a site."""
    make: Make
    _: KW_ONLY
    benchmark: Make | None = None
    """In place of ``make`` for ``llmk tune``, where ``make`` has corner cases that no step is full of."""
    by_row: tuple[str, ...] = ()
    """Names of arguments of which row ``i`` belongs to row ``i`` of the result alone: it has no rows without these.
    Of an op over attention, the first of them are the queries."""
    wide: tuple[str, ...] = ()
    """Names of arguments that models pass as parts of wider rows; for an op over attention, as parts of one row."""
    leading: tuple[str, ...] = ()
    """Names of arguments ``[..., size]`` that may have any dimensions before the last, as the results then have: each
    row is computed by itself, be it zeros, a constant or of large numbers."""
    strided: tuple[str, ...] = ()
    """Names of tensors that callers may pass with any strides, also along their last dimension. Others are contiguous,
    or parts of wider rows where ``wide`` names them."""
    float32: tuple[str, ...] = ()
    """Names of tensors that callers may pass in float32 where others are in the engine's dtype, such as a residual."""
    optional: tuple[str, ...] = ()
    """Names of tensors in place of which ``None`` may be passed."""
    options: Facts = field(default_factory=dict)
    """Keyword arguments of every call."""
    keywords: Callable[[Draw, Facts], Facts] = lambda draw, facts: {}
    """Makes further keyword arguments: those that a call has where the site has some facts."""
    chained: bool = False
    """Whether it is several ops that round what they hand on, to what they keep in float32 as well."""

    def options_at(self, draw: Draw, facts: Facts) -> dict[str, Any]:
        """The keyword arguments of a call at a site with these facts."""
        return {**self.options, **self.keywords(draw, facts)}

    def facts_at(self, site: AttentionQuery | LinearQuery | None = None) -> tuple[Facts, ...]:
        """``facts``, for the site that the op works with, if any."""
        return self.facts(site) if callable(self.facts) else self.facts


def load_examples(contract: OpContract) -> OpExamples:
    """What a contract's ``examples`` name. Raises :class:`~llmk.api.PluginError` where that is not an
    :class:`OpExamples`."""
    found = load_object(contract.examples, plugin=contract.id)
    if not isinstance(found, OpExamples):
        raise PluginError(
            f"{contract.examples} is {found!r}, not the examples of the op {contract.op}",
            hint=f"OpContract.examples names an OpExamples of {__name__}",
        )
    return found
