"""Tool calls of Beam: messages of a format like harmony, with ``<rfl:parameter name="…">`` tags."""

from __future__ import annotations

import re

from llmk.api import ParserContext
from llmk_parsers.beam_channels import BeamChannels
from llmk_parsers.channels import ChannelReasoning, Kind
from llmk_parsers.piped import Piped
from llmk_parsers.tag_calls import NAMED, TagCalls, Tags
from llmk_parsers.tag_writer import TagWriter

_START, _HEADER = "<|start|>assistant", "<|channel|>analysis <|constrain|>xml<|message|>"
WRITER = TagWriter(
    trigger="",
    markers=("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|call|>"),
    opening=" to=",
    after_name=_HEADER,
    key='<rfl:parameter name="',
    after_key='">\n',
    after_value="\n</rfl:parameter>",
    closing="<|call|>",
    separator=_START,
    stops=("</rfl:parameter>", "<rfl:parameter name=", "<|call|>", "<|end|>"),
)


class _Bodies(BeamChannels, ChannelReasoning):
    """Answers without headers, and calls with theirs."""

    JOINT = ""

    def _kind_of(self, header: str) -> Kind:
        kind = super()._kind_of(header)
        return "hidden" if kind == "reasoning" else kind


class _Calls(TagCalls):
    """The calls, each from its header to the end of its message."""

    MARKS = Tags(
        list_ends=("<|end|>",),
        call=_START,
        name=re.compile(r".*\bto=(?P<name>[^\s<]+).*"),
        name_so_far=re.compile(r"[^\n]*"),
        name_end="<|message|>",
        call_end="<|call|>",
        key="<rfl:parameter",
        key_name=NAMED,
        value_end="</rfl:parameter>",
        value_stops=("<rfl:parameter name=", "<|call|>"),
        trim=True,
    )


class Beam(Piped):
    """Calls in messages, and content. Where no reasoning parser has read it before, reasoning is dropped."""

    def __init__(self, context: ParserContext) -> None:
        super().__init__(_Bodies(ParserContext()), _Calls(context))
