"""Answers in the dialect, that the conformance kit tries the parser on: add what real models write."""

BRACKETS = (
    'Let me see: [[call weather {"city": "Oslo", "days": [1, 2]}]] Done.',
    '[[call first {}]][[call second {"a": {"b": "]"}}]]',
    "[[call no json]] [[call never_ended {",
)
