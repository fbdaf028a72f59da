"""Tool calls of Kimi K3: XTML elements, with the types of arguments in attributes."""

from __future__ import annotations

import re
from typing import ClassVar

from llmk.api import ParserContext
from llmk_parsers.piped import Piped
from llmk_parsers.reasoning import kimi_k3
from llmk_parsers.sections import Kind
from llmk_parsers.tag_calls import TagCalls, Tags
from llmk_parsers.tag_writer import TagWriter

_CALL_END, _ARGUMENT_END = "<|close|>call<|sep|>", "<|close|>argument<|sep|>"
WRITER = TagWriter(
    trigger=kimi_k3.TOOLS,
    markers=("<|open|>", "<|close|>", "<|sep|>"),
    before=kimi_k3.TOOLS,
    opening='<|open|>call tool="',
    after_name='" index="{number}"<|sep|>',
    key='<|open|>argument key="',
    after_key="",
    text_attribute='" type="string"<|sep|>',
    json_attribute='" type="{type}"<|sep|>',
    after_value=_ARGUMENT_END,
    closing=_CALL_END,
    separator="",
    after=kimi_k3.TOOLS_END,
    stops=(_ARGUMENT_END, _CALL_END, "<|open|>argument"),
)


class _Elements(kimi_k3.KimiK3):
    """The response and calls."""

    def _first(self, context: ParserContext) -> Kind:
        return "content"


class _Calls(TagCalls):
    """The elements ``call``."""

    MARKS: ClassVar[Tags] = Tags(
        lists=(kimi_k3.TOOLS,),
        list_ends=(kimi_k3.TOOLS_END,),
        call="<|open|>call",
        name=re.compile(r"""\s+tool="(?P<name>[^"<>]+)"(?:\s+index="\d*")?\s*"""),
        name_end="<|sep|>",
        call_end=_CALL_END,
        key="<|open|>argument",
        key_name=re.compile(r"""\s+key="(?P<name>[^"]+)"(?:\s+type="(?P<type>\w*)")?\s*"""),
        key_end="<|sep|>",
        value_end=_ARGUMENT_END,
        value_stops=("<|open|>argument", _CALL_END),
    )


class KimiK3(Piped):
    """Calls, and content. Where no reasoning parser has read it before, reasoning is dropped."""

    def __init__(self, context: ParserContext) -> None:
        super().__init__(_Elements(ParserContext()), _Calls(context))
