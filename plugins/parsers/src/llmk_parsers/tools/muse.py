"""Tool calls of Muse and Muse Glimmer: messages to a tool, with ``<atem:invoke name="…">`` tags."""

from __future__ import annotations

from llmk.api import ParserContext
from llmk_parsers.channels import ChannelReasoning, Kind
from llmk_parsers.muse_channels import MuseChannels
from llmk_parsers.piped import Piped
from llmk_parsers.tag_calls import TagCalls, Tags
from llmk_parsers.tag_writer import TagWriter

_LIST, _LIST_END = "<atem:function_calls>", "</atem:function_calls>"
WRITER = TagWriter(
    trigger=_LIST,
    markers=(_LIST, _LIST_END),
    before=f"{_LIST}\n",
    opening='<atem:invoke name="',
    after_name='">\n',
    key='<atem:parameter name="',
    after_key='">',
    after_value="</atem:parameter>\n",
    closing="</atem:invoke>",
    after=f"\n{_LIST_END}",
    stops=("</atem:parameter>", "<atem:parameter name=", "</atem:invoke>"),
)


class _Bodies(MuseChannels, ChannelReasoning):
    """The bodies of messages to users and tools, without headers."""

    JOINT = ""

    def _kind_of(self, header: str) -> Kind:
        kind = super()._kind_of(header)
        return "content" if kind == "call" else "hidden" if kind == "reasoning" else kind


class _Calls(TagCalls):
    """The calls in the body of a message."""

    MARKS = Tags(
        lists=(_LIST,),
        list_ends=(_LIST_END,),
        bare=False,
        call="<atem:invoke",
        call_end="</atem:invoke>",
        key="<atem:parameter",
        value_end="</atem:parameter>",
        value_stops=("<atem:parameter name=", "</atem:invoke>"),
    )


class Muse(Piped):
    """Calls in messages, and content. Where no reasoning parser has read it before, reasoning is dropped."""

    def __init__(self, context: ParserContext) -> None:
        super().__init__(_Bodies(ParserContext()), _Calls(context))
