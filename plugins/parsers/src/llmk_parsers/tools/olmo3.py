"""Tool calls as lines of Python calls between ``<function_calls>`` and ``</function_calls>``: Olmo 3."""

from __future__ import annotations

from typing import ClassVar

from llmk_parsers.python_calls import PythonCalls
from llmk_parsers.python_writer import PythonWriter


class Olmo3(PythonCalls):
    """Lines, or a list."""

    PAIRS: ClassVar = {"<function_calls>": "</function_calls>"}


WRITER = PythonWriter(
    trigger="<function_calls>",
    markers=("<function_calls>", "</function_calls>"),
    before="<function_calls>",
    separator="\n",
    after="</function_calls>",
)
