"""Sends conversations when they are due, and records when each answer came. One process; see ``runner``."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from random import Random
from time import monotonic
from typing import Any

import msgspec

from llmk_bench.connections import ConnectionFailed, Connections
from llmk_bench.load import Load
from llmk_bench.prompts import Conversation
from llmk_bench.sample import Sample
from llmk_bench.target import Target

ERROR_LENGTH = 300


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: msgspec.Raw = msgspec.Raw()


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Chunk).decode
NO_CALLS = (b"", b"null", b"[]")


class Answer:
    """Takes in the events of one request, for its sample. ``text`` is what was said, for the next turn.

    An event counts where it has text, reasoning or a tool call: neither a first one that only names the role, nor a
    last one that only has the reason of the end. Where all are empty, as with special tokens alone, all count.
    """

    def __init__(self, sample: Sample, start: float) -> None:
        self._sample = sample
        self._start = start
        self._pieces: list[str] = []
        self._empty: list[float] = []

    def on_event(self, data: bytes, now: float) -> None:
        """Takes in an event."""
        if data == b"[DONE]":
            return
        try:
            chunk = _decode(data)
        except msgspec.DecodeError as error:
            self._sample.error = f"{error}: {data[:ERROR_LENGTH].decode(errors='replace')}"
            return
        if chunk.error is not None:
            self._sample.error = str(chunk.error)[:ERROR_LENGTH]
        if chunk.choices:
            text, counts = _output(chunk.choices[0])
            (self._sample.arrivals if counts else self._empty).append(now - self._start)
            self._pieces.append(text)
        if chunk.usage is not None:
            self._sample.tokens = chunk.usage.completion_tokens
            self._sample.prompt_tokens = chunk.usage.prompt_tokens

    def finish(self, status: int, body: bytes) -> str:
        """Completes the sample; returns the text."""
        sample = self._sample
        if status != 200 and not sample.error:
            sample.error = f"{status}: {body[:ERROR_LENGTH].decode(errors='replace')}"
        sample.arrivals = sample.arrivals or self._empty
        sample.tokens = sample.tokens or len(sample.arrivals)
        if not sample.arrivals and not sample.error:
            sample.error = "the answer has no tokens"
        return "".join(self._pieces)


def _output(choice: _Choice) -> tuple[str, bool]:
    """The text of a choice's event, and whether it has output of any kind."""
    if choice.delta is None:
        return choice.text or "", bool(choice.text)
    delta = choice.delta
    thought = delta.reasoning_content or delta.reasoning
    return delta.content or "", bool(delta.content or thought or bytes(delta.tool_calls) not in NO_CALLS)


class Client:
    """Sends conversations to ``target``, from ``start`` (of :func:`time.monotonic`) on."""

    def __init__(self, target: Target, load: Load, start: float, number: int = 0) -> None:
        self._target = target
        self._load = load
        self._start = start
        self._random = Random(f"think {load.seed} {number}")
        self._connections = Connections(target.url, target.all_headers)
        self.samples: list[Sample] = []

    async def run(self, jobs: Iterable[tuple[float, Conversation]]) -> list[Sample]:
        """Sends conversations, each when it is due and, where concurrency is bounded, another has ended. Returns a
        sample for each request that was sent."""
        waiting = iter(jobs)
        try:
            if self._load.concurrency:
                await asyncio.gather(*(self._in_turn(waiting) for _ in range(self._load.concurrency)))
            else:
                await asyncio.gather(*(self._converse(due, talk) for due, talk in waiting))
        finally:
            self._connections.close()
        return self.samples

    async def _in_turn(self, waiting: Iterable[tuple[float, Conversation]]) -> None:
        for due, conversation in waiting:
            await self._converse(max(due, monotonic() - self._start), conversation)

    async def _converse(self, due: float, conversation: Conversation) -> None:
        history: list[Any] = []
        for number, turn in enumerate(conversation.turns):
            if number:
                due = monotonic() - self._start
                due += self._random.expovariate(1.0 / self._load.think) if self._load.think else 0.0
            history.append(turn.prompt)
            sample = Sample(due, turn.new, number, conversation.special)
            await asyncio.sleep(self._start + due - monotonic())
            history.append(await self._ask(sample, self._target.request(history, turn.new)))
            if sample.error:
                return

    async def _ask(self, sample: Sample, body: bytes) -> str:
        answer = Answer(sample, self._start)
        self.samples.append(sample)
        sample.sent = monotonic() - self._start
        try:
            response = await self._connections.send(self._target.path, body, answer.on_event)
        except ConnectionFailed as error:
            sample.error = str(error)
            return ""
        return answer.finish(response.status, bytes(response.body))
