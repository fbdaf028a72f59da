"""Tool calls as a list of objects behind ``functools``: FireFunction, and Phi-4-mini by the templates of others."""

from __future__ import annotations

from typing import ClassVar

from llmk_parsers.call_regions import CallRegions
from llmk_parsers.json_writer import JsonWriter

_OPEN = "functools["


class Phi4MiniJson(CallRegions):
    """Either form: the model's own template has the markers, others the word."""

    PAIRS: ClassVar = {_OPEN: "", "<|tool_call|>": "<|/tool_call|>"}


WRITER = JsonWriter(trigger=_OPEN, markers=(_OPEN,), before=_OPEN, separator=", ", after="]")
