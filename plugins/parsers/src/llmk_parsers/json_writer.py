"""Writes the calls of dialects whose arguments are a JSON object after the call's name."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llmk.api import WrittenCall
from llmk_parsers.lark import json_value, parameters, quoted, terms


@dataclass(slots=True, kw_only=True)
class JsonWriter:
    """Follows :class:`llmk.api.CallWriter`.

    Calls are written as ``before``, the calls with ``separator`` in between, and ``after``; a call as ``opening``, its
    name, ``middle``, its arguments and ``closing``.
    """

    trigger: str = ""
    markers: Sequence[str] = ()
    """The parts of these texts that may be special tokens."""
    before: str = ""
    opening: str = '{"name": '
    middle: str = ', "arguments": '
    closing: str = "}"
    separator: str = "\n"
    after: str = ""
    quote: Callable[[str], str] = json.dumps
    """How a name is written."""

    def render(self, calls: Sequence[WrittenCall]) -> str:
        """See :meth:`llmk.api.CallWriter.render`."""
        return self.before + self.separator.join(map(self._call, calls)) + self.after

    def grammar(self, tools: Sequence[Mapping[str, Any]], *, many: bool, marker: Callable[[str], str]) -> str:
        """See :meth:`llmk.api.CallWriter.grammar`."""

        def written(text: str) -> str:
            return terms(text, self.markers, marker)

        more = f"({written(self.separator)} call)*" if many else ""
        rules = [
            f"start: {written(self.before)} call {more} {written(self.after)}",
            f"call: {written(self.opening)} named {written(self.closing)}",
            f"named: {' | '.join(f'call_{number}' for number in range(len(tools)))}",
        ]
        for number, tool in enumerate(tools):
            name = quoted(self.quote(tool["name"]))
            rules.append(f"call_{number}: {name} {written(self.middle)} {json_value(parameters(tool))}")
        return "\n".join(rules)

    def _call(self, call: WrittenCall) -> str:
        arguments = json.dumps(dict(call.arguments), ensure_ascii=False)
        return f"{self.opening}{self.quote(call.name)}{self.middle}{arguments}{self.closing}"
