"""Tool calls as a list of objects behind ``[TOOL_CALLS]``: Mistral, before version 11 of its tokenizer."""

from __future__ import annotations

from llmk_parsers.call_examples import NOW, SAY, WEATHER
from llmk_parsers.json_writer import JsonWriter
from llmk_parsers.tools.mistral import Mistral

_CALLS = "[TOOL_CALLS]"


class MistralList(Mistral):
    """Either form."""


WRITER = JsonWriter(trigger=_CALLS, markers=(_CALLS,), before=f"{_CALLS}[", separator=", ", after="]")

EXAMPLES = (
    f"{_CALLS}[{WEATHER}, {SAY}]",
    f"I look.{_CALLS} [{NOW}]",
)
