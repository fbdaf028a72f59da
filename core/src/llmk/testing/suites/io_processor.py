"""The suite of IO processors, over :mod:`llmk.testing.io_processors`.

``IOProcessorSpec.examples`` names an :class:`IOExamples`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from llmk.api import IOProcessorSpec
from llmk.kernel.loader import load_object
from llmk.testing.bench import Bench
from llmk.testing.case import Case, Skip

Body = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class IOExamples:
    """What a processor is tried on.

    ``write`` lays out a checkpoint in a folder, which it returns: one that
    :func:`llmk.testing.checkpoints.write_checkpoint` made will do, with what the processor wants beside it. ``bodies``
    are requests that are served, two at least whose answers differ; ``refused`` some that aren't. ``options`` stand for
    the plugin's own section of the configuration. Numbers in answers may differ by ``tolerance``.
    """

    write: Callable[[Path], Path]
    bodies: Sequence[Body]
    refused: Sequence[Body] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    tolerance: float = 1e-5


def cases(spec: IOProcessorSpec, bench: Bench) -> Iterator[Case]:
    """The cases of one processor."""
    tried = _Tried(spec, bench)
    for name, check in (
        ("a body that can't be served is refused with RequestError, any other is opened", tried.check_refusals),
        ("a request that is dropped, at whatever stage, is gone", tried.check_nothing_is_left),
        ("requests are answered alike, however outputs are cut, beside others and again", tried.check_all),
    ):
        yield Case(spec.id, "io_processor", name, check)


class _Tried:
    """The processor of one spec, on its examples."""

    def __init__(self, spec: IOProcessorSpec, bench: Bench) -> None:
        self._spec, self._bench = spec, bench

    def check_refusals(self) -> None:
        self._with(lambda made, make, context, io: io.check_refusals(made, context, self._own.bodies, self._own.refused))

    def check_nothing_is_left(self) -> None:
        self._with(lambda made, make, context, io: io.check_nothing_is_left(made, context, self._own.bodies))

    def check_all(self) -> None:
        own = self._own
        rest = {"refused": own.refused, "tolerance": own.tolerance}
        self._with(lambda made, make, context, io: io.check_io_processor(make, context, own.bodies, **rest))

    @property
    def _own(self) -> IOExamples:
        if not self._spec.examples:
            raise Skip("the spec names no examples: a checkpoint and bodies, to try it on")
        found = load_object(self._spec.examples)
        assert isinstance(found, IOExamples), f"{self._spec.examples} is {found!r}, expected {IOExamples.__module__}.IOExamples"
        return found

    def _with(self, check: Callable[[Any, Any, Any, Any], None]) -> None:
        """Calls ``check`` with a processor, what makes one, its context, and the functions to check it with."""
        from llmk.testing import io_processors

        make = load_object(self._spec.implementation)
        settings = {"platform.use": self._bench.facts.name}
        with TemporaryDirectory() as folder:
            context = io_processors.io_context(self._own.write(Path(folder)), settings, **self._own.options)
            check(make(context), make, context, io_processors)
