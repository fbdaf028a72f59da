"""Long pieces are read in short ones: of a piece with many markers, what is left is not copied for each of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from llmk.api import Event

_MOST = 1024
"""Characters."""


def in_short_pieces(push: Callable[[Any, str], list[Event]]) -> Callable[[Any, str], list[Event]]:
    """A method ``push`` that is called for every part of a long piece."""

    @wraps(push)
    def whole(parser: Any, text: str) -> list[Event]:
        return [event for at in range(0, len(text) or 1, _MOST) for event in push(parser, text[at : at + _MOST])]

    return whole
