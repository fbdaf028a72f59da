"""Output items that are being written: their events, and what they are when they are done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import Raw

from llmk.serve.responses.messages import sealed

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LogprobEntry:
    """The log-probabilities of one token, encoded immediately, since there may be many: ``length`` is that of the
    token's text."""

    length: int
    data: bytes


Entries = list[LogprobEntry]


class OpenItem:
    """One item of a response's output. Its methods yield events without ``sequence_number``."""

    def __init__(self, id: str, output_index: int) -> None:
        self.id = id
        self.output_index = output_index
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        """What was written so far."""
        return "".join(self._pieces)

    def item(self, status: str) -> Json:
        """The item with what was written so far."""
        raise NotImplementedError

    def opened(self) -> Iterator[Json]:
        """The events with which the item starts."""
        yield self._event("response.output_item.added", item=self._empty())

    def added(self, text: str, logprobs: Entries | None = None) -> Iterator[Json]:
        """The event of a piece of text."""
        raise NotImplementedError

    def done(self, status: str) -> Iterator[Json]:
        """The events with which the item ends."""
        yield from self._ended()
        yield self._event("response.output_item.done", item=self.item(status))

    def _empty(self) -> Json:
        return self.item("in_progress")

    def _ended(self) -> Iterator[Json]:
        raise NotImplementedError

    def _event(self, type: str, *, in_part: bool = False, **fields: Any) -> Json:
        place: Json = {} if type.startswith("response.output_item") else {"item_id": self.id}
        if in_part:
            place["content_index"] = 0
        return {"type": type, "output_index": self.output_index, **place, **fields}


class OpenMessage(OpenItem):
    """A message with one text."""

    def __init__(self, id: str, output_index: int) -> None:
        super().__init__(id, output_index)
        self._logprobs: list[bytes] = []

    def item(self, status: str) -> Json:
        """The message; without a part until one was added."""
        content = [] if status == "in_progress" else [self._part()]
        return {"id": self.id, "type": "message", "status": status, "role": "assistant", "content": content}

    def opened(self) -> Iterator[Json]:
        """The events with which the message starts, and its part."""
        yield from super().opened()
        yield self._event("response.content_part.added", in_part=True, part=self._part())

    def added(self, text: str, logprobs: Entries | None = None) -> Iterator[Json]:
        """The event of a piece of text."""
        entries = [entry.data for entry in logprobs or ()]
        self._pieces.append(text)
        self._logprobs += entries
        yield self._event("response.output_text.delta", in_part=True, delta=text, logprobs=_listed(entries))

    def _ended(self) -> Iterator[Json]:
        text, part = self.text, self._part()
        yield self._event("response.output_text.done", in_part=True, text=text, logprobs=part["logprobs"])
        yield self._event("response.content_part.done", in_part=True, part=part)

    def _part(self) -> Json:
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": _listed(self._logprobs)}


class OpenReasoning(OpenItem):
    """A reasoning item. ``encrypted``: it has its text a second time, for clients that keep only that."""

    def __init__(self, id: str, output_index: int, *, encrypted: bool) -> None:
        super().__init__(id, output_index)
        self._encrypted = encrypted

    def item(self, status: str) -> Json:
        """The reasoning; without a part until one was added."""
        ended = status != "in_progress"
        content = [self._part()] if ended else []
        sent = sealed(self.text) if self._encrypted and ended else None
        return {
            "id": self.id,
            "type": "reasoning",
            "summary": [],
            "content": content,
            "encrypted_content": sent,
            "status": status,
        }

    def opened(self) -> Iterator[Json]:
        """The events with which the reasoning starts, and its part."""
        yield from super().opened()
        yield self._event("response.content_part.added", in_part=True, part=self._part())

    def added(self, text: str, logprobs: Entries | None = None) -> Iterator[Json]:
        """The event of a piece of reasoning."""
        self._pieces.append(text)
        yield self._event("response.reasoning_text.delta", in_part=True, delta=text)

    def _ended(self) -> Iterator[Json]:
        yield self._event("response.reasoning_text.done", in_part=True, text=self.text)
        yield self._event("response.content_part.done", in_part=True, part=self._part())

    def _part(self) -> Json:
        return {"type": "reasoning_text", "text": self.text}


class OpenCall(OpenItem):
    """A function call."""

    def __init__(self, id: str, output_index: int, call_id: str, name: str) -> None:
        super().__init__(id, output_index)
        self._call_id = call_id
        self._name = name

    def item(self, status: str) -> Json:
        """The call with its arguments so far."""
        return {
            "id": self.id,
            "type": "function_call",
            "status": status,
            "arguments": self.text,
            "call_id": self._call_id,
            "name": self._name,
        }

    def added(self, text: str, logprobs: Entries | None = None) -> Iterator[Json]:
        """The event of a piece of the arguments."""
        self._pieces.append(text)
        yield self._event("response.function_call_arguments.delta", delta=text)

    def _ended(self) -> Iterator[Json]:
        yield self._event("response.function_call_arguments.done", arguments=self.text)


def _listed(entries: Sequence[bytes]) -> Raw:
    return Raw(b"[" + b",".join(entries) + b"]")
