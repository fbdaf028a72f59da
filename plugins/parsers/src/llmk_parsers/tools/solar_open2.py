"""Tool calls of Solar Open 2: a name in a line, and arguments between markers."""

from __future__ import annotations

import re

from llmk_parsers.tag_calls import ANYTHING, TagCalls, Tags
from llmk_parsers.tag_writer import TagWriter

_CALL, _CALL_END = "<|tool_call:start|>", "<|tool_call:end|>"
_KEY, _VALUE, _VALUE_END = "<|tool_arg:start|>", "<|tool_arg:value|>", "<|tool_arg:end|>"
WRITER = TagWriter(
    trigger=_CALL,
    markers=(_CALL, _CALL_END, _KEY, _VALUE, _VALUE_END),
    opening=_CALL,
    after_name="\n",
    key=_KEY,
    after_key=_VALUE,
    after_value=f"{_VALUE_END}\n",
    closing=_CALL_END,
    stops=(_VALUE_END, _KEY, _CALL_END, _CALL),
)


class SolarOpen2(TagCalls):
    """Ends of arguments and calls may be missing where the next one starts."""

    MARKS = Tags(
        call=_CALL,
        name=re.compile(r"[ \t]*(?P<name>[^\s<>]+)[ \t\r]*"),
        name_so_far=re.compile(r"[ \t]*(?:[^\s<>]+[ \t\r]*)?"),
        name_end="\n",
        call_end=_CALL_END,
        key=_KEY,
        key_name=ANYTHING,
        key_end=_VALUE,
        value_end=_VALUE_END,
        value_stops=(_KEY, _CALL_END, _CALL),
    )
