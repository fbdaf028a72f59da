"""The suite of API routes. ``RouteSpec.examples`` names a sequence of valid request bodies, ``None`` for no body."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, get_args

from llmk.api import (
    AnswerHead,
    ApiRoute,
    Event,
    Frame,
    ReasoningDelta,
    RequestError,
    RouteSpec,
    ServedModelInfo,
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallFailed,
    ToolCallStart,
    TranslatedRequest,
)
from llmk.api.routes import RouteKind
from llmk.kernel.loader import load_object
from llmk_testing.bench import Bench
from llmk_testing.case import Case, Skip

_STATUSES = (400, 401, 403, 404, 413, 415, 421, 429, 500, 503, 504)
_ODD: tuple[Any, ...] = (
    {},
    {"model": 1},
    {"messages": "x", "prompt": {}},
    {"messages": [None, 1, {"role": []}]},
    {"model": "m", "messages": [{"role": "user", "content": [{"type": []}]}], "max_tokens": "1"},
    {"\ud800": "\ud800"},
)
"""Bodies that are hardly valid anywhere; those that a route takes are translated."""
_LEAVES: tuple[Any, ...] = (None, "", "[" * 100_000, "1e400", -1, 0, 1e308, 10**30, True, [], {}, [None])
"""What a client may put in place of a text or a number."""
_ENGINE: dict[str, dict[str, Any]] = {
    "tokenize": {"count": 1, "tokens": [1]},
    "embed": {"data": [], "usage": {"prompt_tokens": 1}},
    "info": {},
}
"""The least that llmk's own routes return, by kind."""
_MODEL = ServedModelInfo("model", (), 1, "1.0", 64, "", ("completion",), {})


@dataclass(frozen=True, slots=True)
class _Delta:
    events: Sequence[Event]
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    index: int = 0


@dataclass(frozen=True, slots=True)
class _Counts:
    prompt_tokens: int = 3
    cached_tokens: int = 1
    pinned_tokens: Mapping[float, int] = field(default_factory=dict)
    completion_tokens: int = 9
    reasoning_tokens: int = 2


_ANSWERS: tuple[tuple[_Delta, ...], ...] = (
    (_Delta((), "stop"),),
    (_Delta((TextDelta("one"),)), _Delta((TextDelta("two"),), "stop", "END")),
    (_Delta((ReasoningDelta("r"), TextDelta("one"), TextDelta(""), ReasoningDelta("s"), TextDelta("two")), "length"),),
    (
        _Delta((TextDelta("one"), ToolCallStart(0, "f"), ToolCallStart(1, "g", "own"))),
        _Delta((ToolCallArguments(1, '{"x": '), ToolCallArguments(0, "{}"), TextDelta("two"), ToolCallEnd(0))),
        _Delta((ToolCallFailed(1, '<g>{"x": '),), "tool_calls"),
    ),
)
"""Responses as parsers may yield them."""

_Check = Callable[[ApiRoute, RouteSpec, Sequence[Any]], None]


def cases(spec: RouteSpec, bench: Bench) -> Iterator[Case]:
    """The cases of one route."""
    checks: tuple[tuple[str, _Check], ...] = (
        ("every error is put in the API's format", _check_errors),
        ("what can't be served is refused with RequestError", _check_refusals),
        ("requests are translated to plain data, alike each time", _check_translations),
        ("responses are plain data, streamed and complete", _check_responses),
    )
    for name, check in checks:
        yield Case(spec.id, "route", name, partial(_run, spec, check))


def _run(spec: RouteSpec, check: _Check) -> None:
    if not spec.examples:
        raise Skip("the spec names no examples: request bodies")
    examples = load_object(spec.examples)
    assert isinstance(examples, Sequence), f"{spec.examples} is {examples!r}, expected a sequence of request bodies"
    assert examples, f"{spec.examples} is empty"
    check(load_object(spec.implementation)(), spec, examples)


def _check_errors(route: ApiRoute, spec: RouteSpec, examples: Sequence[Any]) -> None:
    for status in _STATUSES:
        error = {"message": "the reason", "type": "t", "param": None, "code": "c", "request_id": "0" * 32}
        frame = route.error(status, error)
        assert isinstance(frame, Frame), f"error() returned {frame!r}"
        assert "the reason" in json.dumps(frame.data), f"the message of an error {status} is lost"


def _check_refusals(route: ApiRoute, spec: RouteSpec, examples: Sequence[Any]) -> None:
    for body in _ODD if spec.method == "POST" else ():
        with suppress(RequestError):
            _translated(route, body)
    for example in examples:
        for body in (other for odd in _LEAVES for other in _with_leaf(example, odd)):
            with suppress(RequestError):
                _translated(route, body)


def _with_leaf(value: Any, odd: Any) -> Iterator[Any]:
    """The value with each of its texts and numbers in turn replaced."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield from ({**value, name: other} for other in _with_leaf(each, odd))
    elif isinstance(value, list):
        for at, each in enumerate(value):
            yield from ([*value[:at], other, *value[at + 1 :]] for other in _with_leaf(each, odd))
    else:
        yield odd


def _check_translations(route: ApiRoute, spec: RouteSpec, examples: Sequence[Any]) -> None:
    for body in examples:
        before = json.dumps(body)
        first, second = (_translated(route, body) for _ in range(2))
        assert json.dumps(body) == before, "translate() changed the body"
        assert (first.kind, first.body) == (second.kind, second.body)


def _translated(route: ApiRoute, body: Any) -> TranslatedRequest:
    made = route.translate(body, {})
    assert made.kind in get_args(RouteKind), f"{made.kind!r} is no kind of route"
    assert not {"stream", "stream_options"} & made.body.keys(), "'stream' belongs to the TranslatedRequest"
    json.dumps([made.body, made.options])
    return made


def _check_responses(route: ApiRoute, spec: RouteSpec, examples: Sequence[Any]) -> None:
    for body in examples:
        made = _translated(route, body)
        options: Mapping[str, Any] = json.loads(json.dumps(made.options))
        if made.kind not in ("chat", "text"):
            json.dumps(route.result(_ENGINE[made.kind], options, _MODEL))
            continue
        for answer in _ANSWERS:
            streaming, waiting = (route.open(AnswerHead("0" * 32, 1, "model"), options) for _ in range(2))
            streamed = ""
            for delta in answer:
                streamed += _checked(streaming.frames(delta, _Counts()))
                waiting.add(delta, _Counts())
            streamed += _checked(streaming.last_frames(_Counts()))
            whole = json.dumps(waiting.whole(_Counts()))
            for event in (event for delta in answer for event in delta.events if isinstance(event, TextDelta)):
                assert event.text in streamed, f"of a streamed response, the text {event.text!r} is lost"
                assert event.text in whole, f"of a complete response, the text {event.text!r} is lost: {whole}"


def _checked(frames: Any) -> str:
    """The data of frames."""
    found = []
    for frame in frames:
        assert isinstance(frame, Frame), f"{frame!r} is not a Frame"
        found.append(json.dumps(frame.data))
    return "\n".join(found)
