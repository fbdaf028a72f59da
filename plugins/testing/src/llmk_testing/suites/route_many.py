"""What routes make of more at once than examples have: texts, each of which has a vector, and tokens of a long one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from math import cos, sin
from typing import Any

from llmk.api import RequestError, TranslatedRequest
from llmk_testing.route_examples import MODEL, RouteExample
from llmk_testing.tried_route import Tried, sent, translated

MANY = 120
"""So many that numbers have one, two and three digits."""
_DIGITS = 5


def check_many(tried: Tried) -> None:
    """Each result is at its place."""
    for example, made in tried.requests():
        if made.kind == "embed" and isinstance(made.body.get("input"), list):
            for longer in _longer(tried, example, made):
                _check_vectors(tried, longer)
        elif made.kind == "tokenize":
            tokens = [1000 + 7 * number for number in range(MANY)]
            _check_order(tried, made, {"count": MANY, "tokens": tokens}, tokens)


def _longer(tried: Tried, example: RouteExample, made: TranslatedRequest) -> Iterator[TranslatedRequest]:
    """The request with many texts, where a field of its body has them."""
    for name, texts in example.body.items() if isinstance(example.body, dict) else ():
        if not isinstance(texts, list) or list(made.body["input"]) != texts:
            continue
        many = [f"text {number}" for number in range(MANY)]
        with suppress(RequestError):  # an API may limit how many there are
            longer = translated(tried.made(), {**example.body, name: many}, example.headers)
            assert list(longer.body["input"]) == many, f"{MANY} texts in {name} are embedded as {longer.body['input']}"
            yield longer


def _check_vectors(tried: Tried, made: TranslatedRequest) -> None:
    # Of length 1, and no cosine is a sine or a whole number.
    vectors = [[cos(angle), sin(angle)] for angle in (0.05 + 0.6 * number / MANY for number in range(MANY))]
    data = [{"object": "embedding", "index": at, "embedding": vector} for at, vector in enumerate(vectors)]
    usage = {"prompt_tokens": MANY, "total_tokens": MANY}
    result = {"object": "list", "model": MODEL.name, "data": data, "usage": usage}
    _check_order(tried, made, result, [vector[0] for vector in vectors])


def _check_order(tried: Tried, made: TranslatedRequest, result: Mapping[str, Any], marks: Sequence[float]) -> None:
    """A response may have none of the numbers, as where they are encoded; else it has all."""
    wanted = [round(mark, _DIGITS) for mark in marks]
    known = set(wanted)
    response = tried.made().result(result, sent(made), MODEL)
    found = [number for number in map(_rounded, _numbers(response)) if number in known]
    assert found in ([], wanted), (
        f"of {len(wanted)} entries that llmk's own route returns in order, the response to {made.kind!r} has"
        f" {len(found)}, the first ones being numbers {[wanted.index(each) for each in found[:12]]}"
    )


def _rounded(number: float) -> float:
    return round(number, _DIGITS)


def _numbers(value: Any) -> Iterator[float]:
    """The numbers of plain data, in its order."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for each in value:
            yield from _numbers(each)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value
