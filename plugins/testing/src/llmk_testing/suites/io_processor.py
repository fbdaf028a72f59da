"""The suite of IO processors, over :mod:`llmk_testing.io_processors`.

``IOProcessorSpec.examples`` names an :class:`IOExamples`, or a sequence of them: one for each set of options.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from llmk.api import IOContext, IOProcessorSpec
from llmk.kernel.loader import load_object
from llmk_testing.bench import Bench
from llmk_testing.case import Case, Skip
from llmk_testing.falsy import check_falsy
from llmk_testing.io_bodies import Body
from llmk_testing.io_processors import (
    Expected,
    Make,
    check_bounded,
    check_io_processor,
    check_nothing_is_left,
    check_options,
    check_oracle,
    check_refusals,
    io_context,
    opened,
    served,
)
from llmk_testing.odd_checkpoints import odd_checkpoints
from llmk_testing.purity import check_pure
from llmk_testing.settings import leaving_settings
from llmk_testing.suites.io_scores import check_scores
from llmk_testing.suites.io_states import check_states
from llmk_testing.suites.io_texts import check_long, check_special_tokens, with_special_tokens
from llmk_testing.whole_numbers import check_whole


@dataclass(frozen=True, slots=True, kw_only=True)
class IOExamples:
    """The examples of a processor.

    ``write`` writes a checkpoint to a folder and returns it, such as one of
    :func:`llmk_testing.checkpoints.write_checkpoint`, with further files that the processor needs. ``bodies`` are valid
    requests, of which at least two have different answers; ``refused`` are invalid ones. ``options`` are the plugin's
    own section of the configuration. Numbers in answers may differ by ``tolerance``.

    ``expected(context, body, model)`` is an oracle: the answer to a body by the plainest code. ``model`` returns the
    whole output of one :class:`~llmk.api.IOPrompt`, in one piece. It is asked about other bodies, too, which are made
    of these, and served: with other texts, numbers and lists, or without a field; also without ``options``. Those for
    which it raises are not compared.
    """

    write: Callable[[Path], Path]
    bodies: Sequence[Body]
    refused: Sequence[Body] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    tolerance: float = 1e-5
    expected: Expected | None = None


Check = Callable[[IOExamples, Make, IOContext], str | None]
Change = Callable[[Path, Path], Path]
"""Writes a copy of a checkpoint to a folder, with something changed."""


def cases(spec: IOProcessorSpec, bench: Bench) -> Iterator[Case]:
    """The cases of one processor."""

    def case(name: str, run: Callable[[], str | None]) -> Case:
        return Case(spec.id, "io_processor", name, run)

    yield case("it says which checkpoints it serves, for any", partial(check_pure, spec.supports, odd_checkpoints()))
    for name, check in (
        ("what can't be served is refused with RequestError", _check_refusals),
        ("a request that is dropped at any stage is gone", _check_nothing_is_left),
        ("what it keeps of requests is bounded", _check_bounded),
        ("options may be left out, and stay as they are", _check_options),
        ("the answer is the same for any chunking, with other requests, and repeated", _check_answers),
        ("answers are those of its oracle", _check_oracle),
        ("answers are those of its oracle, of long texts and of many", _check_long),
        ("answers are plain data, no matter how likely texts are", _check_scores),
        ("answers are plain data, no matter what hidden states are", _check_states),
        ("whole numbers are taken where others are, written with a fraction or not", _check_whole),
        ("what is empty or 0 is refused where others of its type are", _check_falsy),
        ("what the whole process shares stays as it is", _check_settings),
    ):
        yield case(name, partial(_run, spec, bench, check))
    name = "answers are those of its oracle, with a tokenizer that adds tokens"
    yield case(name, partial(_run, spec, bench, _check_special_tokens, with_special_tokens))


def _check_refusals(own: IOExamples, make: Make, context: IOContext) -> None:
    check_refusals(make(context), context, own.bodies, own.refused)


def _check_nothing_is_left(own: IOExamples, make: Make, context: IOContext) -> None:
    check_nothing_is_left(make(context), context, own.bodies)


def _check_bounded(own: IOExamples, make: Make, context: IOContext) -> None:
    check_bounded(make(context), context, own.bodies)


def _check_options(own: IOExamples, make: Make, context: IOContext) -> None:
    check_options(make, context, own.bodies, own.refused, own.expected, own.tolerance)


def _check_answers(own: IOExamples, make: Make, context: IOContext) -> None:
    check_io_processor(make, context, own.bodies, refused=own.refused, tolerance=own.tolerance)


def _check_oracle(own: IOExamples, make: Make, context: IOContext) -> None:
    check_oracle(make(context), context, own.bodies, _oracle(own), own.tolerance)


def _check_long(own: IOExamples, make: Make, context: IOContext) -> None:
    check_long(make, context, own.bodies, _oracle(own), own.tolerance)


def _check_scores(own: IOExamples, make: Make, context: IOContext) -> str:
    return check_scores(make, context, own.bodies, own.expected, own.tolerance)


def _check_states(own: IOExamples, make: Make, context: IOContext) -> str:
    return check_states(make, context, own.bodies, own.expected, own.tolerance)


def _check_whole(own: IOExamples, make: Make, context: IOContext) -> str:
    processor = make(context)
    return check_whole(own.bodies, lambda body: opened(processor, body) is not None)


def _check_special_tokens(own: IOExamples, make: Make, context: IOContext) -> None:
    check_special_tokens(make, context, own.bodies, _oracle(own), own.tolerance)


def _check_falsy(own: IOExamples, make: Make, context: IOContext) -> str:
    processor = make(context)
    return check_falsy(own.bodies, lambda body: opened(processor, body) is not None)


def _check_settings(own: IOExamples, make: Make, context: IOContext) -> None:
    with leaving_settings():
        processor = make(context)
        for body in (*own.bodies, *own.refused):
            if opened(processor, body) is not None:
                served(processor, context, body)


def _oracle(own: IOExamples) -> Expected:
    if own.expected is None:
        raise Skip("the spec's examples have no oracle: a function of a body and of the model's outputs")
    return own.expected


def _run(spec: IOProcessorSpec, bench: Bench, check: Check, change: Change | None = None) -> None:
    if not spec.examples:
        raise Skip("the spec names no examples: a checkpoint and request bodies")
    named = load_object(spec.examples)
    for own in named if isinstance(named, Sequence) else [named]:
        assert isinstance(own, IOExamples), f"{spec.examples} is {own!r}, expected an IOExamples of {__name__}"
        _run_one(spec, bench, own, check, change)


def _run_one(spec: IOProcessorSpec, bench: Bench, own: IOExamples, check: Check, change: Change | None) -> None:
    with TemporaryDirectory() as folder, TemporaryDirectory() as other:
        written = own.write(Path(folder))
        path = change(written, Path(other)) if change else written
        context = io_context(path, {"platform.use": bench.facts.name}, **own.options)
        verdict = spec.supports(context.checkpoint)
        assert verdict, f"supports() refuses the examples' checkpoint: {'; '.join(map(str, verdict.reasons))}"
        check(own, load_object(spec.implementation), context)
