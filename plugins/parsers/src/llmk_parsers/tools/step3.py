"""Calls as ``<steptml:invoke name="…">`` with ``<steptml:parameter name="…">`` tags: Step-3."""

from __future__ import annotations

from llmk_parsers.tag_calls import TagCalls, Tags
from llmk_parsers.tag_writer import TagWriter

_LIST, _LIST_END = "<｜tool_calls_begin｜>", "<｜tool_calls_end｜>"
_CALL, _CALL_END, _SEPARATOR = "<｜tool_call_begin｜>", "<｜tool_call_end｜>", "<｜tool_sep｜>"


class Step3(TagCalls):
    """The call's own marker and type, ``function``, are optional."""

    STRIP = True
    MARKS = Tags(
        lists=(_LIST,),
        list_ends=(_LIST_END,),
        fillers=(_CALL, _CALL_END, _SEPARATOR, "function"),
        bare=False,
        call="<steptml:invoke",
        call_end="</steptml:invoke>",
        key="<steptml:parameter",
        value_end="</steptml:parameter>",
        value_stops=("<steptml:parameter name=", "</steptml:invoke>"),
    )


WRITER = TagWriter(
    trigger=_LIST,
    markers=(_LIST, _LIST_END, _CALL, _CALL_END, _SEPARATOR),
    before=f"{_LIST}\n",
    opening=f'{_CALL}function{_SEPARATOR}<steptml:invoke name="',
    after_name='">\n',
    key='<steptml:parameter name="',
    after_key='">',
    after_value="</steptml:parameter>\n",
    closing=f"</steptml:invoke>{_CALL_END}",
    after=f"\n{_LIST_END}",
    stops=("</steptml:parameter>", "<steptml:parameter name=", "</steptml:invoke>"),
)
