"""Writes calls as Python's, ``name(key=value, …)``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llmk.api import RequestError, WrittenCall
from llmk_parsers.lark import json_value, parameters, quoted, terms

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*(?<![.-])")
_KEYWORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_DEFINITIONS = ("$defs", "definitions")
_KNOWN = {"type", "properties", "required", "additionalProperties", "strict", *_DEFINITIONS}
_NOTES = {"title", "description", "$schema", "$id", "$comment", "examples", "default", "deprecated"}


@dataclass(slots=True, kw_only=True)
class PythonWriter:
    """Follows :class:`llmk.api.CallWriter`.

    Calls are written as ``before``, the calls with ``separator`` in between, and ``after``. Values are written as JSON,
    whose strings are Python's too; its constants are known to the parsers. An argument whose name Python doesn't allow
    is written as ``**{"name": value}``.
    """

    trigger: str = ""
    markers: Sequence[str] = ()
    """The parts of these texts that may be special tokens."""
    before: str = "["
    separator: str = ", "
    after: str = "]"

    def render(self, calls: Sequence[WrittenCall]) -> str:
        """See :meth:`llmk.api.CallWriter.render`."""
        return self.before + self.separator.join(map(self._call, calls)) + self.after

    def grammar(self, tools: Sequence[Mapping[str, Any]], *, many: bool, marker: Callable[[str], str]) -> str:
        """See :meth:`llmk.api.CallWriter.grammar`. Arguments are those that the schema names, in its order. Raises
        RequestError if the schema says more of them."""

        def written(text: str) -> str:
            return terms(text, self.markers, marker)

        more = f"({written(self.separator)} call)*" if many else ""
        rules = [
            f"start: {written(self.before)} call {more} {written(self.after)}",
            f"call: {' | '.join(f'call_{number}' for number in range(len(tools)))}",
        ]
        for number, tool in enumerate(tools):
            rules += _call_rules(f"call_{number}", tool)
        return "\n".join(rules)

    def _call(self, call: WrittenCall) -> str:
        arguments = []
        for key, value in call.arguments.items():
            before, after = _around(key)
            arguments.append(before + json.dumps(value, ensure_ascii=False) + after)
        return f"{call.name}({', '.join(arguments)})"


def _around(key: str) -> tuple[str, str]:
    """The text of an argument before its value, and behind it."""
    if _KEYWORD.fullmatch(key):
        return f"{key}=", ""
    return f"**{{{json.dumps(key, ensure_ascii=False)}: ", "}"


def _call_rules(rule: str, tool: Mapping[str, Any]) -> Iterator[str]:
    schema = parameters(tool)
    _check(schema, tool["name"])
    required = set(schema.get("required") or ())
    shared = {name: schema[name] for name in _DEFINITIONS if name in schema}
    properties = {**(schema.get("properties") or {})}
    for key in schema.get("required") or ():
        properties.setdefault(key, schema.get("additionalProperties", True))
    last = len(properties)
    for number, (key, value) in enumerate(properties.items()):
        before, after = _around(key)
        wanted = {**value, **shared} if isinstance(value, dict) else {} if value else {"not": {}}
        yield f"{rule}_arg_{number}: {quoted(before)} {json_value(wanted)} {quoted(after) if after else ''}"
        first = f"{rule}_arg_{number} {rule}_more_{number + 1}"
        more = f'", " {rule}_arg_{number}'
        needed = key in required
        yield f"{rule}_from_{number}: {first}{'' if needed else f' | {rule}_from_{number + 1}'}"
        yield f"{rule}_more_{number}: {more if needed else f'({more})?'} {rule}_more_{number + 1}"
    yield f'{rule}_from_{last}: ""'
    yield f'{rule}_more_{last}: ""'
    yield f'{rule}: {quoted(tool["name"] + "(")} {rule}_from_0 ")"'


def _check(schema: Mapping[str, Any], name: str) -> None:
    if not _NAME.fullmatch(name):
        raise RequestError(f"calls of tool {name!r} can't be written in this model's dialect: rename it as in Python")
    for keyword in schema:
        if keyword not in _KNOWN | _NOTES and not keyword.startswith("x-"):
            raise RequestError(f"calls of tool {name!r} can't follow {keyword!r} of its schema in this model's dialect")
