"""The largest part of a JSON schema that can be enforced, for requests that prefer it to an error.

No compiler of grammars says all that it can't enforce, and where. So the keywords are found by trial: each is added to
a schema without any, in an order in which a schema that can be enforced stays so, until one can't be. That one is
left out. Each is found by halves, so that a search takes few trials.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

from llmk.serve.protocol.tool_schema import NAMED_SCHEMAS, inner_schemas

MOST_TRIALS = 400
MOST_SECONDS = 1.0
"""Limits of a search: trials, and seconds of the processor."""
_ANNOTATIONS = frozenset(
    {"$comment", "default", "deprecated", "description", "example", "examples", "readOnly", "title", "writeOnly"}
)
_DEFINITIONS = ("$defs", "definitions")
_STRUCTURE = frozenset(
    {"additionalProperties", "allOf", "anyOf", "items", "oneOf", "patternProperties", "prefixItems", "properties"}
)
"""Keywords whose schemas are worth keeping one by one."""
_OTHERWISE = {"additionalProperties": ("properties", "patternProperties"), "items": ("prefixItems",)}
"""Keywords about what others don't cover: without these, they would hold for less."""
_WHOLE = frozenset({"if", "not"})
"""Keywords that would hold for less with a part of their schema."""
_EXACTLY_ONE = "exactly one"
"""Ends the path of a ``oneOf``'s second part: that no two of its schemas match. Without it, or a part of a schema, it
is an ``anyOf``."""

Path = tuple[str | int, ...]
Fits = Callable[[Any], bool]


class _Keyword(NamedTuple):
    """A keyword at a place of a schema. Those of one ``kind`` are likely to share the reason why they can't be
    enforced. ``stage``: which of them are added first."""

    stage: int
    path: Path
    kind: Path


class _TooLong(Exception):
    """The search exceeds a limit."""


def weakened(schema: Any, fits: Fits) -> tuple[Any, list[str]] | None:
    """``schema`` without the keywords for which ``fits`` does not hold, and their names. What is left holds for all
    that the schema holds for, and no keyword can be added again. ``None``: nothing fits, or a limit was reached.
    """
    search = _Search(schema, fits)
    try:
        left_out = search.run()
    except _TooLong:
        return None
    if left_out is None:
        return None
    names = ("oneOf" if path[-1] == _EXACTLY_ONE else str(path[-1]) for path in left_out)
    return _without(schema, left_out), sorted(set(names))


class _Search:
    def __init__(self, schema: Any, fits: Fits) -> None:
        self._schema = schema
        self._fits = fits
        self._trials = 0
        self._end = time.thread_time() + MOST_SECONDS
        self._all = sorted(_keywords(schema), key=lambda keyword: keyword.stage)

    def run(self) -> set[Path] | None:
        """The paths of the keywords that are left out; ``None`` if even a schema without any doesn't fit."""
        left, found, num_good = self._all, list[_Keyword](), 0
        if not self._holds([]):
            return None
        while not self._holds(left):
            good, bad = num_good, len(left)
            while bad - good > 1:
                middle = (good + bad) // 2
                good, bad = (middle, bad) if self._holds(left[:middle]) else (good, middle)
            alike = [keyword for keyword in left[good:] if keyword.kind == left[good].kind]
            found += alike
            under = {keyword.path for keyword in _under(left, alike)}
            num_good = sum(keyword.path not in under for keyword in left[:good])
            left = [keyword for keyword in left if keyword.path not in under]
        return {keyword.path for keyword in self._restored(left, found)}

    def _restored(self, left: list[_Keyword], found: list[_Keyword]) -> list[_Keyword]:
        """``found`` without those that fit after all, as far as the limits permit to try."""
        gone, groups = list(found), [found] if found else []
        try:
            while groups:
                group = groups.pop()
                under = _under(self._all, group)
                if self._holds([*left, *under]):
                    restored = set(group)
                    left, gone = [*left, *under], [keyword for keyword in gone if keyword not in restored]
                elif (half := len(group) // 2) > 0:
                    groups += [group[:half], group[half:]]
        except _TooLong:
            pass
        return gone

    def _holds(self, keywords: list[_Keyword]) -> bool:
        self._trials += 1
        if self._trials > MOST_TRIALS or time.thread_time() > self._end:
            raise _TooLong
        kept = {keyword.path for keyword in keywords}
        return self._fits(_without(self._schema, {each.path for each in self._all if each.path not in kept}))


def _under(keywords: list[_Keyword], outer: list[_Keyword]) -> list[_Keyword]:
    """Those that are ``outer`` ones, or inside of one."""
    paths = {keyword.path for keyword in outer}
    return [
        keyword for keyword in keywords if any(keyword.path[:end] in paths for end in range(1, len(keyword.path) + 1))
    ]


def _keywords(schema: Any, path: Path = ()) -> Iterator[_Keyword]:
    """The keywords that can be left out. First those that give the schema its structure; then references, whose targets
    are there by then; then what else there is."""
    for key, value in schema.items() if isinstance(schema, Mapping) else ():
        here = (*path, key)
        if key in _ANNOTATIONS:
            continue
        schemas = [] if key in _WHOLE else inner_schemas(key, value)
        inner = [(place, each) for place, each in schemas if isinstance(each, Mapping)]
        is_structure = bool(inner) and key in _STRUCTURE
        if key not in _DEFINITIONS:
            stage = 0 if is_structure else 1 if key.startswith("$") else 2 if key == "type" else 3
            yield _Keyword(stage, here, here if is_structure else (key,))
        if key == "oneOf":
            yield _Keyword(4, (*here, _EXACTLY_ONE), (*here, _EXACTLY_ONE))
        for place, each in inner:
            yield from _keywords(each, (*here, *place))


def _without(schema: Any, left_out: Collection[Path], path: Path = ()) -> Any:
    """A schema without the keywords at some paths."""
    if not isinstance(schema, Mapping):
        return schema
    made: dict[str, Any] = {}
    for key, value in schema.items():
        here = (*path, key)
        if here in left_out or any((*path, other) in left_out for other in _OTHERWISE.get(key, ())):
            continue
        kept = _each(key, value, left_out, here)
        if key == "oneOf" and any(each[: len(here)] == here for each in left_out):
            made.setdefault("allOf", []).append({"anyOf": kept})
        elif key == "allOf":
            made.setdefault("allOf", []).extend(kept)
        else:
            made[key] = kept
    return made


def _each(key: str, value: Any, left_out: Collection[Path], here: Path) -> Any:
    """A keyword's value, whose schemas are without the keywords at some paths."""
    inner = {place: _without(each, left_out, (*here, *place)) for place, each in inner_schemas(key, value)}
    if () in inner:
        return inner[()]
    if not inner:
        return value
    if key in NAMED_SCHEMAS:
        return {place[0]: each for place, each in inner.items()}
    return list(inner.values())
