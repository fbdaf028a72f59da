"""Calls as Qwen3-Coder writes them, between tags of its own: Seed-OSS."""

from __future__ import annotations

from llmk_parsers.tag_calls import TagCalls
from llmk_parsers.tools import qwen3_coder


class SeedOss(TagCalls):
    """See :class:`~llmk_parsers.tools.qwen3_coder.Qwen3Coder`."""

    STRIP = True
    MARKS = qwen3_coder.function_tags("<seed:tool_call>", "</seed:tool_call>")


WRITER = qwen3_coder.function_writer(SeedOss.MARKS)
