"""Reasoning of Granite 4 with think tags, on unless ``enable_thinking`` is off."""

from __future__ import annotations

from llmk_parsers.content_needed import ContentNeeded


class GraniteThinking(ContentNeeded):
    """Think tags of a hybrid model. Line breaks after the closing tag belong to it."""

    SWITCHES = ("enable_thinking", "thinking")
    LEAD = "\n"
    STRIP = True
