"""Tool calls as a list of Python calls, with or without ``<|python_start|>`` and ``<|python_end|>``: Llama 4."""

from __future__ import annotations

from typing import ClassVar

from llmk_parsers.python_calls import PythonCalls
from llmk_parsers.python_writer import PythonWriter


class Llama4Pythonic(PythonCalls):
    """A list at the start of a line or between the markers."""

    PAIRS: ClassVar = {"<|python_start|>": "<|python_end|>"}
    LIST_STARTS_LINE = True


WRITER = PythonWriter()
