"""Reasoning of DeepSeek-V3.1 and V3.2: think tags, off unless the option ``thinking`` is on."""

from __future__ import annotations

from llmk_parsers.think_tags import ThinkTags

EXAMPLES = (
    "<think>Twelve plus thirty.</think>42",
    "Nothing to think about, as 3 < 4.",
    '<think>I look.<｜DSML｜tool_calls>\n<｜DSML｜invoke name="find">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>',
)
"""Answers as models write them, for the conformance kit."""


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
