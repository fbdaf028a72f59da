"""Tool calls that a writer of a dialect renders, drawn to be hard to read back: nested and empty arguments, quotes,
brackets and braces in texts, texts that look like other types, several calls, and repeated ones."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from llmk.api import CallWriter, RequestError, WrittenCall
from llmk_testing.odd_texts import ODDS

TEXTS = (
    *("Oslo", "", " a\n", "\n", "null", "42", "-1.5", "true", "None", "{", "}", "]", '"', "\\", "\\n", "\\u00e9"),
    *('a "quoted" {name} [x]', '}"]', '{"a": 1}', '{"name": "f", "arguments": {}}', "},{", "[1, 2", "a < b && c > d"),
    *("007", "1_000", "0x1F", "NaN", "Infinity", "TRUE", " 42", "[]", "{}", "''", '""', "#", "//", "&amp;", "%20"),
    *(
        "<b>x</b>",
        "</",
        "é😀",
        "it's",
        "a, b=c",
        "f(x='y')",
        "x" * 40,
        "\t",
        "a\\",
        'a\\"b',
        "1e400",
        "\u2028",
        "0",
        "a}{b",
        "],[",
    ),
    *ODDS,
)
POINT = {
    "type": "object",
    "properties": {"x": {"type": "number"}, "tags": {"type": "array", "items": {"type": "string"}}},
    "required": ["x"],
    "additionalProperties": False,
}
SCHEMAS: dict[str, dict[str, Any]] = {
    "text": {"type": "string"},
    "count": {"type": "integer"},
    "ratio": {"type": "number"},
    "flag": {"type": "boolean"},
    "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    "soft": {"type": "string", "nullable": True},
    "note": {"type": ["string", "null"]},
    "unit": {"enum": ["c", "7", "true"]},
    "point": {"$ref": "#/$defs/point"},
    "names": {"type": "array", "items": {"type": "string"}},
    "free": {"type": "object"},
}
"""The schema of each argument, by its name."""
_ELEMENT = re.compile(r"<[^<>]+>?")
NAMES = ("weather", "say_it", "now", "f2", "Get_Weather_in_the_City", "_ns.get-time")


@dataclass(frozen=True, slots=True)
class Written:
    """Calls and their text in the dialect."""

    calls: tuple[WrittenCall, ...]
    text: str


def tools() -> list[dict[str, Any]]:
    """Function objects of all names; each takes any of the arguments."""
    parameters = {"type": "object", "properties": SCHEMAS, "$defs": {"point": POINT}}
    return [{"name": name, "description": "", "parameters": parameters} for name in NAMES]


def written(writer: CallWriter, count: int, seed: int, *, marks: bool = False) -> Iterator[Written]:
    """Texts of one to three calls. What a dialect can't express, its writer refuses, and is left out. ``marks``:
    arguments with the dialect's own markers, too."""
    generator = random.Random(seed)
    for number in range(count):
        drawn = [_call(generator, name) for name in generator.sample(NAMES, 1 + number % 3)]
        if number % 7 == 6:
            drawn.append(WrittenCall(drawn[0].name, drawn[0].arguments, "call_again"))  # twice the same
        if rendered := _rendered(writer, drawn):
            yield rendered
    for text in (*TEXTS, *(f"a {mark} b" for mark in (own_marks(writer) if marks else ()))):
        if rendered := _rendered(writer, [_of("say_it", {"text": text, "count": 1})]):
            yield rendered


def own_marks(writer: CallWriter) -> list[str]:
    """The dialect's own markers: what is around names and arguments."""
    bare = _rendered(writer, [_of("now", {})])
    full = _rendered(writer, [_of("say_it", {"text": "MARK", "count": 1})])
    pieces = [writer.trigger, *(bare.text.split("now") if bare else ()), *(full.text.split("MARK") if full else ())]
    pieces += [part for piece in pieces for part in _ELEMENT.findall(piece)]
    return list(dict.fromkeys(line.strip() for piece in pieces for line in piece.split("\n") if line.strip()))


def _rendered(writer: CallWriter, calls: Sequence[WrittenCall]) -> Written | None:
    stops = [stop for stop in getattr(writer, "stops", ()) if stop]
    if any(stop in text for call in calls for text in _strings(call.arguments) for stop in stops):
        return None
    try:
        return Written(tuple(calls), writer.render(calls))
    except (RequestError, ValueError):
        return None


def _call(generator: random.Random, name: str) -> WrittenCall:
    chosen = generator.sample(sorted(SCHEMAS), generator.choice((0, 1, 2, 4)))
    return _of(name, {argument: _VALUES[argument](generator) for argument in chosen})


def _of(name: str, arguments: dict[str, Any]) -> WrittenCall:
    return WrittenCall(name, arguments, f"call_{name}")


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _strings(item)


def _text(generator: random.Random) -> str:
    return generator.choice(TEXTS)


def _integer(generator: random.Random) -> int:
    return generator.choice((0, 1, -1, 7, 10**6, 2**53 + 1, -(2**63)))


def _number(generator: random.Random) -> float:
    return generator.choice((0.5, -1.25, 3, 1e-9, 1.5e300, 0.1))


def _names(generator: random.Random) -> list[str]:
    return [_text(generator) for _ in range(generator.randint(0, 3))]


def _point(generator: random.Random) -> dict[str, Any]:
    return {"x": _number(generator)} | ({"tags": _names(generator)} if generator.random() < 0.5 else {})


def _free(generator: random.Random, depth: int = 0) -> Any:
    kinds: list[Callable[[], Any]] = [
        lambda: _text(generator),
        lambda: _integer(generator),
        lambda: generator.choice((None, True, False)),
        lambda: [_free(generator, depth + 1) for _ in range(generator.randint(0, 2))],
        lambda: {key: _free(generator, depth + 1) for key in generator.sample("abcd", generator.randint(0, 2))},
    ]
    return generator.choice(kinds if depth < 3 else kinds[:3])() if depth else kinds[4]()


_VALUES: dict[str, Callable[[random.Random], Any]] = {
    "text": _text,
    "count": _integer,
    "ratio": _number,
    "flag": lambda generator: generator.random() < 0.5,
    "maybe": lambda generator: generator.choice((None, 3)),
    "soft": lambda generator: generator.choice((None, "x", "1")),
    "note": lambda generator: generator.choice((None, "x", "1", "a\nb")),
    "unit": lambda generator: generator.choice(("c", "7", "true")),
    "point": _point,
    "names": _names,
    "free": _free,
}
