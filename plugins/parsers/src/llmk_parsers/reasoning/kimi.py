"""Reasoning of Kimi-VL Thinking and Kimi k1.5: ``◁think▷`` and ``◁/think▷``."""

from __future__ import annotations

from llmk_parsers.think_tags import ThinkTags

EXAMPLES = (
    "◁think▷A cat.◁/think▷The picture shows a cat.",
    "A cat.",
)
"""Answers as models write them, for the conformance kit."""


class Kimi(ThinkTags):
    """Tags of triangles, which the model writes itself."""

    OPEN = ("◁think▷",)
    CLOSE = ("◁/think▷",)
    THINKS = False
