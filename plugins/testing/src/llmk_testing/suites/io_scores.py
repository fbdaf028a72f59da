"""Cases of IO processors over the log-probabilities that a model may have: very low, equal and infinite ones."""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Mapping, Sequence

from llmk.api import IOContext, IOProcessor
from llmk_testing.io_bodies import Body, repeated
from llmk_testing.io_processors import Expected, Make, Scores, alike, can_run, known, opened, served
from llmk_testing.suites.io_texts import wide

_LOW = -20.0
"""What a token scores that the model does not expect."""
_TIMES = 60
"""How often a long text has what the example's has: the exponential of its score is 0 in any float."""


def _unlikely(tokens: Sequence[int]) -> list[float | None]:
    return [_LOW + random.Random(zlib.crc32(f"{at} {token}".encode())).random() for at, token in enumerate(tokens)]


def _equal(tokens: Sequence[int]) -> list[float | None]:
    return [_LOW for _ in tokens]


def _certain(tokens: Sequence[int]) -> list[float | None]:
    return [0.0 for _ in tokens]


def _ruled_out(tokens: Sequence[int]) -> list[float | None]:
    """Some are, by their ids."""
    return [-math.inf if token % 3 == 0 else _LOW for token in tokens]


def _impossible(tokens: Sequence[int]) -> list[float | None]:
    return [-math.inf for _ in tokens]


_MODELS: Mapping[str, Scores] = {
    "expects no token": _unlikely,
    "gives all tokens one score": _equal,
    "is certain of all tokens": _certain,
    "rules some tokens out": _ruled_out,
    "rules all tokens out": _impossible,
}


def check_scores(
    make: Make, context: IOContext, bodies: Sequence[Body], expected: Expected | None, tolerance: float
) -> str:
    """No matter how likely texts are, a body is answered, with finite numbers, also if all of its texts are long; and
    as the oracle answers it, if it knows how."""
    processor, large = make(wide(context)), wide(context)
    asked = [body for body in bodies if _asks(processor, body)]
    if not asked:
        return "the examples read no log-probabilities"
    for body in [*asked, *(_long(processor, body) for body in asked)]:
        if can_run(large, processor.open(body).prompts):
            for what, scores in _MODELS.items():
                _check(processor, large, body, what, scores, expected, tolerance)
    return f"{len(_MODELS)} models"


def _check(
    processor: IOProcessor,
    context: IOContext,
    body: Body,
    what: str,
    scores: Scores,
    expected: Expected | None,
    tolerance: float,
) -> None:
    def first_is_unknown(tokens: Sequence[int]) -> list[float | None]:
        return [None, *scores(tokens)[1:]]

    where = f"{str(body)[:200]}, of a model that {what}"
    try:
        got = served(processor, context, body, -1, first_is_unknown)
    except Exception as error:
        raise AssertionError(f"{where}: {error!r}") from error
    right = known(expected, context, body, first_is_unknown) if expected else None
    assert right is None or alike(got, *right, tolerance), f"{where}, is answered {got}, expected {right}"


def _asks(processor: IOProcessor, body: Body) -> bool:
    return any(prompt.returns == "logprobs" for prompt in processor.open(body).prompts)


def _long(processor: IOProcessor, body: Body) -> Body:
    """Each field whose texts may be any is long."""
    longer = {name: repeated(own, _TIMES) for name, own in body.items()}
    free = [name for name, own in longer.items() if opened(processor, {**body, name: own}) is not None]
    return {**body, **{name: longer[name] for name in free}}
