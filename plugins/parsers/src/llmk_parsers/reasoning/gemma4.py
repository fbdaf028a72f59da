"""Reasoning of Gemma 4: ``<|channel>thought`` and ``<channel|>``."""

from __future__ import annotations

from collections.abc import Callable

from llmk.api import ParserContext
from llmk_parsers.think_tags import ThinkTags

_NAME = "thought"


class Gemma4(ThinkTags):
    """Special tokens, which the model writes itself if it thinks. The channel's name is dropped."""

    OPEN = ("<|channel>",)
    CLOSE = ("<channel|>",)
    THINKS = False
    ANYWHERE = True
    CALLS = (("<|tool_call>", "<tool_call|>"),)
    CALL_STARTS = ("<|tool_call>",)
    STRIP = True

    def _thinks(self, context: ParserContext) -> bool:
        return context.prompt_tail.rstrip().endswith("<|channel>thought") or super()._thinks(context)

    def _enter(self, state: Callable[[], bool]) -> None:
        super()._enter(self._name if state == self._reasoning else state)

    def _name(self) -> bool:
        text = self._text[self._at : self._at + len(_NAME) + 1]
        if _NAME.startswith(text) and not self._ended:
            return False
        if text.startswith((f"{_NAME}\n", f"{_NAME}<")) or text == _NAME:
            self._at += len(_NAME) + text.endswith("\n")
        self._state = self._reasoning
        return True
