"""Tool calls as bare JSON objects, between ``<|python_start|>`` and ``<|python_end|>`` or not: Llama 4."""

from __future__ import annotations

from llmk_parsers.tools import llama3_json
from llmk_parsers.tools.llama3_json import Llama3Json


class Llama4Json(Llama3Json):
    """As Llama 3, with other markers."""

    TAG = "<|python_start|>"
    END_TAGS = ("<|python_end|>",)


WRITER = llama3_json.WRITER
