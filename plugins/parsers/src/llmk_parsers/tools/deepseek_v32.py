"""Calls in DSML, whose tags say whether an argument is a string: DeepSeek-V3.2, V4 and V4.1."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from llmk_parsers.schema_values import Schema, decoded, fitted
from llmk_parsers.tag_calls import NAMED, TagCalls, Tags
from llmk_parsers.tag_writer import TagWriter

_MARK = "｜DSML｜"
_KEY = re.compile(NAMED.pattern + r"""(?:\s*string\s*=\s*["']?(?P<string>true|false)["']?\s*)?""", re.IGNORECASE)
_WRAPPERS = frozenset({"arguments", "input"})
_MISSPELT = ("tool_calls", "toolcalls", "tool", "function_calls", "calls")


def unwrapped(pairs: Sequence[tuple[str, Any]], tool: Schema) -> Mapping[str, Any]:
    """The arguments, out of a single argument that wraps all of the tool's."""
    arguments = dict(pairs)
    if len(arguments) == 1:
        (inner,) = arguments.values()
        inner = decoded(inner, Schema({})) if isinstance(inner, str) else inner
        if isinstance(inner, dict) and inner.keys() <= tool.names:
            return {name: fitted(value, tool.member(name)) for name, value in inner.items()}
    return arguments


def dsml_tags(listed: str, space: str = "", mark: str = _MARK) -> Tags:
    """The markers of the dialect with lists of this name. ``mark`` and ``space`` stand before the names of tags."""
    names = (listed, *(name for name in _MISSPELT if name != listed))
    return Tags(
        lists=tuple(f"<{mark}{space}{name}>" for name in names),
        list_ends=tuple(f"</{mark}{space}{name}>" for name in names),
        call=f"<{mark}{space}invoke",
        call_end=f"</{mark}{space}invoke>",
        key=f"<{mark}{space}parameter",
        key_name=_KEY,
        value_end=f"</{mark}{space}parameter>",
        value_stops=(f"<{mark}{space}parameter name=", f"</{mark}{space}invoke>"),
    )


def dsml_writer(tags: Tags, mark: str = _MARK) -> TagWriter:
    """The writer of such a dialect."""
    return TagWriter(
        trigger=tags.lists[0],
        markers=(mark,),
        before=f"{tags.lists[0]}\n",
        opening=f'{tags.call} name="',
        after_name='">\n',
        key=f'{tags.key} name="',
        after_key='">',
        text_attribute='" string="true">',
        json_attribute='" string="false">',
        after_value=f"{tags.value_end}\n",
        closing=f"{tags.call_end}\n",
        separator="",
        after=tags.list_ends[0],
        stops=(tags.value_end, *tags.value_stops),
    )


class DeepSeekV32(TagCalls):
    """DeepSeek-V3.2. Misspelt markers of the list, which models write, are taken."""

    MARKS = dsml_tags("function_calls")
    REVIEW = (unwrapped, _WRAPPERS)


WRITER = dsml_writer(DeepSeekV32.MARKS)
