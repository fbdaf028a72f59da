"""Grammars that every compiler of their kind is tried on: choices, common ones, invalid ones, and those that match
nothing."""

from __future__ import annotations

import json
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
    {
        "kind": "choice",
        "text": '["a\\u0000b", "# b\\n", "|", "\\ufeffa\\u2028"]',
        "matches": ("a\0b", "# b\n", "|", "\ufeffa\u2028"),
        "fails": ("", "a", "ab", "a\0", "#", "a\u2028"),
    },
    {"kind": "choice", "text": '["", " the b"]', "matches": ("", " the b"), "fails": (" ", " the", "b")},
)
"""What every compiler of choices must take: texts that start others, twice, empty, beyond ASCII, and with characters
that end texts, lines or values elsewhere."""
Known = tuple[str, Sequence[str], Sequence[str]]
"""A grammar, texts that match it, and others."""
_REGEXES: Sequence[Known] = (
    ("[a-c]{2,3}", ("ab", "cba"), ("", "a", "abca", "ad")),
    ("a{2,}", ("aa", "aaaaa"), ("", "a", "aab")),
    ("a{3}", ("aaa",), ("aa", "aaaa")),
    ("(ab){0,2}c", ("c", "abc", "ababc"), ("abababc", "ab")),
    ("ab|cd", ("ab", "cd"), ("abd", "acd", "abcd", "")),
    ("a(b|cd)*e", ("ae", "abcdbe"), ("ace", "abc", "ade")),
    ("(?:ab)+", ("ab", "abab"), ("", "aba")),
    ("x?y", ("y", "xy"), ("x", "xxy")),
    ("a+?b*?", ("a", "aabb"), ("", "b", "aba")),
    ("a.c", ("abc", "aéc", "a😀c"), ("ac", "a\nc", "abbc")),
    ("[^a-z]", ("A", "é", "\n", "日"), ("", "m", "AB")),
    ("[^é]", ("e", "è", "日"), ("é", "")),
    ("\\d+", ("0", "0123456789"), ("", "a", "1a", "-1")),
    ("\\D", ("a", "é", "-"), ("", "5", "ab")),
    ("\\w+", ("aZ_9",), ("", "a-b", " ")),
    ("\\W", ("-", " "), ("a", "_", "7")),
    ("\\s", (" ", "\t", "\n"), ("", "a")),
    ("\\S", ("a", "-", "é"), ("", " ", "\n")),
    ("[\\d.-]+", ("1.5-2",), ("", "a")),
    ("[a-]", ("a", "-"), ("b", "")),
    ("\\.\\*\\\\", (".*\\",), ("ab\\", ".*")),
    ("\\x41\\n", ("A\n",), ("x41n", "A")),
    ("a\0b", ("a\0b",), ("a", "ab", "a\0")),
    ("[\0b]+", ("\0", "b\0b"), ("", "a")),
    (" a b#c", (" a b#c",), ("a b", "ab", " a b")),
    ("a\nb\r?", ("a\nb", "a\nb\r"), ("a", "anb", "a\r\nb")),
    ("\ufeffa\u2028", ("\ufeffa\u2028",), ("a", "a\u2028")),
    ('"a"|\'/', ('"a"', "'/"), ("a", "'")),
    ("é{2}日?", ("éé", "éé日"), ("é", "ée", "日")),
)
_SCHEMAS: Sequence[Known] = (
    ('{"type": "integer"}', ("0", "-12"), ("", "1.5", '"1"', "01", "true")),
    ('{"type": "number"}', ("0", "1.5", "-0.25"), ("", "1.", ".5", "+1", "NaN")),
    ('{"type": "boolean"}', ("true", "false"), ("True", "1", "null")),
    ('{"type": "null"}', ("null",), ("", "0")),
    ('{"type": "string", "maxLength": 2}', ('""', '"ab"', '"é😀"'), ('"abc"', "ab", '"a')),
    ('{"type": "string", "minLength": 2}', ('"ab"', '"abc"'), ('""', '"a"', '"\\n"')),
    ('{"type": "string", "pattern": "^[a-c]+$"}', ('"abc"',), ('""', '"abd"')),
    ('{"enum": ["a", 1, null]}', ('"a"', "1", "null"), ('"b"', "2", "a")),
    ('{"enum": ["a\\u0000b", "#\\u2028"]}', ('"a\\u0000b"', '"#\u2028"'), ('"a"', '"ab"', '"#"')),
    ('{"const": {"a": [1]}}', ('{"a":[1]}',), ('{"a":[2]}', "{}")),
    ('{"type": ["integer", "null"]}', ("5", "null"), ('"x"', "true")),
    ('{"anyOf": [{"type": "integer"}, {"type": "null"}]}', ("5", "null"), ('"x"', "true")),
    ('{"type": "integer", "minimum": 5, "maximum": 12}', ("5", "9", "12"), ("4", "13", "-7", "5.5")),
    (
        '{"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2}',
        ("[1]", "[1,2]"),
        ("[]", "[1,2,3]", '["a"]', "[1,]"),
    ),
    (
        '{"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a"],'
        ' "additionalProperties": false}',
        ('{"a":1}', '{"a":1,"b":"x"}'),
        ("{}", '{"b":"x"}', '{"a":1,"c":2}', '{"a":"1"}', '{"a":1,}'),
    ),
    (
        '{"$ref": "#/$defs/n", "$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}}}}',
        ("[]", "[[],[[]]]"),
        ("[1]", "[[]"),
    ),
)
KNOWN: Mapping[str, Sequence[Known]] = {"regex": _REGEXES, "json": _SCHEMAS}
"""Grammars that mean the same everywhere."""
_NUMBERS = " ".join(map(str, range(100)))
LONG: Mapping[str, tuple[str, str]] = {
    "regex": (f"({_NUMBERS})+", _NUMBERS),
    "choice": (json.dumps([_NUMBERS, "0 2"]), _NUMBERS),
    "json": (json.dumps({"const": _NUMBERS}), json.dumps(_NUMBERS)),
    "lark": (f'start: "{_NUMBERS}"', _NUMBERS),
}
"""A grammar, and an output of hundreds of tokens."""
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
LARGE: Mapping[str, Sequence[str]] = {
    "regex": ("[a-z]{90}x{90}", "(a|b)*a(a|b){15}", "(((a{9}b){9}c){9}d){9}", "(a?){60}a{60}"),
    "choice": (json.dumps(["é" * 60, "e" * 60]),),
}
"""Grammars of few characters that become many symbols, or states."""
_HARD_SCHEMAS: Sequence[tuple[str, str]] = (
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
_HARD_REGEXES: Sequence[tuple[str, str]] = (
    ("(a|b)\\1", "a1"),
    ("(a|b)\\1", "ab"),
    ("(a)(b)\\2", "ab2"),
    ("(?P<x>a|b)(?P=x)", "ab"),
    ("(?P<x>a|b)\\k<x>", "ak<x>"),
    ("(?=b).", "a"),
    ("(?!a).", "a"),
    ("(?<=a)b", "b"),
    ("(?<!a)b|ab", "bb"),
    ("(a)?(?(1)b|c)", "ac"),
    ("(?>a|ab)c", "abc"),
    ("a\\bb", "ab"),
    ("a\\bb", "abb"),
    ("a\\Bb", "aBb"),
    ("\\Aab\\Z", "AabZ"),
    ("a$b", "a$b"),
    ("a^b", "a^b"),
    ("(?i)a", "b"),
    ("(?#b)a", "ba"),
    ("\\p{L}", "p{L}"),
    ("\\u{62}", "b" * 3),
)
HARD: Mapping[str, Sequence[tuple[str, str]]] = {"json": _HARD_SCHEMAS, "regex": _HARD_REGEXES}
"""Grammars that are hard to enforce, and an output that violates each."""
