"""Calls as a name and a JSON object between marks: DeepSeek-V3 and R1."""

from __future__ import annotations

import re

from llmk_parsers.json_writer import JsonWriter
from llmk_parsers.named_json import NamedJson, NameMarks

LIST, LIST_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, SEPARATOR, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
MARKERS = (LIST, LIST_END, CALL, SEPARATOR, CALL_END)
NAME = r"\s*(?P<name>[^\s<>{}\"]+)\s*"


class DeepSeekV3(NamedJson):
    """DeepSeek-V3 and R1: the type, ``function``, the name, and the object in a fenced block."""

    MARKS = NameMarks(
        lists=(LIST,),
        list_ends=(LIST_END,),
        call=CALL,
        name=re.compile(rf"\s*(?:function\s*{SEPARATOR})?{NAME}"),
        name_ends=("```json", "```\n"),
        call_end=CALL_END,
    )


def plain_name(name: str) -> str:
    """A name as it is written, without quotes."""
    return name


WRITER = JsonWriter(
    trigger=LIST,
    markers=MARKERS,
    before=LIST,
    opening=f"{CALL}function{SEPARATOR}",
    middle="\n```json\n",
    closing=f"\n```{CALL_END}",
    after=LIST_END,
    quote=plain_name,
)
