"""Tool calls as a list of Python calls, with or without ``<|python_start|>`` and ``<|python_end|>``: Llama 4."""

from __future__ import annotations

from typing import ClassVar

from llmk_parsers.call_examples import PYTHON_NOW, PYTHON_SAY, PYTHON_WEATHER
from llmk_parsers.python_calls import PythonCalls
from llmk_parsers.python_writer import PythonWriter


class Llama4Pythonic(PythonCalls):
    """A list at the start of a line or between the markers."""

    PAIRS: ClassVar = {"<|python_start|>": "<|python_end|>"}
    LIST_STARTS_LINE = True


WRITER = PythonWriter()

EXAMPLES = (
    f"[{PYTHON_WEATHER}, {PYTHON_SAY}]",
    f"<|python_start|>[{PYTHON_NOW}, {PYTHON_WEATHER}]<|python_end|>",
    f"I look.\n[{PYTHON_SAY}]\nDone.",
)
