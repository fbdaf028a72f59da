"""Reasoning of Olmo 3 Think: think tags, of which the template writes the first."""

from __future__ import annotations

from llmk_parsers.think_tags import ThinkTags

EXAMPLES = (
    "<think>\nTwelve plus thirty.\n</think>\n\n42",
    "<think></think>Nothing was thought.",
)
"""Answers as models write them, for the conformance kit."""


class Olmo3(ThinkTags):
    """Think tags of a model that always thinks."""
