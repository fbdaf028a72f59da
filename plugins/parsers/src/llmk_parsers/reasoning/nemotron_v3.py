"""Reasoning of Nemotron 3: think tags, on unless ``enable_thinking`` is off."""

from __future__ import annotations

from llmk_parsers.content_needed import ContentNeeded


class NemotronV3(ContentNeeded):
    """Think tags of a hybrid model."""

    SWITCHES = ("enable_thinking",)
    STRIP = True
