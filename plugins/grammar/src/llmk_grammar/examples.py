"""Examples for the conformance kit: grammars, and texts that match them or don't."""

GRAMMARS = (
    {
        "kind": "regex",
        "text": r"(ab)*[0-9]{1,3}",
        "matches": ("7", "abab000", "ab12"),
        "fails": ("", "a1", "1000", "ab"),
    },
    {"kind": "regex", "text": r"^é? the .*$", "matches": (" the ", "é the el"), "fails": ("the", "éé the ")},
    {
        "kind": "choice",
        "text": '["yes", "yes, ab", "a.c"]',
        "matches": ("yes", "yes, ab", "a.c"),
        "fails": ("abc", "ye"),
    },
    {"kind": "choice", "text": '["hello"]', "matches": ("hello",), "fails": ("hell", "helloo")},
    {
        "kind": "json",
        "text": '{"type": "object", "properties": {"el": {"type": ["boolean", "null"]}, "b": {"type": "string"}}, '
        '"required": ["el"], "additionalProperties": false}',
        "matches": ('{"el":true}', '{"el": null, "b": "aé\\n"}'),
        "fails": ("{}", '{"b":"a"}', '{"el":1}', '{"el":true,"c":1}', '{"el":true}}'),
    },
    {
        "kind": "json",
        "text": '{"type": "array", "items": {"type": "integer", "minimum": 0}, "maxItems": 2}',
        "matches": ("[]", "[0, 100]"),
        "fails": ("[-1]", "[1,2,3]", "[1.5]", "1"),
    },
    {
        "kind": "lark",
        "text": 'start: "(" start ")" | number\nnumber: /[0-9]+/',
        "matches": ("7", "((10))"),
        "fails": ("", "(7", "7)", "()", "a"),
    },
    {
        "kind": "lark",
        "text": 'start: (until %json {"type": "boolean"} " ")* TEXT\nuntil[lazy]: TEXT "el"\nTEXT: /(.|\\n)*/',
        "matches": ("", "a b", "the eltrue b", "eltrue elfalse "),
        "fails": ("the el0 ", "a el"),
    },
)
