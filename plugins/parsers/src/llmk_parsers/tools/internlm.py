"""Tool calls as objects between ``<|action_start|><|plugin|>`` and ``<|action_end|>``: InternLM 2 and 3, Intern-S1."""

from __future__ import annotations

from typing import ClassVar

from llmk_parsers.call_regions import CallRegions
from llmk_parsers.json_writer import JsonWriter

_OPEN, _PLUGIN, _CLOSE = "<|action_start|>", "<|plugin|>", "<|action_end|>"


class InternLM(CallRegions):
    """Code for the interpreter, which has another inner marker, is text."""

    PAIRS: ClassVar = {_OPEN: _CLOSE}
    INNER = (_PLUGIN,)


WRITER = JsonWriter(
    trigger=_OPEN,
    markers=(_OPEN, _PLUGIN, _CLOSE),
    opening=f'{_OPEN}{_PLUGIN}{{"name": ',
    middle=', "parameters": ',
    closing=f"}}{_CLOSE}",
    separator="\n",
)
