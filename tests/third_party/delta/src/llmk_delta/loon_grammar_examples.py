"""Examples for the conformance kit: regular expressions, and texts that match them or don't."""

REGEXES = (
    {
        "kind": "regex",
        "text": r"^(\+[0-9]{1,3} )?[0-9]{3}-\d+$",
        "matches": ("555-1", "+49 030-123456", "123-٣"),
        "fails": ("", "+ 555-1", "555-", "+4900 030-1", "555-1 "),
    },
    {"kind": "regex", "text": "(?:yes|no|maybe){1,2}", "matches": ("no", "yesno"), "fails": ("yesnoyes", "ye")},
    {"kind": "regex", "text": r"[é-ü€😀-🙏]{2,}", "matches": ("éü", "😨€", "êêê"), "fails": ("é", "ab", "éa", "😨\n")},
    {"kind": "regex", "text": "(a|b)*abb", "matches": ("abb", "babaabb"), "fails": ("ab", "abba")},
    {"kind": "regex", "text": r"([^\W\d]+ ?){2,3}\.", "matches": ("ab.", "ö b c."), "fails": ("a1.", "a.", "ab")},
    {"kind": "regex", "text": r'"(\\.|[^"\\\x00-\x1f])*"', "matches": ('""', '"a\\"é"'), "fails": ('"', '"\n"', '"""')},
)
