"""Tool calls as a list of objects between ``<tool_calls>`` and ``</tool_calls>``: Hunyuan-A13B."""

from __future__ import annotations

from typing import ClassVar

from llmk.api import ParserContext
from llmk_parsers.json_writer import JsonWriter
from llmk_parsers.tools.jamba import Jamba

_ASSISTANT = "助手："
"""The role, which the model may write before its answer."""


class HunyuanA13B(Jamba):
    """What looks like a call in a think block is text."""

    VERBATIM: ClassVar = {"<think>": "</think>"}

    def __init__(self, context: ParserContext) -> None:
        super().__init__(context)
        self._state = self._role

    def _role(self) -> bool:
        if len(self._text) < len(_ASSISTANT) and _ASSISTANT.startswith(self._text) and not self._ended:
            return False
        if self._text.startswith(_ASSISTANT):
            self._at = len(_ASSISTANT)
        self._state = self._content
        return True


WRITER = JsonWriter(
    trigger="<tool_calls>",
    markers=("<tool_calls>", "</tool_calls>"),
    before="<tool_calls>[",
    separator=", ",
    after="]</tool_calls>",
)
