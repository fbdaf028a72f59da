"""What drafts are made of: tokens that followed an earlier occurrence of a request's last tokens."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

CATCH_UP = 4096
"""Tokens that one proposal takes in at most, so that a long prompt does not delay a step for long."""


def continuation(tokens: Sequence[int], start: int, most: int, vocab_size: int) -> list[int]:
    """The tokens from number ``start`` on, at most ``most`` and each below ``vocab_size``.

    Where they reach the end of ``tokens``, they go on with themselves, as in LZ77: after ``a b a b``, from the second
    token on, come ``b a b b a b …``.
    """
    found = [*tokens[start : start + most]]
    period = len(found)
    while len(found) < most:
        found.append(found[-period])
    return list(takewhile(lambda token: token < vocab_size, found))
