"""A stream of events that goes on where another one broke off, made again from the start by the same seed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

TEXTS = ("content", "reasoning_content", "text")
"""Fields of a choice whose text was sent, and is not sent again."""
DONE = "[DONE]"


class CannotResume(Exception):
    """What was sent can't be continued."""


class ResumedStream:
    """Reads an answer's events, drops what was sent before, and keeps what would be needed to go on with it.

    A client sees one answer: the id and the time of the first. What is made again must start with the same text, which
    it does by its seed; where it doesn't, or where tool calls or log-probabilities were sent, it can't be continued.
    """

    def __init__(self) -> None:
        self.done = False
        """Whether the last event was sent."""
        self._rest = b""
        self._head: dict[str, Any] = {}
        """The fields of the first event that all have."""
        self._sent: dict[tuple[int, str], str] = {}
        self._ended: set[int] = set()
        """Choices whose end was sent."""
        self._skip: dict[tuple[int, str], str] = {}
        self._fixed = False
        """Whether something was sent that can't be made again."""

    def restart(self) -> None:
        """The answer is made again from the start. Raises :class:`CannotResume`."""
        if self._fixed:
            raise CannotResume("tool calls or log-probabilities were sent")
        self._rest = b""
        self._skip = dict(self._sent)

    def take(self, data: bytes) -> Iterator[bytes]:
        """What to send of the next bytes. Raises :class:`CannotResume`."""
        *events, self._rest = (self._rest + data).split(b"\n\n")
        for event in events:
            yield from self._event(event)

    def _event(self, event: bytes) -> Iterator[bytes]:
        text = event.removeprefix(b"data: ").decode()
        if not event.startswith(b"data: {"):
            self.done = self.done or text == DONE
            yield event + b"\n\n"
            return
        content = json.loads(text)
        if "error" in content:
            self.done = True
        self._head = self._head or {name: content[name] for name in ("id", "created") if name in content}
        content |= self._head
        had = bool(content.get("choices"))
        content["choices"] = [choice for choice in content.get("choices", ()) if self._is_new(choice)]
        if content["choices"] or not had:
            yield b"data: " + json.dumps(content, separators=(",", ":")).encode() + b"\n\n"

    def _is_new(self, choice: dict[str, Any]) -> bool:
        """Takes out what was sent; whether something is left."""
        index, delta = choice.get("index", 0), choice.get("delta", choice)
        if index in self._ended:
            return False
        self._fixed = self._fixed or bool(delta.get("tool_calls") or choice.get("logprobs"))
        replayed = False
        for name in TEXTS:
            if text := delta.get(name):
                left = self._after_sent(index, name, text)
                replayed = replayed or left != text
                delta[name] = left
                self._sent[index, name] = self._sent.get((index, name), "") + left
        if choice.get("finish_reason"):
            if any(rest for (of, _), rest in self._skip.items() if of == index):
                raise CannotResume("what was made again is shorter than what was sent")
            self._ended.add(index)
            return True
        return not replayed or any(delta.get(name) for name in TEXTS)

    def _after_sent(self, index: int, name: str, text: str) -> str:
        rest = self._skip.get((index, name), "")
        common = min(len(rest), len(text))
        if rest[:common] != text[:common]:
            raise CannotResume("what was made again differs from what was sent")
        self._skip[index, name] = rest[common:]
        return text[common:]
