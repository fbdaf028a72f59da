"""Calls as GLM-4.5 writes them, in a list, with a mark after the name: Hunyuan 3."""

from __future__ import annotations

from llmk.api import ParserContext
from llmk_parsers.hunyuan_tags import PlainTags
from llmk_parsers.piped import Piped
from llmk_parsers.tag_calls import ANYTHING, PLAIN, PLAIN_SO_FAR, TagCalls, Tags
from llmk_parsers.tag_writer import TagWriter


class _Calls(TagCalls):
    """Calls outside of a list are taken as well."""

    MARKS = Tags(
        lists=("<tool_calls>",),
        list_ends=("</tool_calls>",),
        call="<tool_call>",
        name=PLAIN,
        name_so_far=PLAIN_SO_FAR,
        name_end="<tool_sep>",
        call_end="</tool_call>",
        key="<arg_key>",
        key_name=ANYTHING,
        key_end="</arg_key>",
        value="<arg_value>",
        value_end="</arg_value>",
        value_stops=("</tool_call>",),
    )


class HyV3(Piped):
    """Calls in tags with a suffix or without."""

    def __init__(self, context: ParserContext) -> None:
        super().__init__(PlainTags(), _Calls(context))


WRITER = TagWriter(
    trigger="<tool_calls>",
    markers=(
        *("<tool_calls>", "</tool_calls>", "<tool_call>", "</tool_call>", "<tool_sep>"),
        *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    ),
    before="<tool_calls>\n",
    opening="<tool_call>",
    after_name="<tool_sep>\n",
    key="<arg_key>",
    after_key="</arg_key>\n<arg_value>",
    after_value="</arg_value>\n",
    closing="</tool_call>",
    after="\n</tool_calls>",
    stops=("</arg_value>", "</tool_call>"),
)
