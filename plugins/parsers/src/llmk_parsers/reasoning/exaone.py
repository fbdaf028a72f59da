"""Reasoning of EXAONE Deep and EXAONE 4: ``<thought>`` or think tags."""

from __future__ import annotations

from llmk_parsers.think_tags import ThinkTags


class Exaone(ThinkTags):
    """Tags of both generations, off unless ``enable_thinking`` is on or the template opened a block."""

    OPEN = ("<think>", "<thought>")
    CLOSE = ("</think>", "</thought>")
    SWITCHES = ("enable_thinking",)
    THINKS = False
