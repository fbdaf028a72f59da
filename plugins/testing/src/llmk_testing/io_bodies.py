"""Request bodies for IO processors, made of valid ones: some that are invalid, and some that are probably valid."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from llmk_testing.odd_texts import NORMALIZED, SPACES, UNESCAPED

Body = Mapping[str, Any]

_ODD = f"{NORMALIZED} {UNESCAPED} {SPACES}"
_TEXT = '\n A naïve café, "東京" \n\t🙂 and a Core. '
_LONG, _MANY = 9000, (300, 64)
"""Characters of a long text, and values of long lists: many processors take no more than 64."""
_JUNK: tuple[Any, ...] = (
    *(None, True, 0, -1, 2**70, 1.5, "", "\x00", "a" * 1000, [], [[]], [None], [0, "a"], ["", ""]),
    *({}, {"": {}}, {"input": "a"}, [{}], [[[1]]], [-1], [2**40]),
)


def garbage(bodies: Sequence[Body]) -> Iterator[dict[str, Any]]:
    """Invalid bodies: ``bodies`` with a value removed, added, or of another type, at any depth."""
    yield {}
    for body in bodies:
        yield {**body, "no_such_field": 1}
        yield from ({**body, name: 1} for name in ("", "é", "\ud83d", "x" * 1000))
        yield from _damaged(body)


def replaced(bodies: Sequence[Body]) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    """Those that have something else in place of a value, and the path to it."""
    for body in bodies:
        yield from _replaced(body)


def _damaged(value: Any) -> Iterator[Any]:
    """``value``, a dictionary or list, with something else in place of one of its values, or without it."""
    yield from (damaged for _, damaged in _replaced(value))
    yield from _lacking(value)


def _replaced(value: Any) -> Iterator[tuple[list[Any], Any]]:
    for at in list(value) if isinstance(value, Mapping) else range(len(value)):
        yield from (([at], _with(value, at, other)) for other in _JUNK)
        if isinstance(value[at], Mapping | list):
            yield from (([at, *path], _with(value, at, other)) for path, other in _replaced(value[at]))


def _lacking(value: Any) -> Iterator[Any]:
    for at in list(value) if isinstance(value, Mapping) else range(len(value)):
        yield _without(value, at)
        if isinstance(value[at], Mapping | list):
            yield from (_with(value, at, other) for other in _lacking(value[at]))


def varied(bodies: Sequence[Body]) -> Iterator[dict[str, Any]]:
    """Bodies that are probably valid: ``bodies`` with another text, number or switch in place of one, without a field,
    and with lists in another order, of one value, or with all values twice or a dozen times."""
    for body in bodies:
        yield from _variants(body)


def lengthened(bodies: Sequence[Body]) -> Iterator[dict[str, Any]]:
    """Bodies with a long text in place of each text, of different words, and with hundreds of values in each list."""
    for body in bodies:
        yield from _lengthened(body)


def _lengthened(value: Any) -> Iterator[Any]:
    for at in list(value) if isinstance(value, Mapping) else range(len(value)):
        own = value[at]
        if isinstance(own, str) and own:
            yield _with(value, at, " ".join(f"{own} {number}" for number in range(_LONG // (len(own) + 5))))
        elif isinstance(own, list) and own:
            yield from (_with(value, at, (own * many)[:many]) for many in _MANY)
        if isinstance(own, Mapping | list):
            yield from (_with(value, at, other) for other in _lengthened(own))


def steps(param: str) -> list[str | int]:
    """A path, ``documents[2].text`` or ``documents.2.text``, as names and places."""
    found = re.findall(r"[^\[\].]+", param)
    return [int(step) if step.isdecimal() else step for step in found]


def repeated(value: Any, times: int) -> Any:
    """``value`` with each of its texts so many times, in other words each time."""
    if isinstance(value, str):
        return " ".join(f"{value} {number}" for number in range(times))
    if isinstance(value, Mapping):
        return {key: repeated(own, times) for key, own in value.items()}
    return [repeated(own, times) for own in value] if isinstance(value, list) else value


def numbered(value: Any, number: int) -> Any:
    """``value`` with a number behind each of its texts."""
    if isinstance(value, str):
        return f"{value} {number}"
    if isinstance(value, Mapping):
        return {key: numbered(own, number) for key, own in value.items()}
    return [numbered(own, number) for own in value] if isinstance(value, list) else value


def _variants(value: Any) -> Iterator[Any]:
    for at in list(value) if isinstance(value, Mapping) else range(len(value)):
        own = value[at]
        others: list[Any] = []
        if isinstance(own, str):
            others += ["a", own + " " + own, " ".join([own] * 12), _TEXT, _ODD, "", " ", own + "\n"]
        elif isinstance(own, bool):
            others.append(not own)
        elif isinstance(own, int):
            others += [own + 1, own - 1, 0, 1, 1000, -own]
        elif isinstance(own, float):
            others += [own / 2, own * 2, -own, 0.0, 1.0, 0, 1, 2]
        elif isinstance(own, list):
            others += [own[::-1], own[:1], own[1:], [], own + own, own * 12, *_variants(own)]
        elif isinstance(own, Mapping):
            others += _variants(own)
        yield from (_with(value, at, other) for other in others)
        if isinstance(value, Mapping):
            yield _without(value, at)


def _with(value: Any, at: Any, other: Any) -> Any:
    if isinstance(value, Mapping):
        return {**value, at: other}
    return [*value[:at], other, *value[at + 1 :]]


def _without(value: Any, at: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: own for key, own in value.items() if key != at}
    return [*value[:at], *value[at + 1 :]]
