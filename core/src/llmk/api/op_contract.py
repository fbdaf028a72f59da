"""The contract of an op: its signature, facts, parts, examples and changed arguments."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from llmk.api.specs import GIVEN_PARTS, CheckedSpec

_SIGNATURE = re.compile(r"\(\w+(, \w+)*\) -> .+")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpContract(CheckedSpec):
    """What an op is, for all who call, implement, test, measure or shadow it.

    Each op has one contract, of the wheel that defines the op, and any wheel may register kernels of it. The kernel of
    ``Tier.REFERENCE``, which the same wheel registers, says what is right; all others are compared with it.
    """

    id: str
    """``plugin.name``."""
    op: str
    """The op's name, which ``KernelSpec.op`` and ``OpFacts.op`` are."""
    signature: str
    """The names of the positional arguments, and of the results: ``"(x, weight, eps) -> normed"``.

    The last two arguments of an op over attention are the layer's cache and what the backend's ``prepare`` returned for
    the step; those of an op with a linear kernel are the weight that this kernel prepared, and the bias or ``None``."""
    facts: tuple[str, ...] = ()
    """The keys of ``OpQuery.facts`` that its examples need. ``llmk tune`` skips a site that lacks one, as parts of a
    composite may: they have the facts of the whole."""
    parts: tuple[str, ...] = ()
    """The parts of its reference, where that is composite: names of ops, ``"attention.write"``, ``"attention.run"``,
    ``"linear"``. Another kernel may have other parts, or none."""
    pattern: tuple[str, ...] = ()
    """Neighbouring sites that the op stands for in models that don't name it: an op by its name, and ``"linear"`` after
    it. Its arguments are those of the first site, then the weight and the bias, and its facts those of the first site.
    Where a model has such sites in a row (``ModelFacts.chains``), a kernel of this op takes their place, unless only
    that of ``Tier.REFERENCE`` serves, whose parts they are."""
    examples: str = ""
    """``"module:attribute"`` of an ``llmk.reference.op_examples.OpExamples``, which makes arguments from facts. Without
    it the op is neither tested nor measured."""
    measured: bool = True
    """Whether ``llmk tune`` measures it by these examples."""
    mutates_args: tuple[str, ...] = ()
    """Names of the arguments that it changes in place, other than the cache of an op over attention."""
    weights: tuple[str, ...] = ()
    """Names of the arguments that are weights: too large to copy for each call, and never changed."""
    overrides: str = ""
    summary: str = ""

    def __post_init__(self) -> None:
        CheckedSpec.__post_init__(self)
        if not _SIGNATURE.fullmatch(self.signature):
            form = "'(x, weight) -> out'"
            raise ValueError(f"{self.id}: signature = {self.signature!r} is not of the form {form}")
        if self.pattern and (len(self.pattern) != 2 or self.pattern[1] != "linear" or self.pattern[0] in GIVEN_PARTS):
            raise ValueError(f"{self.id}: pattern = {self.pattern} is not an op and 'linear' after it")
        unknown = [name for name in (*self.mutates_args, *self.weights) if name not in self.arguments]
        if unknown:
            raise ValueError(f"{self.id}: {unknown[0]!r} is not an argument of {self.signature}")

    @property
    def arguments(self) -> tuple[str, ...]:
        """The names of the positional arguments."""
        return tuple(self.signature.partition(")")[0].removeprefix("(").split(", "))

    def positions(self, names: Iterable[str]) -> tuple[int, ...]:
        """The positions of some arguments."""
        return tuple(map(self.arguments.index, names))
