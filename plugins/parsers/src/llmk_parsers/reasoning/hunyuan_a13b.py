"""Reasoning of Hunyuan A13B: think tags and answer tags, each on lines of their own."""

from __future__ import annotations

from llmk_parsers.answer_tags import AnswerTags


class HunyuanA13B(AnswerTags):
    """The model writes the tags itself; what has none is content."""

    THINKS = False
    TRIM = True
    CALLS = (("<tool_calls>", "</tool_calls>"),)
    CALL_STARTS = ("<tool_calls>[",)

    def _think(self, text: str) -> None:
        if text:
            first = self._fresh and not self._blank
            super()._think(text.removeprefix("\n") if first else text)
