"""Reasoning of Ling 3: think tags, on unless ``thinking`` or ``enable_thinking`` is off."""

from __future__ import annotations

from llmk.api import ParserContext
from llmk_parsers.think_tags import ThinkTags


class Ling3(ThinkTags):
    """Think tags of a hybrid model, of whose options either turns reasoning on."""

    SWITCHES = ("thinking", "enable_thinking")
    STRIP = True

    def _switch(self, context: ParserContext) -> bool:
        if context.thinking is not None:
            return context.thinking
        given = [context.template_options[name] for name in self.SWITCHES if name in context.template_options]
        return any(given) if given else self.THINKS
