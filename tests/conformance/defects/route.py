"""A route that answers with what the model said, and ways to get one wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from defects import Defect
from llmk.api import AnswerDelta, Frame, RequestError, TextDelta, TokenCounts, ToolCallFailed, TranslatedRequest

BODIES = [{"say": "a"}, {"say": "b"}]
REFUSALS = "what can't be served is refused with RequestError"
TRANSLATIONS = "requests are translated to plain data, alike each time"
RESPONSES = "responses are plain data, streamed and complete"
ERRORS = "every error is put in the API's format"


class Said:
    """The text of a response."""

    def __init__(self) -> None:
        self.text = ""

    def frames(self, delta: AnswerDelta, usage: TokenCounts) -> Iterator[Any]:
        for event in delta.events:
            if isinstance(event, TextDelta | ToolCallFailed):
                yield Frame({"said": event.text})

    def last_frames(self, usage: TokenCounts) -> Iterator[Any]:
        yield Frame({"done": True})

    def add(self, delta: AnswerDelta, usage: TokenCounts) -> None:
        self.text += "".join(frame.data["said"] for frame in self.frames(delta, usage))

    def whole(self, usage: TokenCounts) -> Mapping[str, Any]:
        return {"said": self.text}


class Ask:
    """A good route."""

    def translate(self, body: Any, headers: Mapping[str, str]) -> TranslatedRequest:
        if not isinstance(body.get("say"), str):
            raise RequestError("say: it must be a text", param="say")
        return self.request(body)

    def request(self, body: Any) -> TranslatedRequest:
        return TranslatedRequest("text", {"prompt": body["say"]})

    def open(self, head: Any, options: Mapping[str, Any]) -> Any:
        return Said()

    def result(self, result: Mapping[str, Any], options: Mapping[str, Any], model: Any) -> Any:
        return {}

    def error(self, status: int, error: Mapping[str, Any]) -> Frame:
        return Frame({"oops": error["message"]})


class Last(Said):
    def add(self, delta: AnswerDelta, usage: TokenCounts) -> None:
        self.text = "".join(frame.data["said"] for frame in self.frames(delta, usage)) or self.text


class Forgets(Ask):
    def open(self, head: Any, options: Mapping[str, Any]) -> Any:
        return Last()


class Deep(Ask):
    def request(self, body: Any) -> TranslatedRequest:
        with suppress(ValueError):
            json.loads(body["say"])
        return super().request(body)


class Trusts(Ask):
    def translate(self, body: Any, headers: Mapping[str, str]) -> TranslatedRequest:
        return self.request(body)


class Changes(Ask):
    def request(self, body: Any) -> TranslatedRequest:
        return TranslatedRequest("text", {"prompt": body.pop("say")})


class KeepsStream(Ask):
    def request(self, body: Any) -> TranslatedRequest:
        return TranslatedRequest("text", {"prompt": body["say"], "stream": True})


class Invents(Ask):
    def request(self, body: Any) -> TranslatedRequest:
        kind: Any = "speech"
        return TranslatedRequest(kind, {"prompt": body["say"]})


class Hides(Ask):
    def error(self, status: int, error: Mapping[str, Any]) -> Frame:
        return Frame({"oops": status})


class PlainTextOnly(Ask):
    def open(self, head: Any, options: Mapping[str, Any]) -> Any:
        class Strict(Said):
            def frames(self, delta: AnswerDelta, usage: TokenCounts) -> Iterator[Any]:
                for event in delta.events:
                    assert isinstance(event, TextDelta)
                    yield Frame({"said": event.text})

        return Strict()


class NotJson(Ask):
    def open(self, head: Any, options: Mapping[str, Any]) -> Any:
        class Raw(Said):
            def whole(self, usage: TokenCounts) -> Mapping[str, Any]:
                return {"said": self.text.encode()}

        return Raw()


DEFECTS = [
    Defect("forgets", "complete responses have the last text alone", Forgets, RESPONSES),
    Defect("deep", "deeply nested JSON in a text raises RecursionError", Deep, REFUSALS),
    Defect("trusts", "it trusts bodies", Trusts, REFUSALS),
    Defect("changes", "it changes the body", Changes, TRANSLATIONS),
    Defect("stream", "it leaves stream in the body", KeepsStream, TRANSLATIONS),
    Defect("kind", "it invents a kind", Invents, TRANSLATIONS),
    Defect("hides", "it hides why", Hides, ERRORS),
    Defect("text_only", "it knows only text", PlainTextOnly, RESPONSES),
    Defect("bytes", "it answers bytes", NotJson, RESPONSES),
]
