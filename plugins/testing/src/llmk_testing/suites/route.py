"""The suite of API routes.

``RouteSpec.examples`` names an :class:`~llmk_testing.route_examples.RouteExamples`, or a sequence of valid request
bodies, ``None`` for no body.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from pydantic import BaseModel, ValidationError

from llmk.api import Frame, RequestError, RouteSpec, TranslatedRequest
from llmk.kernel.loader import load_object
from llmk.serve.protocol.chat import ChatRequest, Message
from llmk.serve.protocol.completions import CompletionRequest
from llmk.serve.protocol.pooling import EmbeddingRequest
from llmk.serve.protocol.tokens import TokenizeRequest
from llmk_testing.bench import Bench
from llmk_testing.case import Case, Skip
from llmk_testing.parsers import counted_lines
from llmk_testing.route_answers import places
from llmk_testing.route_examples import ERROR, MESSAGE, RouteExample, RouteExamples, difference
from llmk_testing.suites import route_responses
from llmk_testing.tried_route import Tried, translated

_STATUSES = (400, 401, 403, 404, 413, 415, 421, 429, 500, 503, 504)
_REASONS = (MESSAGE, "", 'with "quotes", \\ and\nlines', "grün 日本 \x00")
_ODD: tuple[Any, ...] = (
    {},
    {"model": 1},
    {"messages": "x", "prompt": {}},
    {"messages": [None, 1, {"role": []}]},
    {"model": "m", "messages": [{"role": "user", "content": [{"type": []}]}], "max_tokens": "1"},
    {"\ud800": "\ud800"},
    *(None, [], [{}], "text", 1, 0.5, True),
)
"""Bodies that are hardly valid anywhere; those that a route takes are translated."""
_LEAVES: tuple[Any, ...] = (None, "", "[" * 100_000, "1e400", "\ud83d", -1, 0, 1e308, 10**30, True, [], {}, [None])
"""What a client may put in place of a text or a number."""
_SCHEMAS: dict[str, type[BaseModel]] = {
    "chat": ChatRequest,
    "text": CompletionRequest,
    "tokenize": TokenizeRequest,
    "embed": EmbeddingRequest,
}
_LONG = 100
"""So many times the entries of a list, as a long conversation has."""
_ZEROS = ("seed", "temperature")
"""Fields of llmk's own requests of which 0 is another value than none."""


def cases(spec: RouteSpec, bench: Bench) -> Iterator[Case]:
    """The cases of one route."""
    checks: tuple[tuple[str, Callable[[Tried], str | None]], ...] = (
        ("every error is put in the API's format", _check_errors),
        ("what can't be served is refused with RequestError", _check_refusals),
        ("requests are translated to plain data, alike each time", _check_translations),
        ("requests mean what the examples say", _check_meanings),
        ("numbers that are 0 are not taken for left out", _check_zeros),
        ("a response is streamed where the request says so", _check_stream),
        ("the model that a request names is the one that serves it", _check_model),
        ("a request takes time in proportion to its length", _check_long),
        *route_responses.CHECKS,
    )
    for name, check in checks:
        yield Case(spec.id, "route", name, partial(_run, spec, bench.seed, check))


def _run(spec: RouteSpec, seed: int, check: Callable[[Tried], str | None]) -> str | None:
    if not spec.examples:
        raise Skip("the spec names no examples: an llmk_testing.route_examples.RouteExamples")
    found = load_object(spec.examples)
    what = f"{spec.examples} is {found!r}, expected a RouteExamples, or a sequence of request bodies"
    assert isinstance(found, RouteExamples | Sequence), what
    examples = found if isinstance(found, RouteExamples) else RouteExamples(requests=[RouteExample(b) for b in found])
    assert examples.requests, f"{spec.examples} is empty"
    return check(Tried(spec, examples, random.Random(seed)))


def _check_errors(tried: Tried) -> None:
    """Without a request before them, as errors of the middleware are; some name no field and have no code."""
    for status in _STATUSES:
        for reason in _REASONS:
            for bare in ({}, {"param": None, "code": None}):
                frame = tried.made().error(status, {**ERROR, "message": reason, **bare})
                assert isinstance(frame, Frame), f"error() returned {frame!r}"
                json.dumps(frame.data)
                texts = [text for _, text in places(frame.data)]
                assert any(reason in text for text in texts), f"the message {reason!r} of an error {status} is lost"
    for status, expected in tried.examples.errors.items():
        frame = tried.made().error(status, ERROR)
        why = difference([frame.event, frame.data], [expected.event, expected.data])
        assert not why, f"of an error {status}, {why}"


def _check_refusals(tried: Tried) -> None:
    route = tried.made()
    for body in _ODD if tried.spec.method == "POST" else ():
        with suppress(RequestError):
            translated(route, body)
    for example in tried.valid:
        for body in (other for odd in _LEAVES for other in _with_leaf(example.body, odd)):
            with suppress(RequestError):
                translated(route, body, example.headers)
    for example in (one for one in tried.examples.requests if one.refused):
        param = _refusal(partial(translated, route, example.body, example.headers))
        what = f"the body {_shown(example.body)} must be refused for {example.refused!r}"
        assert param == example.refused, f"{what}, and is {'not' if param is None else f'for {param!r}'}"


def _refusal(run: Callable[[], object]) -> str | None:
    """The field for which a request is refused; ``None`` where it is not."""
    try:
        run()
    except RequestError as error:
        return error.param or ""
    return None


def _with_leaf(value: Any, odd: Any) -> Iterator[Any]:
    """The value with each of its texts, numbers, lists and objects in turn replaced."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield from ({**value, name: other} for other in _with_leaf(each, odd))
            if isinstance(each, dict | list):
                yield {**value, name: odd}
    elif isinstance(value, list):
        for at, each in enumerate(value):
            yield from ([*value[:at], other, *value[at + 1 :]] for other in _with_leaf(each, odd))
    else:
        yield odd


def _check_translations(tried: Tried) -> None:
    """By a route that has translated others before, and by a new one; llmk's own route takes the result."""
    used = tried.made()
    order = [*tried.valid, *reversed(tried.valid)]
    for example in order:
        first, second = (translated(route, example.body, example.headers) for route in (used, tried.made()))
        what = f"the body {_shown(example.body)} is translated differently after others"
        assert _parts(first) == _parts(second), f"{what}: {_parts(first)}, {_parts(second)}"
        _check_taken(first)


def _parts(made: TranslatedRequest) -> tuple[Any, ...]:
    return made.kind, made.body, made.stream, made.thinking, made.fit_max_tokens, list(made.prefixes)


def _check_taken(made: TranslatedRequest) -> None:
    """Whether llmk's own route takes what a valid request is translated to."""
    if made.kind == "info":
        return
    try:
        _SCHEMAS[made.kind].model_validate(dict(made.body), context=None)
        for prefix in made.prefixes:
            assert prefix.seconds > 0, f"a prefix is cached for {prefix.seconds} seconds"
            for message in prefix.messages:
                Message.model_validate(message)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        what = f"llmk's own route of kind {made.kind!r} doesn't take {_shown(made.body)}"
        raise AssertionError(f"{what}: {where}: {first['msg']}") from None


def _check_meanings(tried: Tried) -> str:
    """Kind, body, stream and all."""
    meant = [one for one in tried.valid if one.means is not None]
    if not meant:
        raise Skip("the examples don't say what requests mean: RouteExample.means")
    route = tried.made()
    for example in meant:
        assert example.means is not None
        found = translated(route, example.body, example.headers)
        for name in ("kind", "body", "stream", "thinking", "fit_max_tokens"):
            why = difference(getattr(found, name), getattr(example.means, name), name)
            assert not why, f"of the request {_shown(example.body)}, {why}"
        why = difference(_prefixes(found), _prefixes(example.means), "prefixes")
        assert not why, f"of the request {_shown(example.body)}, {why}"
    return f"{len(meant)} requests"


def _prefixes(made: TranslatedRequest) -> list[Any]:
    return [(each.messages, each.seconds) for each in made.prefixes]


def _check_zeros(tried: Tried) -> None:
    """Of a field that goes to llmk as it is, 0 does, too, or is refused."""
    route = tried.made()
    for example in tried.valid:
        for make in _numbers(example.body):
            for name in _ZEROS:
                with suppress(RequestError):
                    passed = [translated(route, make(value), example.headers).body.get(name) for value in (1, 0)]
                    if passed[0] == 1 and not isinstance(passed[0], bool):
                        assert passed[1] == 0, f"{name} of 0 becomes {passed[1]!r}, where {name} of 1 becomes 1"


def _numbers(value: Any) -> Iterator[Callable[[Any], Any]]:
    """For each number of the value, a function that puts another one in its place."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield from (partial(_with_field, value, name, make) for make in _numbers(each))
    elif isinstance(value, list):
        for at, each in enumerate(value):
            yield from (partial(_with_entry, value, at, make) for make in _numbers(each))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield lambda other: other


def _with_field(value: dict[str, Any], name: str, make: Callable[[Any], Any], other: Any) -> Any:
    return {**value, name: make(other)}


def _with_entry(value: list[Any], at: int, make: Callable[[Any], Any], other: Any) -> Any:
    return [*value[:at], make(other), *value[at + 1 :]]


def _check_stream(tried: Tried) -> None:
    """Where the API has ``stream``, as an option that is true or false."""
    for example in tried.valid:
        if not isinstance(example.body, dict) or not isinstance(example.body.get("stream"), bool):
            continue
        found = [
            translated(tried.made(), {**example.body, "stream": wanted}, example.headers) for wanted in (True, False)
        ]
        if found[0].kind in ("chat", "text"):
            ways = [made.stream for made in found]
            assert ways == [True, False], f"'stream' of true and false becomes {ways}"


def _check_model(tried: Tried) -> None:
    """Where the API names it by ``model``: requests to an adapter must not be the model's."""
    for example in tried.valid:
        if not isinstance(example.body, dict) or not isinstance(example.body.get("model"), str):
            continue
        with suppress(RequestError):
            bodies = [
                translated(tried.made(), {**example.body, "model": name}, example.headers).body
                for name in ("one", "two")
            ]
            assert bodies[0] != bodies[1], f"requests for the models 'one' and 'two' are both translated to {bodies[0]}"


def _check_long(tried: Tried) -> None:
    """Four times as many entries of a list must take about four times the lines of Python."""
    for example in tried.valid:
        for make in _longer(example.body):
            with suppress(RequestError):
                translated(tried.made(), make(_LONG), example.headers)
                run = [partial(tried.made().translate, make(times * _LONG), example.headers) for times in (1, 4)]
                short = counted_lines(run[0])
                limit = 6 * short + 2000
                long = counted_lines(run[1], limit)
                assert long <= limit, (
                    f"{short} lines of code for {_LONG} times the entries of a list become more than {limit} for "
                    f"{4 * _LONG} times, of {_shown(example.body)}"
                )


def _longer(body: Any) -> Iterator[Callable[[int], Any]]:
    """For each list of a body that has entries, the body with the list's entries so many times."""
    for name, each in body.items() if isinstance(body, dict) else ():
        if isinstance(each, list) and each:
            yield lambda times, name=name, each=each: {**body, name: each * times}  # type: ignore[misc]


def _shown(body: Any) -> str:
    text = json.dumps(body, ensure_ascii=False)
    return text if len(text) <= 300 else f"{text[:300]}…"
