"""Reasoning of Kimi-VL Thinking and Kimi k1.5: ``◁think▷`` and ``◁/think▷``."""

from __future__ import annotations

from llmk_parsers.think_tags import ThinkTags


class Kimi(ThinkTags):
    """Tags of triangles, which the model writes itself."""

    OPEN = ("◁think▷",)
    CLOSE = ("◁/think▷",)
    THINKS = False
