"""Calls as Qwen3-Coder writes them, with all white space around them as content: Step 5."""

from __future__ import annotations

from llmk_parsers.tools import qwen3_coder


class Step5(qwen3_coder.Qwen3Coder):
    """See the base class."""

    STRIP = False


WRITER = qwen3_coder.WRITER
