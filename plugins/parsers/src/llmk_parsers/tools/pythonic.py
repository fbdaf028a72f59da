"""Tool calls as a list of Python calls, ``[name(key=value), …]``: Llama 3.2, ToolACE and others."""

from __future__ import annotations

from typing import ClassVar

from llmk_parsers.python_calls import PythonCalls
from llmk_parsers.python_writer import PythonWriter


class Pythonic(PythonCalls):
    """A list at the start of a line, also behind the tag that Llama 3.2 writes."""

    PAIRS: ClassVar = {"<|python_tag|>": ""}
    LIST_STARTS_LINE = True


WRITER = PythonWriter()
