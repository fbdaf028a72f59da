"""Calls as Qwen3-Coder writes them, with values as they are: MiMo."""

from __future__ import annotations

from dataclasses import replace

from llmk_parsers.tools import qwen3_coder


class MiMo(qwen3_coder.Qwen3Coder):
    """Line breaks around a value belong to it."""

    MARKS = replace(qwen3_coder.Qwen3Coder.MARKS, trim=False)


WRITER = replace(qwen3_coder.WRITER, after_key=">", after_value="</parameter>\n")
