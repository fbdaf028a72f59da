"""Tool calls as JSON objects between ``<tool_call>`` and ``</tool_call>``: Hermes, Qwen2.5, Qwen3, QwQ and others."""

from __future__ import annotations

from typing import ClassVar

from llmk_parsers.call_examples import NOW, SAY, WEATHER
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

EXAMPLES = (
    f"I look.\n<tool_call>\n{WEATHER}\n</tool_call>",
    f"<tool_call>\n{NOW}\n</tool_call>\n<tool_call>\n{SAY}\n</tool_call>\nDone.",
    '<tool_call>{"arguments": {"text": "\\u00e9\\ud83d\\ude00 </tool_call>"}, "name": "say"}</tool_call>',
)
