"""Text that any part of an answer may have, and that must come back to the character: what libraries would unescape,
normalize, split or strip."""

from __future__ import annotations

UNESCAPED = "&amp; &lt;b&gt; %20 \\n \\u00e9 \\"
"""What is an escape elsewhere."""
NORMALIZED = "e\u0301 é ﬁ ① ß İ Å 한 𝒳 x\u200dy 👩\u200d👩\u200d👧 🏳️"
"""Letters that have other forms."""
SPACES = "a\r\nb\rc\td\x0be\x0cf\x1cg\x85h\u2028i\u2029j\xa0k\u3000l\u200bm\ufeffn\ufffd  o\n\n\n\np"
"""Ends of lines and white space of all kinds, what has no width, and what stands for a half of a character."""
REPEATED = "".join(chr(code) * 3 for code in range(33, 127))
"""Each character of ASCII more than once."""
ODD = f"o {UNESCAPED} {NORMALIZED} {SPACES} {REPEATED} \x00\x01\x7f\x1b[0m z"
"""All of them, and characters that control terminals."""
ODDS = (
    UNESCAPED,
    NORMALIZED,
    SPACES,
    "\x00\x01\x7f\x1b[0m",
    "e\u0301",
    "&lt;",
    "a\r\nb",
    "\ufeffa",
    "\ufffda",
    "a\u2028b\x85c\x0bd",
)
