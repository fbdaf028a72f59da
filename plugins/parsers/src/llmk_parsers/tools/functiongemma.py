"""Calls as Gemma 4 writes them, with other markers: FunctionGemma."""

from __future__ import annotations

from llmk_parsers.quote_writer import QuoteMarks, QuoteWriter
from llmk_parsers.tools import gemma4


class FunctionGemma(gemma4.Gemma4):
    """See the base class."""

    MARKS = QuoteMarks(
        call="<start_function_call>", list_ends=("<end_function_call>",), fillers=("}", ")"), quote="<escape>"
    )


WRITER = QuoteWriter(FunctionGemma.MARKS, FunctionGemma.MARKS.call)
