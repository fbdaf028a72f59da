"""Calls as a name and a JSON object between marks: DeepSeek-V3.1."""

from __future__ import annotations

import re

from llmk_parsers.json_writer import JsonWriter
from llmk_parsers.named_json import NamedJson, NameMarks
from llmk_parsers.tools.deepseek_v3 import CALL, CALL_END, LIST, LIST_END, MARKERS, NAME, SEPARATOR, plain_name


class DeepSeekV31(NamedJson):
    """DeepSeek-V3.1: the name and the object."""

    MARKS = NameMarks(
        lists=(LIST,),
        list_ends=(LIST_END,),
        call=CALL,
        name=re.compile(NAME),
        name_ends=(SEPARATOR,),
        call_end=CALL_END,
    )


WRITER = JsonWriter(
    trigger=LIST,
    markers=MARKERS,
    before=LIST,
    opening=CALL,
    middle=SEPARATOR,
    closing=CALL_END,
    separator="",
    after=LIST_END,
    quote=plain_name,
)
