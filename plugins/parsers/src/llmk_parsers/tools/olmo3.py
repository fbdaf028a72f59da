"""Tool calls as lines of Python calls between ``<function_calls>`` and ``</function_calls>``: Olmo 3."""

from __future__ import annotations

from typing import ClassVar

from llmk_parsers.call_examples import PYTHON_NOW, PYTHON_SAY, PYTHON_WEATHER
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

EXAMPLES = (
    f"<function_calls>{PYTHON_WEATHER}\n{PYTHON_SAY}</function_calls>",
    f"I look.\n<function_calls>\n{PYTHON_NOW}\n</function_calls>\nDone.",
    "<function_calls>f(a=null, b=true)</function_calls>",
)
