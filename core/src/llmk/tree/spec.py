"""The base of all specs: what they are made of, the tensors that they own and the sites that they bind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from math import prod
from typing import Any, ClassVar, NamedTuple

from llmk.api import AttentionFacts, LinearFacts, MoEFacts, OpFacts, RecurrentFacts, RowsFacts

SiteFacts = AttentionFacts | LinearFacts | MoEFacts | RecurrentFacts | RowsFacts
"""Facts of a site that is not an op."""


class Tensor(NamedTuple):
    """A stored tensor. With ``copies``, it stands for that many, whose names have their number in place of ``{}``."""

    name: str
    shape: tuple[int, ...]
    copies: int = 0

    @property
    def num_elements(self) -> int:
        """Elements of all copies."""
        return prod(self.shape) * (self.copies or 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """A part of a model. ``at`` is its name in the checkpoint."""

    implementation: ClassVar[str] = ""
    """Of a spec that is not in this package: ``"module:attribute"`` of what builds it, called with an
    ``llmk.nn.builder.Builder`` and the spec (see ``docs/plugins/add-a-model.md``)."""

    at: str = ""

    def parts(self) -> Iterator[Spec]:
        """The specs among its fields, in order."""
        for name in field_names(type(self)):
            value = getattr(self, name)
            if isinstance(value, Spec):
                yield value
            elif isinstance(value, tuple):
                yield from (each for each in value if isinstance(each, Spec))

    def leaves(self) -> Iterator[Spec]:
        """Itself, and everything that it is made of, in order."""
        yield self
        for part in self.parts():
            yield from part.leaves()

    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that it owns, without those of its parts."""
        return ()

    def quantizable_modules(self) -> tuple[str, ...]:
        """The checkpoint's names of the modules that its own site computes, if their weights may be quantized; of
        experts, those of the first."""
        return ()

    def site(self, dtype: str) -> SiteFacts | None:
        """The facts of the attention, linear, expert or state site that it binds, named by its role, for one layer.

        ``dtype`` is the dtype of what layers keep between steps, unless they need another.
        """
        return None

    def ops(self, name: Callable[[Spec], str]) -> tuple[OpFacts, ...]:
        """The op sites that it binds, named by their roles; ``name`` returns the name of a part's own site."""
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf(Spec):
    """A spec without parts: it owns tensors, or binds kernels, or both."""

    def parts(self) -> Iterator[Spec]:
        return iter(())


def field_names(kind: type[Spec]) -> tuple[str, ...]:
    """The names of a spec's fields, in order."""
    if kind not in _FIELD_NAMES:
        _FIELD_NAMES[kind] = tuple(field.name for field in fields(kind))
    return _FIELD_NAMES[kind]


_FIELD_NAMES: dict[type[Spec], tuple[str, ...]] = {}


_NAMES = frozenset({"at", "aliases", "stacked", "selection_bias", "output_scale"})
"""Fields that hold names of the checkpoint."""


def nameless(spec: Any) -> Any:
    """A hashable value that two specs, or tuples of them, share if they differ in names of the checkpoint alone."""
    if isinstance(spec, tuple):
        return tuple(map(nameless, spec))
    if isinstance(spec, Spec):
        names = (name for name in field_names(type(spec)) if name not in _NAMES)
        return type(spec), *(nameless(getattr(spec, name)) for name in names)
    return spec
