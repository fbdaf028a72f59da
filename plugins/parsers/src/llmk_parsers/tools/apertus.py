"""Calls as a list of objects, each of which has a tool's name as its key: Apertus."""

from __future__ import annotations

import re

from llmk_parsers.json_writer import JsonWriter
from llmk_parsers.named_json import NamedJson, NameMarks

_LIST, _LIST_END = "<|tools_prefix|>", "<|tools_suffix|>"


class Apertus(NamedJson):
    """``[{"name": {…}}, …]`` between markers, of which the last one may be missing."""

    STRIP = True
    MARKS = NameMarks(
        lists=(_LIST,),
        list_ends=(_LIST_END,),
        fillers=("[", ",", "]"),
        bare=False,
        call="{",
        name=re.compile(r'\s*"(?P<name>[^"\\\s]+)"\s*'),
        name_ends=(":",),
        call_end="}",
    )


WRITER = JsonWriter(
    trigger=_LIST,
    markers=(_LIST, _LIST_END),
    before=f"{_LIST}[",
    opening="{",
    middle=": ",
    closing="}",
    separator=", ",
    after=f"]{_LIST_END}",
)
