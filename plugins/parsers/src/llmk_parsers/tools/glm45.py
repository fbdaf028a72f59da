"""Calls as ``<tool_call>name`` with pairs of ``<arg_key>`` and ``<arg_value>``: GLM-4.5 and GLM-4.6."""

from __future__ import annotations

from llmk_parsers.tag_calls import ANYTHING, PLAIN, PLAIN_SO_FAR, TagCalls, Tags
from llmk_parsers.tag_writer import TagWriter


class Glm45(TagCalls):
    """A line break after the name and between pairs is optional."""

    STRIP = True
    MARKS = Tags(
        call="<tool_call>",
        name=PLAIN,
        name_so_far=PLAIN_SO_FAR,
        name_end="<arg_key>",
        call_end="</tool_call>",
        key="<arg_key>",
        key_name=ANYTHING,
        key_end="</arg_key>",
        value="<arg_value>",
        value_end="</arg_value>",
        value_stops=("</tool_call>",),
    )


def pairs_writer(line: str) -> TagWriter:
    """The writer of such calls, with ``line`` after names and values."""
    return TagWriter(
        trigger="<tool_call>",
        markers=("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
        opening="<tool_call>",
        after_name=line,
        key="<arg_key>",
        after_key=f"</arg_key>{line}<arg_value>",
        after_value=f"</arg_value>{line}",
        closing="</tool_call>",
        stops=("</arg_value>", "</tool_call>"),
    )


WRITER = pairs_writer("\n")
