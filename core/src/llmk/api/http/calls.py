"""Tool calls of a stream, each as a whole: for APIs whose clients can't take back a call that fails."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any

from llmk.api.parsers import Event, TextDelta, ToolCallArguments, ToolCallEnd, ToolCallFailed, ToolCallStart


@dataclass(frozen=True, slots=True)
class CompleteCall:
    """A tool call that has ended. ``id`` is empty if the dialect writes none; ``text`` is the JSON of its arguments."""

    index: int
    name: str
    id: str
    text: str

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments, as :func:`arguments_of` reads them."""
        return arguments_of(self.text)


def arguments_of(text: str) -> dict[str, Any]:
    """The object in ``text``. Numbers that a client's 64 bits can't hold are the nearest that they can."""
    value = json.loads(text, parse_int=_integer, parse_float=_number)
    return value if isinstance(value, dict) else {"value": value}


class CompleteCalls:
    """Collects the calls of one choice."""

    def __init__(self) -> None:
        self._running: dict[int, tuple[str, str, list[str]]] = {}

    def of(self, event: Event) -> Event | CompleteCall | None:
        """The event, if it isn't about a call; a call, when it ends; its text, when it fails; otherwise ``None``."""
        match event:
            case ToolCallStart(index, name, id):
                self._running[index] = name, id or "", []
                return None
            case ToolCallArguments(index, text):
                self._running[index][2].append(text)
                return None
            case ToolCallEnd(index):
                name, id, pieces = self._running.pop(index)
                return CompleteCall(index, name, id, "".join(pieces) or "{}")
            case ToolCallFailed(index, text):
                self._running.pop(index, None)
                return TextDelta(text)
        return event


def _integer(text: str) -> int | float:
    return int(text) if len(text) <= 18 else _number(text)


def _number(text: str) -> float:
    return max(-sys.float_info.max, min(float(text), sys.float_info.max))
