"""Reasoning of Hunyuan 3 and 4: think tags, for which ``reasoning_effort`` is the switch."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from llmk.api import ParserContext
from llmk_parsers.hunyuan_tags import PlainTags, without_suffix
from llmk_parsers.piped import Piped
from llmk_parsers.think_tags import ThinkTags


class HunyuanV3(Piped):
    """Tags with a suffix or without."""

    DEFAULT: ClassVar[str] = "no_think"
    """The effort if the request doesn't say."""

    def __init__(self, context: ParserContext) -> None:
        plain = replace(context, prompt_tail=without_suffix(context.prompt_tail))
        super().__init__(PlainTags(), _Think(plain, self.DEFAULT))


class HunyuanV4(HunyuanV3):
    """The same, on by default."""

    DEFAULT = "high"


class _Think(ThinkTags):
    """Tags that the template opens according to the effort."""

    CALLS = (("<tool_calls>", "</tool_calls>"),)
    CALL_STARTS = ("<tool_calls>\n<tool_call>", "<tool_calls><tool_call>")

    def __init__(self, context: ParserContext, default: str) -> None:
        self._default = default
        super().__init__(context)

    def _switch(self, context: ParserContext) -> bool:
        return context.template_options.get("reasoning_effort", self._default) not in (None, "none", "no_think")
