"""Examples for the conformance kit: answers in the dialect, and what they mean. Add what real models write."""

from __future__ import annotations

from llmk_testing.parser_example import ParserExample

BRACKETS = (
    ParserExample(
        text='Let me see: [[call weather {"city": "Oslo", "days": [1, 2]}]] Done.',
        content="Let me see:  Done.",
        calls=[("weather", {"city": "Oslo", "days": [1, 2]})],
    ),
    ParserExample(
        text='[[call first {}]][[call second {"a": {"b": "]"}}]]',
        calls=[("first", {}), ("second", {"a": {"b": "]"}})],
    ),
    ParserExample(
        text="[[call no json]] [[call 1 {}]] [[call a [1]]] [[call never_ended {",
        content="[[call no json]] [[call 1 {}]] [[call a [1]]] [[call never_ended {",
    ),
)
