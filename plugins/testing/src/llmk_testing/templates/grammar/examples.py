"""Examples for the conformance kit: grammars, and texts that match them or don't."""

CHOICES = (
    {"kind": "choice", "text": '["yes", "no"]', "matches": ("yes", "no"), "fails": ("", "y", "yes!", "nein")},
    {"kind": "choice", "text": '["a", "ab", "true"]', "matches": ("ab", "a"), "fails": ("abab", "tru")},
)
