"""Calls as XML, ``<function name="…"><param name="…">…</param></function>``: MiniCPM5."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from typing import Any

from llmk_parsers.schema_values import Schema, fitted
from llmk_parsers.tag_calls import TagCalls, Tags
from llmk_parsers.tag_writer import TagWriter

_WRAPPERS = ("arguments", "parameters", "properties")


def reviewed(pairs: Sequence[tuple[str, Any]], tool: Schema) -> Mapping[str, Any] | None:
    """The arguments without those that the tool doesn't know; ``None`` if one is there twice, or a required one is
    not."""
    arguments = dict(pairs)
    if len(arguments) < len(pairs):
        return None
    if len(pairs) == 1 and pairs[0][0] in _WRAPPERS and pairs[0][0] not in tool.names:
        inner = _literal(pairs[0][1])
        arguments = {name: fitted(value, tool.member(name)) for name, value in inner.items()}
    if tool.names:
        arguments = {name: value for name, value in arguments.items() if name in tool.names}
    return arguments if tool.required <= arguments.keys() else None


def _literal(value: Any) -> dict[str, Any]:
    """The object in ``value``, which may be the text of one in JSON or in Python; empty where JSON has no such object:
    Python also reads sets, bytes and ``1e400``."""
    if isinstance(value, str) and len(value) < 1 << 16:
        try:
            value = ast.literal_eval(value.strip())
            json.dumps(value, allow_nan=False)
        except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
            return {}
    return value if isinstance(value, dict) and all(isinstance(name, str) for name in value) else {}


class MiniCpm5(TagCalls):
    """The model names its checks: a call that fails them is content."""

    STRIP = True
    REVIEW = (reviewed, frozenset())
    MARKS = Tags(
        call="<function",
        call_end="</function>",
        key="<param",
        value_end="</param>",
        value_stops=("<param name=", "</function>"),
        cdata=True,
        unknown="text",
    )


WRITER = TagWriter(
    trigger="<function",
    markers=("<function", "</function>", "<param", "</param>"),
    opening='<function name="',
    after_name='">',
    key='<param name="',
    after_key='">',
    after_value="</param>",
    closing="</function>",
    stops=("</param>", "<param name=", "</function>", "<![CDATA["),
)
