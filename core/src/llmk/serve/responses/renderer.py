"""OpenAI's response object and its events. The complete response is made of the same events."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import msgspec
from msgspec import Raw

from llmk.api import AnswerHead, Frame, TextDelta, ToolCallFailed
from llmk.engine.wire.request import TokenLogprobs
from llmk.serve.generation.choice_deltas import ChoiceDelta, Usage
from llmk.serve.responses.hosted import HostedTool
from llmk.serve.responses.open_items import Json, LogprobEntry
from llmk.serve.responses.output import Output, joined


class Tokens(Protocol):
    """Text and bytes of single tokens."""

    def token_text(self, token_id: int) -> str:
        """The text of a token within a longer text."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of a token, which may be part of a character."""
        ...


def usage_object(usage: Usage) -> Json:
    """The ``usage`` of a response."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


class ResponseRenderer:
    """Renders one response.

    ``echo`` has what it repeats of the request, as encoded JSON. With ``queued``, it starts as a background response
    does. ``tokens`` renders log-probabilities, if they were requested; ``hosted`` are the tools of MCP servers by name.
    """

    def __init__(
        self,
        head: AnswerHead,
        echo: Mapping[str, str],
        *,
        tokens: Tokens | None = None,
        encrypted: bool = False,
        queued: bool = False,
        hosted: Mapping[str, HostedTool] | None = None,
    ) -> None:
        self._head = head
        self._echo = {name: Raw(text.encode()) for name, text in echo.items()}
        self._tokens = tokens
        self._queued = queued
        self._output = Output(head.id, encrypted=encrypted, hosted=hosted)
        self._finish_reason: str | None = None
        self._opened = False
        self._whole: Json | None = None
        self._number = 0

    def opening(self) -> Iterator[Frame]:
        """The events with which the response starts. There are none after the first call."""
        if self._opened:
            return
        self._opened = True
        if self._queued:
            queued = self.response("queued")
            yield self._numbered({"type": "response.created", "response": queued})
            yield self._numbered({"type": "response.queued", "response": queued})
        started = self.response("in_progress")
        if not self._queued:
            yield self._numbered({"type": "response.created", "response": started})
        yield self._numbered({"type": "response.in_progress", "response": started})

    def frames(self, delta: ChoiceDelta, usage: Usage) -> Iterator[Frame]:
        """The events of one delta, after those that open the response."""
        yield from self.opening()
        entries = [self._entry(logprobs) for logprobs in delta.logprobs] if self._tokens is not None else []
        self._output.hold(entries)
        for event in joined(delta.events):
            yield from map(self._numbered, self._output.pass_on(event))
        if delta.events and not isinstance(delta.events[-1], TextDelta | ToolCallFailed):
            self._output.drop_logprobs()
        if delta.finish_reason is not None:
            self._finish_reason = delta.finish_reason
            yield from map(self._numbered, self._output.end(self.status))

    def last_frames(self, usage: Usage) -> Iterator[Frame]:
        """The event that ends the response."""
        yield from self.opening()
        whole = self.whole(usage)
        yield self._numbered({"type": f"response.{self.status}", "response": whole})

    def failed(self, error: Mapping[str, Any], usage: Usage) -> Iterator[Frame]:
        """The events that end a response that failed. ``error`` is an OpenAI error object."""
        yield from self.opening()
        yield from map(self._numbered, self._output.end("incomplete"))
        code = "rate_limit_exceeded" if error["type"] == "rate_limit_error" else "server_error"
        whole = self.response("failed", usage, error={"code": code, "message": error["message"]})
        yield self._numbered({"type": "response.failed", "response": whole})

    def add(self, delta: ChoiceDelta, usage: Usage) -> None:
        """Adds a delta to the complete response."""
        for _ in self.frames(delta, usage):
            pass

    def whole(self, usage: Usage) -> Json:
        """The complete response, after all deltas were added."""
        if self._whole is None:
            details = {"reason": "max_output_tokens"} if self.status == "incomplete" else None
            self._whole = self.response(self.status, usage, incomplete_details=details)
        return self._whole

    @property
    def status(self) -> str:
        """The status with which the response ends."""
        return "incomplete" if self._finish_reason == "length" else "completed"

    @property
    def output(self) -> list[Json]:
        """The items that are done."""
        return self._output.done

    def response(self, status: str, usage: Usage | None = None, **fields: Any) -> Json:
        """The response object. It has the items that are done."""
        head = self._head
        return {
            "id": f"resp_{head.id}",
            "object": "response",
            "created_at": head.created,
            "status": status,
            "completed_at": int(time.time()) if status == "completed" else None,
            "error": None,
            "incomplete_details": None,
            "model": head.model,
            "output": self.output,
            **self._echo,
            "usage": usage_object(usage) if usage is not None else None,
            **fields,
        }

    def _numbered(self, event: Json) -> Frame:
        number, self._number = self._number, self._number + 1
        return Frame({**event, "sequence_number": number}, event["type"])

    def _entry(self, logprobs: TokenLogprobs) -> LogprobEntry:
        top = [self._token(token_id, logprob) for token_id, logprob in logprobs.top]
        entry = {**self._token(logprobs.token_id, logprobs.logprob), "top_logprobs": top}
        return LogprobEntry(len(entry["token"]), msgspec.json.encode(entry))

    def _token(self, token_id: int, logprob: float) -> Json:
        assert self._tokens is not None
        text, raw = self._tokens.token_text(token_id), self._tokens.token_bytes(token_id)
        return {"token": text, "logprob": logprob, "bytes": list(raw)}
