"""Tool calls as a list of Python calls, ``[name(key=value), …]``: Llama 3.2, ToolACE and others."""

from __future__ import annotations

from typing import ClassVar

from llmk_parsers.call_examples import PYTHON_NOW, PYTHON_SAY, PYTHON_WEATHER
from llmk_parsers.python_calls import PythonCalls
from llmk_parsers.python_writer import PythonWriter


class Pythonic(PythonCalls):
    """A list at the start of a line, also behind the tag that Llama 3.2 writes."""

    PAIRS: ClassVar = {"<|python_tag|>": ""}
    LIST_STARTS_LINE = True


WRITER = PythonWriter()

EXAMPLES = (
    f"[{PYTHON_WEATHER}]",
    f"I look.\n[{PYTHON_WEATHER}, {PYTHON_SAY}]\nDone.",
    f"<|python_tag|>[{PYTHON_NOW}]",
)
