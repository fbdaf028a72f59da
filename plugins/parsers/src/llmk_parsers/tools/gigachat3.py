"""A tool call as an object behind ``<|function_call|>``: GigaChat 3 and 3.1."""

from __future__ import annotations

from typing import ClassVar

from llmk_parsers.call_regions import CallRegions
from llmk_parsers.json_writer import JsonWriter

_OPEN = "<|function_call|>"


class GigaChat3(CallRegions):
    """Version 3 writes a message of the role ``function call`` instead of the marker."""

    PAIRS: ClassVar = {_OPEN: "</s>", "function call<|role_sep|>": "</s>"}
    DROPPED = ("<|message_sep|>",)


WRITER = JsonWriter(trigger=_OPEN, markers=(_OPEN,), opening=f'{_OPEN}{{"name": ')
