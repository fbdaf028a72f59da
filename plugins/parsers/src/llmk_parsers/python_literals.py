"""Python's literals as JSON (https://docs.python.org/3/reference/lexical_analysis.html)."""

from __future__ import annotations

import re
import unicodedata

CONSTANTS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
"""Models write JSON's names too."""
_WHOLE = re.compile(r"([+-]?)0*([0-9]+)")
_FLOAT = re.compile(r"([+-]?)0*([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]+))?")
_OTHER_BASE = re.compile(r"([+-]?)(0[xX][0-9a-fA-F]+|0[oO][0-7]+|0[bB][01]+)")
_ESCAPE = re.compile(r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{1,3}|N\{[^}]{1,60}\}|\r\n|[\s\S])")
_CUT_ESCAPE = re.compile(r"\\(?:x[0-9a-fA-F]?|u[0-9a-fA-F]{0,3}|U[0-9a-fA-F]{0,7}|[0-7]{1,2}|N(?:\{[^}]{0,60})?|\r)?\Z")
_SIMPLE = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "\\": "\\", "'": "'", '"': '"'}
_SIMPLE |= {"\n": "", "\r": "", "\r\n": ""}


def scalar(token: str) -> str | None:
    """The JSON of a number or a constant; ``None`` if it is neither. Leading zeros are dropped."""
    if token in CONSTANTS:
        return CONSTANTS[token]
    if "__" in token or token.endswith("_"):
        return None
    token = token.replace("_", "")
    if found := _WHOLE.fullmatch(token):
        return found[1].strip("+") + found[2]
    if found := _OTHER_BASE.fullmatch(token):
        return found[1].strip("+") + str(int(found[2], 0))
    found = _FLOAT.fullmatch(token)
    if not found or not (found[2] or found[3] or token.lstrip("+-").startswith("0")):
        return None
    sign, whole, fraction, exponent = found.groups()
    end = f"e{exponent}" if exponent else "" if fraction else ".0"
    return sign.strip("+") + (whole or "0") + (f".{fraction}" if fraction else "") + end


def unescape(text: str, at: int, final: bool) -> tuple[int, str]:
    """The escape at ``at``: its end, and what it says. The end is ``at`` if more text may belong to it. What Python
    refuses stays as it is written, as paths of Windows do."""
    piece = text[at : at + 64]
    if not final and _CUT_ESCAPE.match(piece):
        return at, ""
    found = _ESCAPE.match(piece)
    if not found:
        return at + 1, "\\"
    body = found[0][1:]
    return at + found.end(), _said(body, found[0])


def _said(body: str, written: str) -> str:
    kind = body[0]
    if body in _SIMPLE:
        return _SIMPLE[body]
    if kind in "01234567":
        return chr(int(body, 8))
    if kind in "xuU" and len(body) > 1:
        code = int(body[1:], 16)
        return chr(code) if code <= 0x10FFFF else written
    if kind == "N" and len(body) > 1:
        try:
            return unicodedata.lookup(body[2:-1])
        except KeyError:
            return written
    return written
