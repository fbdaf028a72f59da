"""Examples for the conformance kit: answers with calls in the dialect of Qwen-Agent, and what they mean."""

from __future__ import annotations

from llmk_testing.parser_example import ParserExample

FLOWERS = (
    ParserExample(
        text='Let me see.\n✿FUNCTION✿: weather\n✿ARGS✿: {"city": "Oslo", "days": [1, 2]}\n✿RETURN✿: Wait ✿ please.',
        content="Let me see.\nWait ✿ please.",
        calls=[("weather", {"city": "Oslo", "days": [1, 2]})],
    ),
    ParserExample(
        text='✿FUNCTION✿: files.read\n✿ARGS✿: {}\n✿FUNCTION✿: note\n✿ARGS✿: {"a": {"b": "} \\" ✿FUNCTION✿: \\n"}}',
        calls=[("files.read", {}), ("note", {"a": {"b": '} " ✿FUNCTION✿: \n'}})],
    ),
    ParserExample(
        text='✿FUNCTION✿:now\r\n\n✿ARGS✿:\n{"zone": null}✿FUNCTION✿: then\n✿ARGS✿: {\n  "it\'s": true\n}\n\nDone.',
        content="\nDone.",
        calls=[("now", {"zone": None}), ("then", {"it's": True})],
    ),
    ParserExample(
        text='✿FUNCTION✿: one two\n✿FUNCTION✿: cut\n✿ARGS✿: {"a": [1}\n✿FUNCTION✿: whole\n✿ARGS✿: {"a": 1}',
        content='✿FUNCTION✿: one two\n✿FUNCTION✿: cut\n✿ARGS✿: {"a": [1}\n',
        calls=[("whole", {"a": 1})],
    ),
    ParserExample(
        text='✿FUNCTION✿: open\n✿ARGS✿: {"a": "x}✿FUNCTION✿: whole\n✿ARGS✿: {"a": 1}',
        content='✿FUNCTION✿: open\n✿ARGS✿: {"a": "x}',
        calls=[("whole", {"a": 1})],
    ),
    ParserExample(text='✿FUNCTION✿: f\n✿ARGS✿: {"a": 1, ', content='✿FUNCTION✿: f\n✿ARGS✿: {"a": 1, '),
    ParserExample(text="✿FUNCTION✿: f\n✿ARGS", content="✿FUNCTION✿: f\n✿ARGS"),
)
