"""Reasoning of DeepSeek-V3.1 to V4.1: think tags, with the option ``thinking``, off by default before V4."""

from __future__ import annotations

from llmk.api import ParserContext
from llmk_parsers.think_tags import ThinkTags


class DeepSeekV3(ThinkTags):
    """Think tags of a hybrid model. Its calls end a block that the model forgot to close."""

    SWITCHES = ("thinking", "enable_thinking")
    THINKS = False
    CALLS = (
        *ThinkTags.CALLS,
        ("<｜DSML｜function_calls>", "</｜DSML｜function_calls>"),
        ("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>"),
        ("<｜DSML｜ calls>", "</｜DSML｜ calls>"),
    )
    CALL_STARTS = ("<｜tool▁calls▁begin｜>", "<｜DSML｜")


class DeepSeekV4(DeepSeekV3):
    """The same, on by default: DeepSeek-V4 and V4.1."""

    THINKS = True
    STRIP = True

    def _switch(self, context: ParserContext) -> bool:
        if context.thinking is not None:
            return context.thinking
        options = context.template_options
        given = [bool(options[name]) for name in self.SWITCHES if name in options]
        return (any(given) if given else self.THINKS) and options.get("reasoning_effort") != "none"
