"""Examples for the conformance kit: answers in the dialect, and what they mean. Add what real models write."""

from __future__ import annotations

from llmk.api import ParserContext
from llmk_testing.parser_example import ParserExample

THOUGHTS = (
    ParserExample(
        text="[[think]]A city in the north. [No brackets] needed.[[/think]]Oslo.",
        reasoning="A city in the north. [No brackets] needed.",
        content="Oslo.",
    ),
    ParserExample(text="[[think]]\nHm.\n[[/think]]\n\nOslo.", reasoning="\nHm.\n", content="\n\nOslo."),
    ParserExample(text="First: [[think]]one[[/think]] and [[think]]two", reasoning="onetwo", content="First:  and "),
    ParserExample(text="[[think]][[/think]]Nothing to think about, [[thin", content="Nothing to think about, [[thin"),
    ParserExample(
        text="started by the prompt[[/think]]Oslo.",
        reasoning="started by the prompt",
        content="Oslo.",
        context=ParserContext(prompt_tail="[[think]]\n"),
    ),
)
