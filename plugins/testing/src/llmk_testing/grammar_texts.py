"""Grammars that every compiler of their kind is tried on: choices, invalid ones, and those that match nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Example = Mapping[str, Any]

CHOICES: Sequence[Example] = (
    {
        "kind": "choice",
        "text": '["ab", "b", "trueb"]',
        "matches": ("ab", "b", "trueb"),
        "fails": ("", "a", "abb", "tr"),
    },
    {"kind": "choice", "text": '["bb", "b", "ba", "b"]', "matches": ("b", "bb", "ba"), "fails": ("", "bbb", "bab")},
    {
        "kind": "choice",
        "text": '["\\u00e9\\ud83d\\ude00", "日", "\\"\\n"]',
        "matches": ("é😀", "日", '"\n'),
        "fails": ("é", "e"),
    },
    {"kind": "choice", "text": '["", " the b"]', "matches": ("", " the b"), "fails": (" ", " the", "b")},
)
"""What every compiler of choices must take: texts that start others, twice, empty, and beyond ASCII."""
INVALID: Mapping[str, Sequence[str]] = {
    "choice": ("", "[", "{}", "1", '"a"', "[1]", '["a", null]', '[["a"]]', '["\\ud800"]', "[" * 100_000, '["a"] x'),
    "regex": ("(a", "a)", "[a", "a{2,1}", "*", "\\"),
    "json": (
        "",
        "{",
        "[1]",
        "5",
        '{"type": "thing"}',
        '{"$ref": "#/$defs/none"}',
        '{"minLength": "a", "type": "string"}',
    ),
    "lark": ("", "start", 'start: "a', "start: missing", 'other: "a"', 'start: %json {"type": "thing"}'),
}
NOTHING: Mapping[str, Sequence[str]] = {
    "choice": ("[]",),
    "regex": (r"[^\s\S]", r"a[^\s\S]b"),
    "json": ("false", '{"enum": []}', '{"allOf": [{"type": "string"}, {"type": "null"}]}', '{"$ref": "#"}'),
}
"""Grammars that match no text."""
HARD: Sequence[tuple[str, str]] = (
    ('{"not": {"type": "string"}}', '"a"'),
    ('{"type": "array", "items": {"const": 1}, "uniqueItems": true}', "[1,1]"),
    ('{"type": "array", "contains": {"const": 1}}', "[]"),
    ('{"type": "object", "propertyNames": {"maxLength": 1}}', '{"ab":0}'),
    ('{"type": "object", "minProperties": 1}', "{}"),
    ('{"type": "object", "dependentRequired": {"a": ["b"]}}', '{"a":0}'),
    ('{"oneOf": [{"type": "integer"}, {"type": "number"}]}', "1"),
    ('{"if": {"type": "integer"}, "then": {"minimum": 5}}', "1"),
    ('{"type": "string", "format": "unheard-of"}', '"a"'),
    ('{"type": "integer", "multipleOf": 7}', "8"),
    ('{"type": "string", "pattern": "(?=b)."}', '"a"'),
    ('{"$ref": "https://example.invalid/schema"}', "1"),
)
"""JSON schemas that are hard to enforce, and an instance that violates each."""
