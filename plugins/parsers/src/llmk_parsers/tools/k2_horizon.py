"""Tool calls of K2 Horizon: ``<ifm|tool_call>`` with pairs of keys and values, maybe with types."""

from __future__ import annotations

from llmk_parsers.tag_calls import ANYTHING, PLAIN, PLAIN_SO_FAR, TagCalls, Tags
from llmk_parsers.tag_writer import TagWriter

_LIST, _LIST_END = "<ifm|tool_calls>", "</ifm|tool_calls>"
WRITER = TagWriter(
    trigger=_LIST,
    markers=(
        *(_LIST, _LIST_END, "<ifm|tool_call>", "</ifm|tool_call>"),
        *("<ifm|arg_key>", "</ifm|arg_key>", "<ifm|arg_value>", "</ifm|arg_value>"),
    ),
    before=_LIST,
    opening="<ifm|tool_call>",
    after_name="\n",
    key="<ifm|arg_key>",
    after_key="</ifm|arg_key>\n<ifm|arg_value>",
    after_value="</ifm|arg_value>\n",
    closing="</ifm|tool_call>",
    after=_LIST_END,
    stops=("</ifm|arg_value>", "</ifm|tool_call>"),
)
EXAMPLES = (
    f"I look.{_LIST}<ifm|tool_call>find\n<ifm|arg_key>q</ifm|arg_key>\n<ifm|arg_value>x</ifm|arg_value>\n"
    f"</ifm|tool_call>{_LIST_END}",
    "<ifm|tool_call>a</ifm|tool_call><ifm|tool_call>b<ifm|arg_key>x</ifm|arg_key><ifm|arg_value>1"
    "</ifm|arg_value></ifm|tool_call>Done.",
)
"""Answers as models write them, for the conformance kit."""


class K2Horizon(TagCalls):
    """A line break after the name and between pairs is optional."""

    MARKS = Tags(
        lists=(_LIST,),
        list_ends=(_LIST_END,),
        call="<ifm|tool_call>",
        name=PLAIN,
        name_so_far=PLAIN_SO_FAR,
        name_end="<ifm|arg_key>",
        call_end="</ifm|tool_call>",
        key="<ifm|arg_key>",
        key_name=ANYTHING,
        key_end="</ifm|arg_key>",
        value="<ifm|arg_value>",
        value_end="</ifm|arg_value>",
        value_stops=("</ifm|tool_call>",),
    )
