"""Tool calls as a list of objects between ``<|tool_call|>`` and ``<|/tool_call|>``: Phi-4-mini."""

from __future__ import annotations

from llmk_parsers.json_writer import JsonWriter
from llmk_parsers.tools.phi4_mini_json import Phi4MiniJson

_OPEN, _CLOSE = "<|tool_call|>", "<|/tool_call|>"


class Phi4Mini(Phi4MiniJson):
    """Either form."""


WRITER = JsonWriter(trigger=_OPEN, markers=(_OPEN, _CLOSE), before=f"{_OPEN}[", separator=", ", after=f"]{_CLOSE}")
