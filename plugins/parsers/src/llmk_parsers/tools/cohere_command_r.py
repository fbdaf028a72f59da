"""Tool calls of Cohere's Command R and R+: a list of objects in a block of Markdown behind ``Action:``."""

from __future__ import annotations

from typing import ClassVar

from llmk_parsers.json_writer import JsonWriter
from llmk_parsers.tools.cohere_command3 import CohereCommand

_ACTION = "Action: ```json"


class CohereCommandR(CohereCommand):
    """Text has no markers."""

    PAIRS: ClassVar = {"Action:": "```"}
    INNER = ("```json",)
    DROPPED = ()


WRITER = JsonWriter(
    trigger=_ACTION,
    markers=(_ACTION,),
    before=f"{_ACTION}\n[\n    ",
    opening='{\n        "tool_name": ',
    middle=',\n        "parameters": ',
    closing="\n    }",
    separator=",\n    ",
    after="\n]```",
)
