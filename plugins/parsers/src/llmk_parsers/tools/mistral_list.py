"""Tool calls as a list of objects behind ``[TOOL_CALLS]``: Mistral, before version 11 of its tokenizer."""

from __future__ import annotations

from llmk_parsers.json_writer import JsonWriter
from llmk_parsers.tools.mistral import Mistral

_CALLS = "[TOOL_CALLS]"


class MistralList(Mistral):
    """Either form."""


WRITER = JsonWriter(trigger=_CALLS, markers=(_CALLS,), before=f"{_CALLS}[", separator=", ", after="]")
