"""Tool calls as JSON objects between ``<tool_call>`` and ``</tool_call>``: Hermes, Qwen2.5, Qwen3, QwQ and others."""

from __future__ import annotations

from typing import ClassVar

from llmk_parsers.call_regions import CallRegions
from llmk_parsers.json_writer import JsonWriter

_OPEN = "<tool_call>"
_CLOSE = "</tool_call>"


class Hermes(CallRegions):
    """Any number of objects per pair of tags, in a list or not."""

    PAIRS: ClassVar = {_OPEN: _CLOSE}


WRITER = JsonWriter(
    trigger=_OPEN,
    markers=(_OPEN, _CLOSE),
    opening=f'{_OPEN}\n{{"name": ',
    closing=f"}}\n{_CLOSE}",
)
