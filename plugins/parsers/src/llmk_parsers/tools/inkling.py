"""Tool calls of Inkling: messages with ``{"name": …, "args": {…}}``."""

from __future__ import annotations

from typing import ClassVar

from llmk.api import ParserContext
from llmk_parsers.call_object import CallObject
from llmk_parsers.call_reader import CallReader
from llmk_parsers.call_regions import CallRegions
from llmk_parsers.json_writer import JsonWriter
from llmk_parsers.piped import Piped
from llmk_parsers.reasoning import inkling
from llmk_parsers.sections import Kind

_OPEN, _CLOSE = "<|content_invoke_tool_json|>", "<|end_message|>"
WRITER = JsonWriter(
    trigger=_OPEN,
    markers=(_OPEN, _CLOSE, "<|message_model|>"),
    opening=f'{_OPEN}{{"name": ',
    middle=', "args": ',
    closing=f"}}{_CLOSE}",
    separator="<|message_model|>",
)


class _Messages(inkling.Inkling):
    """The texts and calls of messages. What is before the first marker may be text from which a reasoning parser has
    taken the markers."""

    FIRST: ClassVar[Kind] = "content"


class _Calls(CallRegions):
    PAIRS: ClassVar = {_OPEN: _CLOSE}
    DROPPED: ClassVar = ("<|content_model_end_sampling|>",)

    def _reader(self, mark: str) -> CallReader:
        return CallObject(self._calls, arguments=("args", "arguments", "parameters"))


class Inkling(Piped):
    """Calls in messages, and content. Where no reasoning parser has read it before, reasoning is dropped."""

    def __init__(self, context: ParserContext) -> None:
        super().__init__(_Messages(ParserContext()), _Calls(context))
