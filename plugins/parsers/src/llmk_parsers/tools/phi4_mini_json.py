"""Tool calls as a list of objects behind ``functools``, or between markers: Phi-4-mini, FireFunction."""

from __future__ import annotations

from typing import ClassVar

from llmk_parsers.call_examples import NOW, SAY, WEATHER
from llmk_parsers.call_regions import CallRegions
from llmk_parsers.json_writer import JsonWriter

_OPEN = "functools["


class Phi4MiniJson(CallRegions):
    """Either form: the model's own template has the markers, others the word."""

    PAIRS: ClassVar = {_OPEN: "", "<|tool_call|>": "<|/tool_call|>"}


WRITER = JsonWriter(trigger=_OPEN, markers=(_OPEN,), before=_OPEN, separator=", ", after="]")
MARKED_WRITER = JsonWriter(
    trigger="<|tool_call|>",
    markers=("<|tool_call|>", "<|/tool_call|>"),
    before="<|tool_call|>[",
    separator=", ",
    after="]<|/tool_call|>",
)

EXAMPLES = (
    f"I look.\nfunctools[{WEATHER}]",
    f"functools[{WEATHER}, {SAY}]\nDone.",
    f"functools[\n  {NOW},\n  {SAY}\n]",
    f"<|tool_call|>[{WEATHER}, {SAY}]<|/tool_call|>\nDone.",
    f"<|tool_call|>[\n  {NOW},\n  {SAY}\n]<|/tool_call|>",
)
