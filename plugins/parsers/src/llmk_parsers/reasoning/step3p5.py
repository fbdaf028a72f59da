"""Reasoning of Step 3.5: think tags with line breaks of their own."""

from __future__ import annotations

from llmk_parsers.think_tags import ThinkTags


class Step3p5(ThinkTags):
    """Think tags of a model that always thinks; the line break before the closing tag belongs to it."""

    STRIP = True
