"""Ranges of characters around the borders of UTF-8's widths, and which bytes may start a character of one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

_WIDTHS = ((0, 0x7F), (0x80, 0x7FF), (0x800, 0xFFFF), (0x10000, 0x10FFFF))
"""The characters of one, two, three and four bytes (RFC 3629)."""
_SURROGATES = (0xD800, 0xDFFF)
_RANGES = (
    (0x7E, 0x7F),
    (0x7E, 0x81),
    (0x80, 0x83),
    (0x80, 0x7FF),
    (0x7FD, 0x7FF),
    (0x7FE, 0x801),
    (0x800, 0x803),
    (0x800, 0xFFFF),
    (0xD7FE, 0xE001),
    (0xFFFC, 0xFFFF),
    (0xFFFE, 0x10001),
    (0x10000, 0x10003),
    (0x10000, 0x10FFFF),
    (0x7F, 0x10000),
)


def character_ranges(kinds: Sequence[str]) -> Iterator[tuple[str, str, bytes, int, int]]:
    """Kind and text of a grammar, the output before a character, and the first and last one that may be there; in JSON,
    beyond ASCII alone."""
    for low, high in _RANGES:
        written = f"[{chr(low)}-{chr(high)}]"
        if "regex" in kinds:
            yield "regex", written, b"", low, high
        if "lark" in kinds:
            yield "lark", f"start: /{written}/", b"", low, high
    if "json" in kinds:
        yield "json", '{"type": "string"}', b'"', 0x80, 0x10FFFF


def borders(low: int, high: int) -> list[int]:
    """Characters of a range at its ends, and at those of each width."""
    ends = {low, high, _SURROGATES[0] - 1, _SURROGATES[1] + 1, *(end for width in _WIDTHS for end in width)}
    inside = {0xFFF, 0x1000, 0x3FFFF, 0x40000, 0xFFFFF, 0x100000}
    return sorted(each for each in ends | inside if low <= each <= high)


def can_start(data: bytes, low: int, high: int) -> bool:
    """Whether some character from ``low`` to ``high`` starts with these bytes, or is them."""
    first = data[0]
    size = 1 if first < 0x80 else 2 if 0xC0 <= first < 0xE0 else 3 if first < 0xF0 else 4
    if len(data) > size or 0x80 <= first < 0xC0 or first >= 0xF8 or any(byte & 0xC0 != 0x80 for byte in data[1:]):
        return False
    value = first & (0x7F, 0x1F, 0x0F, 0x07)[size - 1]
    for byte in data[1:]:
        value = value << 6 | byte & 0x3F
    free = 6 * (size - len(data))
    least, most = (
        max(value << free, _WIDTHS[size - 1][0], low),
        min((value + 1 << free) - 1, _WIDTHS[size - 1][1], high),
    )
    # All surrogates start with the same byte; some characters do, that aren't.
    return least <= most and not (_SURROGATES[0] <= least and most <= _SURROGATES[1])
