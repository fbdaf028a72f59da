"""Calls as Qwen3-Coder writes them: Step 3.5."""

from __future__ import annotations

from llmk_parsers.tools import qwen3_coder


class Step3p5(qwen3_coder.Qwen3Coder):
    """See the base class."""


WRITER = qwen3_coder.WRITER
