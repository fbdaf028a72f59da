"""Examples for the conformance kit: answers in the dialect. Add what real models write."""

BRACKETS = (
    'Let me see: [[call weather {"city": "Oslo", "days": [1, 2]}]] Done.',
    '[[call first {}]][[call second {"a": {"b": "]"}}]]',
    "[[call no json]] [[call never_ended {",
)
