"""Calls as Qwen3-Coder writes them: MiMo."""

from __future__ import annotations

from llmk_parsers.tools import qwen3_coder


class MiMo(qwen3_coder.Qwen3Coder):
    """See the base class."""


WRITER = qwen3_coder.WRITER

EXAMPLES = qwen3_coder.EXAMPLES
