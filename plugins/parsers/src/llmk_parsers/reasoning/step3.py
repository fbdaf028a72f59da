"""Reasoning of Step 3: think tags, of which the template writes the first."""

from __future__ import annotations

from llmk_parsers.think_tags import ThinkTags


class Step3(ThinkTags):
    """Think tags of a model that always thinks."""

    CALLS = (("<｜tool_calls_begin｜>", "<｜tool_calls_end｜>"),)
    CALL_STARTS = ("<｜tool_calls_begin｜>",)
