"""Examples for the conformance kit: answers in the dialects of the parsers, and what they mean."""

from __future__ import annotations

from llmk.api import ParserContext
from llmk_testing.parser_example import ParserExample

_NO_CALLS = """✿FUNCTION✿: bad
✿ARGS✿: {"a": oops} ✿FUNCTION✿:\x20
✿FUNCTION✿: list
✿ARGS✿: [1]
✿FUNCTION✿: cut
✿ARGS✿: {"a"""

CALLS = (
    ParserExample(
        text='✿FUNCTION✿: find\n✿ARGS✿: {"text": "café", "most": 3}\n✿FUNCTION✿: now\n✿ARGS✿: {}',
        calls=[("find", {"text": "café", "most": 3}), ("now", {})],
    ),
    ParserExample(
        text='Let me see.\n✿FUNCTION✿: get_weather\n✿ARGS✿: {"city": "Oslo", "days": [1, 2]}',
        content="Let me see.\n",
        calls=[("get_weather", {"city": "Oslo", "days": [1, 2]})],
    ),
    ParserExample(
        text='✿FUNCTION✿: first\n✿ARGS✿: {}\n✿FUNCTION✿: second-one\n✿ARGS✿: {"a": {"b": "}\\n✿ARGS✿", "c": -0.5e3}}\n',
        calls=[("first", {}), ("second-one", {"a": {"b": "}\n✿ARGS✿", "c": -500.0}})],
    ),
    ParserExample(
        text='✿FUNCTION✿: look\n✿ARGS✿: {"q": "\\u00f8l"}\n\nDone ✿ and dusted. ✿FUNC',
        content="\nDone ✿ and dusted. ✿FUNC",
        calls=[("look", {"q": "øl"})],
    ),
    ParserExample(text=_NO_CALLS, content=_NO_CALLS),
    ParserExample(
        text='✿FUNCTION✿: ✿FUNCTION✿: again\n✿ARGS✿: {"ok": true}',
        content="✿FUNCTION✿: ",
        calls=[("again", {"ok": True})],
    ),
)

THOUGHTS = (
    ParserExample(
        text="<|begin_of_thought|>\n\nA city in the north.\n\nOslo < Bergen?\n\n<|end_of_thought|>\n\n"
        "<|begin_of_solution|>\n\n**Oslo**\n\nIt is.\n\n<|end_of_solution|>",
        reasoning="A city in the north.\n\nOslo < Bergen?",
        content="**Oslo**\n\nIt is.",
    ),
    ParserExample(
        text="<|begin_of_thought|>A city.<|end_of_thought|>Oslo.\n\n",
        reasoning="A city.",
        content="Oslo.\n\n",
    ),
    ParserExample(
        text="First:\n\n<|begin_of_thought|> one <|end_of_thought|> and <|begin_of_thought|>two\n",
        reasoning=" one two\n",
        content="First:\n\n and ",
    ),
    ParserExample(
        text="\n\nStarted by the prompt.\n<|end_of_thought|>\n"
        "<|begin_of_solution|>\nOslo.\n\n<|end_of_solution|>\n Bye.\n",
        reasoning="Started by the prompt.",
        content="Oslo. Bye.\n",
        context=ParserContext(prompt_tail="<|im_start|>assistant\n<|begin_of_thought|>\n\n"),
    ),
    ParserExample(
        text="Oslo.\n\n<|end_of_solution|>",
        content="Oslo.",
        context=ParserContext(
            prompt_tail="<|begin_of_thought|>\n\n<|end_of_thought|>\n\n<|begin_of_solution|>\n\n", thinking=False
        ),
    ),
    ParserExample(
        text="No section: <|end_of_thought|> <|begin_of_though <|end_of_solution|> <|begin_of_",
        content="No section: <|end_of_thought|> <|begin_of_though <|end_of_solution|> <|begin_of_",
    ),
)
