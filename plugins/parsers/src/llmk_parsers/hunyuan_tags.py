"""The tags of Hunyuan 3 and 4, whose names have a suffix in released checkpoints: ``<tool_call:opensource>``."""

from __future__ import annotations

import re

from llmk.api import TextDelta
from llmk_parsers.machine import Machine

_TAG = re.compile(r"(</?(?:think|tool_calls?|tool_sep|arg_key|arg_value)):[\w.-]{1,32}>")
_TAIL = re.compile(r"</?[a-z_]{0,10}(?::[\w.-]{0,32})?")
_LONGEST = 48


def without_suffix(text: str) -> str:
    """``text`` with plain tags."""
    return _TAG.sub(r"\1>", text)


class PlainTags(Machine):
    """Passes text on with plain tags."""

    def __init__(self) -> None:
        super().__init__()
        self._state = self._pass_on

    def _pass_on(self) -> bool:
        end = len(self._text)
        start = max(self._text.rfind("<"), end - _LONGEST)
        if not self._ended and self._text.startswith("<", start) and _TAIL.fullmatch(self._text, start):
            end = start
        text = without_suffix(self._text[self._at : end])
        self._at = end
        if text:
            self._out.append(TextDelta(text))
        return False
