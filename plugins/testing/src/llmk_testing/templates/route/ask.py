"""A route: ``POST /acme/ask {"question": "Why?"}`` returns ``{"answer": "Because."}``, or streams it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import Field

from llmk.api import (
    AnswerDelta,
    AnswerHead,
    AnswerRenderer,
    ApiRoute,
    Frame,
    ReasoningDelta,
    ServedModelInfo,
    TextDelta,
    TokenCounts,
    ToolCallFailed,
    TranslatedRequest,
)
from llmk.api.http.bodies import Fields, parse


class Question(Fields):
    """The body of a request. Fields that it does not have are refused."""

    question: str = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=1)
    seed: int | None = Field(None, ge=0, lt=2**31)
    stream: bool = False


class Ask(ApiRoute):
    """Translates requests in a worker process, and renders responses in the server's, by another object."""

    def translate(self, body: Any, headers: Mapping[str, str]) -> TranslatedRequest:
        """A chat of one message. A seed of 0 is a seed, so what is left out is ``None``, not false."""
        asked = parse(Question, body)
        made: dict[str, Any] = {"messages": [{"role": "user", "content": asked.question}]}
        for name in ("max_tokens", "seed"):
            if (value := getattr(asked, name)) is not None:
                made[name] = value
        return TranslatedRequest("chat", made, asked.stream)

    def open(self, head: AnswerHead, options: Mapping[str, Any]) -> AnswerRenderer:
        """The renderer of one response; ``options`` are those of the ``TranslatedRequest``."""
        return Answer(head)

    def result(self, result: Mapping[str, Any], options: Mapping[str, Any], model: ServedModelInfo) -> Any:
        """Not used: requests are translated to chats alone."""
        raise NotImplementedError

    def error(self, status: int, error: Mapping[str, Any]) -> Frame:
        """Any error, also of the server's own checks."""
        return Frame({"error": error["message"]}, "error")


class Answer(AnswerRenderer):
    """One answer. Thoughts have a name of their own; text of calls that failed is text."""

    def __init__(self, head: AnswerHead) -> None:
        self._id = head.id
        self._cut = False
        self._texts: list[str] = []

    def frames(self, delta: AnswerDelta, usage: TokenCounts) -> Iterable[Frame]:
        """What is new."""
        self._cut = delta.finish_reason == "length"
        for event in delta.events:
            match event:
                case TextDelta(text) if text:
                    yield Frame({"answer": text}, "piece")
                case ReasoningDelta(text) if text:
                    yield Frame({"thought": text}, "piece")
                case ToolCallFailed(_, text):
                    yield Frame({"answer": text}, "piece")

    def last_frames(self, usage: TokenCounts) -> Iterable[Frame]:
        """Behind all deltas."""
        yield Frame({"id": self._id, "cut": self._cut, "tokens": usage.completion_tokens}, "end")

    def add(self, delta: AnswerDelta, usage: TokenCounts) -> None:
        """The same for a complete response."""
        self._texts += [frame.data.get("answer", "") for frame in self.frames(delta, usage)]

    def whole(self, usage: TokenCounts) -> Mapping[str, Any]:
        """The complete response."""
        answer = "".join(self._texts)
        return {"id": self._id, "answer": answer, "cut": self._cut, "tokens": usage.completion_tokens}
