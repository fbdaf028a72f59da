"""OpenAI's text completion objects, complete and as chunks. Complete ones are assembled from the same deltas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Raw

from llmk.api import TextDelta
from llmk.engine.wire.request import TokenLogprobs
from llmk.serve.generation.chat_response import Tokens, usage_object
from llmk.serve.generation.choice_deltas import ChoiceDelta, Usage
from llmk.serve.http.json_response import encoded

Wire = dict[str, Any]


class CompletionRenderer:
    """Renders one text completion. ``echo`` has for every choice the text to send before the generated text."""

    def __init__(
        self,
        head: Wire,
        tokens: Tokens,
        *,
        logprobs: bool,
        include_usage: bool,
        continuous_usage: bool = False,
        echo: Sequence[str] = (),
    ) -> None:
        self._head = {**head, "object": "text_completion"}
        self._token_text = tokens.token_text
        self._logprobs = logprobs
        self._include_usage = include_usage
        self._continuous_usage = continuous_usage
        self._echo = dict(enumerate(echo))
        self._offsets: dict[int, int] = {}
        self._choices: dict[int, Wire] = {}

    def chunks(self, delta: ChoiceDelta, usage: Usage) -> Iterator[Wire]:
        """The chunks of one delta; none if it has no content."""
        choice = self._choice(delta)
        if choice["text"] or choice["logprobs"] or choice["finish_reason"]:
            yield self._envelope([choice], usage_object(usage) if self._continuous_usage else None)

    def last_chunks(self, usage: Usage) -> Iterator[Wire]:
        """The chunks after the last delta."""
        if self._include_usage:
            yield self._envelope([], usage_object(usage))

    def add(self, delta: ChoiceDelta, usage: Usage) -> None:
        """Adds a delta to the complete response."""
        new = self._choice(delta)
        whole = self._choices.setdefault(delta.index, {**new, "text": "", "logprobs": None})
        logprobs = whole["logprobs"] or new["logprobs"]
        if whole["logprobs"] and new["logprobs"]:
            for key, entries in new["logprobs"].items():
                logprobs[key] += entries
        self._choices[delta.index] = {**new, "text": whole["text"] + new["text"], "logprobs": logprobs}

    def whole(self, usage: Usage) -> Wire:
        """The complete response, after all deltas were added."""
        choices = [self._choices[index] for index in sorted(self._choices)]
        return {**self._head, "choices": choices, "usage": usage_object(usage)}

    def _choice(self, delta: ChoiceDelta) -> Wire:
        text = self._echo.pop(delta.index, "")
        text += "".join(event.text for event in delta.events if isinstance(event, TextDelta))
        return {
            "index": delta.index,
            "text": text,
            "logprobs": self._entries(delta) if self._logprobs and (delta.logprobs or delta.prompt) else None,
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
        }

    def _entries(self, delta: ChoiceDelta) -> Wire:
        """Parallel lists, prompt tokens first. ``text_offset`` is the total length of the texts of the tokens
        before."""
        entries = [*delta.prompt, *((logprobs.token_id, logprobs) for logprobs in delta.logprobs)]
        tokens = [self._token_text(token_id) for token_id, _ in entries]
        offsets = []
        for token in tokens:
            offsets.append(self._offsets.setdefault(delta.index, 0))
            self._offsets[delta.index] += len(token)
        return {
            "tokens": tokens,
            "token_logprobs": [logprobs.logprob if logprobs else None for _, logprobs in entries],
            "top_logprobs": [self._top(logprobs) if logprobs else None for _, logprobs in entries],
            "text_offset": offsets,
        }

    def _top(self, logprobs: TokenLogprobs) -> Raw:
        """The most likely tokens, and the chosen token if it is not one of them. Encoded immediately: a response may
        have a million entries, and encoding all at the end would take long.
        """
        top = {self._token_text(token_id): logprob for token_id, logprob in logprobs.top}
        top.setdefault(self._token_text(logprobs.token_id), logprobs.logprob)
        return encoded(top)

    def _envelope(self, choices: list[Wire], usage: Wire | None) -> Wire:
        chunk = {**self._head, "choices": choices}
        return {**chunk, "usage": usage} if self._include_usage or self._continuous_usage else chunk
