"""Examples for the conformance kit: grammars, and texts that match them or don't."""

from __future__ import annotations

PATTERNS = (
    {
        "kind": "regex",
        "text": r"(\+\d{1,3} )?\d{2,4}-\d{3,}",
        "matches": ("+47 22-123", "2222-1234567"),
        "fails": ("", "+47 ", "2-123", "+4722-123", "22222-123", "22-12"),
    },
    {
        "kind": "regex",
        "text": r"^(?:[^\n\"]|\\\")*?$",
        "matches": ("", "smörgås 😀", 'a \\"quote\\"'),
        "fails": ("two\nlines", 'a "quote"'),
    },
    {
        "kind": "regex",
        "text": r"[а-яё😀-😎]+(?P<end>[.!?])",
        "matches": ("привет!", "😀😎.", "ё?"),
        "fails": ("привет", "Привет!", "😏.", "!"),
    },
    {
        "kind": "regex",
        "text": r"(a|ab)(c|bcd)(d*)",
        "matches": ("abcd", "ac", "abcddd"),
        "fails": ("abd", "abcdc", "b"),
    },
    {
        "kind": "regex",
        "text": r"(?s).\x00[\w\-]{2}",
        "matches": ("\n\x00a-", "é\x00_9"),
        "fails": ("\n\x00é-", "\x00ab"),
    },
    {
        "kind": "choice",
        "text": '["ja", "jaja", "nei", "på øl"]',
        "matches": ("ja", "jaja", "nei", "på øl"),
        "fails": ("", "j", "neida"),
    },
    {"kind": "choice", "text": '["", "noe"]', "matches": ("", "noe"), "fails": ("no", "noen")},
)
