"""Reasoning of Apertus: ``<|inner_prefix|>`` and ``<|inner_suffix|>``."""

from __future__ import annotations

from llmk_parsers.think_tags import ThinkTags


class Apertus(ThinkTags):
    """Special tokens, which the model writes itself. A call may follow inside of the block."""

    OPEN = ("<|inner_prefix|>",)
    CLOSE = ("<|inner_suffix|>",)
    THINKS = False
    ANYWHERE = True
    CALLS = (("<|tools_prefix|>", "<|tools_suffix|>"),)
    CALL_STARTS = ("<|tools_prefix|>",)
