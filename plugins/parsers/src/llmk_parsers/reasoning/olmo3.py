"""Reasoning of Olmo 3 Think: think tags, of which the template writes the first."""

from __future__ import annotations

from llmk_parsers.think_tags import ThinkTags


class Olmo3(ThinkTags):
    """Think tags of a model that always thinks."""
