"""Calls as ``<invoke name="…">`` with ``<parameter name="…">`` tags: MiniMax-M2."""

from __future__ import annotations

from llmk_parsers.tag_calls import TagCalls, Tags
from llmk_parsers.tag_writer import TagWriter


class MiniMaxM2(TagCalls):
    """Calls of unknown tools are dropped: nothing can run them, and their tags are no answer."""

    STRIP = True
    MARKS = Tags(
        lists=("<minimax:tool_call>",),
        list_ends=("</minimax:tool_call>",),
        bare=False,
        call="<invoke",
        call_end="</invoke>",
        key="<parameter",
        value_end="</parameter>",
        value_stops=("<parameter name=", "</invoke>"),
        unknown="drop",
    )


WRITER = TagWriter(
    trigger="<minimax:tool_call>",
    markers=("<minimax:tool_call>", "</minimax:tool_call>"),
    before="<minimax:tool_call>\n",
    opening='<invoke name="',
    after_name='">\n',
    key='<parameter name="',
    after_key='">',
    after_value="</parameter>\n",
    closing="</invoke>",
    after="\n</minimax:tool_call>",
    stops=("</parameter>", "<parameter name=", "</invoke>"),
)
