"""Whether a parser's processor time grows with the square of a text: in regular expressions that look back, and where a
call is read from its start with every piece. Lines of code don't show either."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from llmk_testing.parsers import Factory

_RUN, _CALL = 6000, 24_000
"""Characters of the shorter of two texts."""
_PIECE = 8
_TIMES = 4
_MOST = 8
"""How many times as long as the shorter text one of :data:`_TIMES` its length may take; the square is 16."""
_SLACK = 0.04
"""Seconds of processor time that don't count."""
_TRIES = 3
RUNS = (" ", "\n", " \n", "a", "a ", "1", "é", "\\\\", "<", '"', "{", "=", "|")
"""What is repeated in one piece."""
PLAIN_RUNS = RUNS[:8]
"""Those that end no value of any dialect."""


def check_runs(make: Factory, before: str, runs: Sequence[str]) -> None:
    """One piece that is ``before``, then one of ``runs`` over and over."""

    def whole(run: str, size: int) -> list[str]:
        return [before + run * (size // len(run))]

    for run in runs:
        _check(make, partial(whole, run), _RUN, f"{run!r} behind {before!r}")


def check_pieces(make: Factory, text: Callable[[int], str], what: str) -> None:
    """``text`` of a size comes in pieces as small as those of a stream."""

    def pieces(size: int) -> list[str]:
        whole = text(size)
        return [whole[at : at + _PIECE] for at in range(0, len(whole), _PIECE)]

    _check(make, pieces, _CALL, what)


def _check(make: Factory, cut: Callable[[int], Sequence[str]], size: int, what: str) -> None:
    for _ in range(_TRIES):
        short, long = (_seconds(make, cut(each)) for each in (size, _TIMES * size))
        if long <= _MOST * short + _SLACK:
            return
    raise AssertionError(
        f"{size} characters of {what} take {short:.3f} seconds of processor time, and {_TIMES} times as many {long:.3f}"
    )


def _seconds(make: Factory, pieces: Sequence[str]) -> float:
    parser = make()
    start = time.thread_time()
    for piece in pieces:
        list(parser.push(piece))
    list(parser.finish())
    return time.thread_time() - start
