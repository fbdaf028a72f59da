"""Calls as ``functions.name:0`` and a JSON object: Kimi K2."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llmk.api import WrittenCall
from llmk_parsers.lark import json_value, parameters, quoted
from llmk_parsers.named_json import NamedJson, NameMarks

_LIST, _LIST_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_CALL, _ARGUMENTS, _CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"


class KimiK2(NamedJson):
    """The header is the call's id, in which the name stands."""

    MARKS = NameMarks(
        lists=(_LIST, "<|tool_call_section_begin|>"),
        list_ends=(_LIST_END, "<|tool_call_section_end|>"),
        call=_CALL,
        name=re.compile(r"\s*(?P<id>(?:functions\.)?(?P<name>[^\s:<>{}\"]+)(?::\d+)?)\s*"),
        name_ends=(_ARGUMENTS,),
        call_end=_CALL_END,
    )


class KimiK2Writer:
    """Follows :class:`llmk.api.CallWriter`. A call's id is kept if it is one of the dialect."""

    trigger = _LIST

    def render(self, calls: Sequence[WrittenCall]) -> str:
        """See :meth:`llmk.api.CallWriter.render`."""
        return _LIST + "".join(self._call(*numbered) for numbered in enumerate(calls)) + _LIST_END

    def grammar(self, tools: Sequence[Mapping[str, Any]], *, many: bool, marker: Callable[[str], str]) -> str:
        """See :meth:`llmk.api.CallWriter.grammar`."""
        start, end, opening, middle, closing = map(marker, (_LIST, _LIST_END, _CALL, _ARGUMENTS, _CALL_END))
        rules = [
            f"start: {start} call{'+' if many else ''} {end}",
            f"call: {opening} named {closing}",
            f"named: {' | '.join(f'call_{number}' for number in range(len(tools)))}",
        ]
        for number, tool in enumerate(tools):
            header = f"{quoted('functions.' + tool['name'] + ':')} /[0-9]{{1,4}}/"
            rules.append(f"call_{number}: {header} {middle} {json_value(parameters(tool))}")
        return "\n".join(rules)

    def _call(self, number: int, call: WrittenCall) -> str:
        known = KimiK2.MARKS.name.fullmatch(call.id)
        fits = known is not None and known["name"] == call.name and ":" in call.id
        header = call.id if fits else f"functions.{call.name}:{number}"
        return f"{_CALL}{header}{_ARGUMENTS}{json.dumps(dict(call.arguments), ensure_ascii=False)}{_CALL_END}"


WRITER = KimiK2Writer()
