"""Whether a parser copies what is left of a piece again and again: memory moves fast, so that lines of code don't show
it, and a long piece with many markers takes minutes."""

from __future__ import annotations

import time
from collections.abc import Iterable

from llmk_testing.parsers import Factory

_LONG = 1 << 20
"""Characters of text behind the markers, each of four bytes in memory, as one of them is an emoji."""
_SHORT = 1 << 12
_MANY, _FEW = 6000, 100
"""Markers in one piece, at most and at first."""
_SOON = 0.1
"""Processor time that a part of a comparison should take, in seconds."""
_SLACK = 0.05
_TRIES = 3


def check_copies(make: Factory, texts: Iterable[str]) -> str:
    """Many of each of ``texts`` with a long text behind them in one piece must take about as long as the many alone and
    the long text behind one of them: processor time of this thread, the least of several tries."""
    found = [_check(make, text) for text in dict.fromkeys(texts) if text.strip()]
    return f"at most {max(found):.2f} of the time of its parts" if found else "no texts"


def _check(make: Factory, text: str) -> float:
    long = _text(_size(_seconds(make, text + _text(_SHORT)), _SHORT, _LONG))
    many = text * _size(_seconds(make, text * _FEW), _FEW, _MANY)
    for _ in range(_TRIES):
        parts = _seconds(make, text + long) + _seconds(make, many)
        whole = _seconds(make, many + long)
        if whole <= 2 * parts + _SLACK:
            return whole / parts
    what = f"{len(many) // len(text)} times {text!r} take {parts:.2f} seconds, in parts"
    raise AssertionError(
        f"{what}, and {whole:.2f} with {len(long)} characters behind them: the rest is copied for each"
    )


def _text(size: int) -> str:
    """Words without a marker."""
    return "🙂 " + "word " * (size // 5)


def _size(seconds: float, size: int, most: int) -> int:
    """So many that they take about as long as a part should."""
    return max(size, min(most, int(size * _SOON / max(seconds, 1e-6))))


def _seconds(make: Factory, text: str) -> float:
    parser = make()
    start = time.thread_time()
    list(parser.push(text))
    list(parser.finish())
    return time.thread_time() - start
