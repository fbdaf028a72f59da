"""The case of IO processors over the hidden states that a model may have: of zeros, large and tiny ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from llmk.api import IOContext, IOOutput, IOProcessor, IOPrompt
from llmk_testing.io_bodies import Body
from llmk_testing.io_processors import Expected, Make, alike, can_run, outputs, plain

_LARGE, _TINY = 3e4, 1e-6
"""Factors: a few of a model's states are that large, and their squares are beyond 16 bits."""
_MODELS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "has states of zeros": lambda states: states * 0,
    "has large states": lambda states: states * _LARGE,
    "has tiny states": lambda states: states * _TINY,
}


def check_states(
    make: Make, context: IOContext, bodies: Sequence[Body], expected: Expected | None, tolerance: float
) -> str:
    """A body is answered with finite numbers, and as the oracle answers it, if it knows how."""
    processor = make(context)
    asked = [body for body in bodies if any("hidden" in one.returns for one in processor.open(body).prompts)]
    if not asked:
        return "the examples read no hidden states"
    for body in asked:
        for what, change in _MODELS.items():
            _check(processor, context, body, what, change, expected, tolerance)
    return f"{len(_MODELS)} models"


def _check(
    processor: IOProcessor,
    context: IOContext,
    body: Body,
    what: str,
    change: Callable[[Tensor], Tensor],
    expected: Expected | None,
    tolerance: float,
) -> None:
    def changed(output: IOOutput) -> IOOutput:
        return output if output.hidden is None else replace(output, hidden=change(output.hidden))

    def model(prompt: IOPrompt) -> IOOutput:
        (whole,) = outputs(context, [prompt], -1)
        return changed(whole)

    where, request = f"{str(body)[:200]}, of a model that {what}", processor.open(body)
    if not can_run(context, request.prompts):
        return
    try:
        for output in outputs(context, request.prompts, -1):
            request.take(changed(output))
        got = plain(request.answer())
    except Exception as error:
        raise AssertionError(f"{where}: {error!r}") from error
    right = _known(expected, context, body, model)
    assert right is None or alike(got, *right, tolerance), f"{where}, is answered {got}, expected {right}"


def _known(
    expected: Expected | None, context: IOContext, body: Body, model: Callable[[IOPrompt], IOOutput]
) -> tuple[Any] | None:
    """The oracle's answer; ``None`` where it has none that can be sent, because its author did not think of it."""
    try:
        return (plain(expected(context, body, model)),) if expected else None
    except Exception:
        return None
