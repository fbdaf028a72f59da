"""Reasoning of Ling 3: think tags, on unless ``thinking`` or ``enable_thinking`` is off."""

from __future__ import annotations

from llmk.api import ParserContext
from llmk_parsers.think_tags import ThinkTags

EXAMPLES = (
    "<think>Twelve plus thirty.</think>\n42",
    "The block is open.</think>Paris.",
    "<think>I look.</think><tool_call>find<arg_key>q</arg_key><arg_value>x</arg_value></tool_call>",
)
"""Answers as models write them, for the conformance kit."""


class Ling3(ThinkTags):
    """Think tags of a hybrid model, of whose options either turns reasoning on."""

    SWITCHES = ("thinking", "enable_thinking")
    STRIP = True

    def _switch(self, context: ParserContext) -> bool:
        if context.thinking is not None:
            return context.thinking
        given = [context.template_options[name] for name in self.SWITCHES if name in context.template_options]
        return any(given) if given else self.THINKS
