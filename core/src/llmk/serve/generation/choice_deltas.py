"""A request's response as a stream of typed events, independent of the response format."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar

from msgspec.structs import replace

from llmk.api import EngineDead, Event, ToolCallFailed, ToolCallStart
from llmk.engine.cooperative import Yielder
from llmk.engine.text.output_streams import size_of
from llmk.engine.wire.prompt import EmbeddedPrompt, token_ids_of
from llmk.engine.wire.request import RequestContext, TokenLogprobs
from llmk.engine.wire.sampling_params import SamplingParams
from llmk.serve.generation.reading import PLAIN, ParsedPiece, Reader, Readers

if TYPE_CHECKING:
    from llmk.engine.text.output_processor import GenerationDelta, SequenceTimes

T = TypeVar("T")
R = TypeVar("R")

READY = 1 << 15
"""Tokens and log-probabilities that may be buffered between the engine and the client."""
PROMPT_SLICE = 32
"""Prompt tokens whose log-probabilities are sent at a time."""


class AnswerEngine(Protocol):
    """The part of :class:`llmk.engine.async_llm.AsyncLLM` that generates responses."""

    def check_room(self, num_new: int, tenant: str) -> None:
        """Raises Overloaded if ``num_new`` more sequences exceed a limit."""
        ...

    def generate(
        self,
        prompt: list[int] | EmbeddedPrompt,
        params: SamplingParams,
        context: RequestContext,
    ) -> AsyncGenerator[GenerationDelta, None]:
        """Generates text; closing the iterator aborts the request."""
        ...

    async def abort(self, request_id: str, index: int | None = None) -> None:
        """Aborts a request, or one choice of it."""
        ...


@dataclass(frozen=True, slots=True)
class Job:
    """A request to generate. The choices of prompt ``p`` have the indices ``p * n`` and up. ``reading`` is the encoded
    :class:`~llmk.serve.generation.reading.ReaderSetup` for parsing the text; empty if the text is not parsed.
    """

    context: RequestContext
    prompts: Sequence[list[int] | EmbeddedPrompt]
    params: SamplingParams
    reading: bytes = b""
    stop: Sequence[str] = ()
    """All stop strings, including those that the reader rather than the engine looks for."""
    unenforced: Sequence[str] = ()
    """Keywords of the request's schemas that are not enforced."""


@dataclass(slots=True)
class Usage:
    """Token counts of a response, complete when its stream has ended."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    pinned_tokens: dict[float, int] = field(default_factory=dict)
    """Tokens of the prompt that were not cached and are pinned now, by the seconds for which they are."""

    def pin(self, prefixes: Sequence[tuple[int, float]], lengths: Sequence[int], cached: int) -> None:
        """Counts the pinned ``lengths`` of a prompt's ``prefixes``, of which so many tokens were cached."""
        for (_, seconds), length in zip(prefixes, lengths, strict=False):
            self.pinned_tokens[seconds] = self.pinned_tokens.get(seconds, 0) + max(0, length - cached)
            cached = max(cached, length)


@dataclass(frozen=True, slots=True)
class ChoiceDelta:
    """New output of one choice. The last delta of a choice has a ``finish_reason``: stop, length or tool_calls."""

    index: int
    events: Sequence[Event]
    logprobs: Sequence[TokenLogprobs] = ()
    prompt: Sequence[tuple[int, TokenLogprobs | None]] = ()
    """Tokens and log-probabilities of the prompt, if requested; sent first, in separate deltas."""
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    times: SequenceTimes | None = None


@dataclass(slots=True)
class _Choice:
    """A running choice, its reader, and the number of its tool calls."""

    reader: Reader
    calls: int = 0
    closed: bool = False
    """Whether it has ended by its request's output rules, so that further output is dropped."""

    def take(self, piece: ParsedPiece, delta: GenerationDelta, usage: Usage) -> str | None:
        """Counts the tokens and events of ``delta``; returns the finish reason, if the choice has ended."""
        self.closed = piece.closed
        usage.completion_tokens += piece.num_tokens
        usage.reasoning_tokens += piece.num_thoughts
        for event in piece.events:
            self.calls += isinstance(event, ToolCallStart) - isinstance(event, ToolCallFailed)
        finish_reason = "stop" if piece.closed else delta.finish_reason
        return "tool_calls" if self.calls and finish_reason == "stop" else finish_reason


async def answer(engine: AnswerEngine, job: Job, usage: Usage, readers: Readers) -> AsyncGenerator[ChoiceDelta, None]:
    """Runs ``job`` and counts tokens in ``usage``. Closing the iterator aborts all sequences of the job.

    Raises the engine's exceptions, and :class:`~llmk.serve.http.errors.ParserFailed`.
    """
    engine.check_room(len(job.prompts) * job.params.n, job.context.tenant)
    seen: set[int] = set()
    async with aclosing(_read(engine, job, readers)) as items:
        async for at, choice, readings in items:
            for delta, reading in readings:
                if at not in seen:
                    seen.add(at)
                    usage.prompt_tokens += delta.num_prompt_tokens
                    usage.cached_tokens += delta.num_cached_tokens
                    usage.pin(job.context.prefixes, delta.pinned_prefixes, delta.num_cached_tokens)
                if choice.closed:
                    continue  # output that the engine generated before it was aborted
                piece = reading if isinstance(reading, ParsedPiece) else await reading
                index = at * job.params.n + delta.index
                finish_reason = choice.take(piece, delta, usage)
                if piece.closed and delta.finish_reason is None:
                    await engine.abort(_part_id(job, at), delta.index)
                stop_reason = piece.stop_reason if piece.closed else delta.stop_reason
                if delta.prompt_logprobs:
                    for part in _slices(token_ids_of(job.prompts[at]), delta.prompt_logprobs):
                        yield ChoiceDelta(index, (), prompt=part)
                logprobs = _visible_logprobs(delta, job.params)[: piece.num_tokens]
                yield ChoiceDelta(index, piece.events, logprobs, (), finish_reason, stop_reason, delta.times)


_Reading = tuple[int, _Choice, Sequence["tuple[GenerationDelta, ParsedPiece | asyncio.Future[ParsedPiece]]"]]


async def _read(engine: AnswerEngine, job: Job, readers: Readers) -> AsyncGenerator[_Reading, None]:
    """The deltas of all choices, with the results of their readers, or futures of them. Deltas are passed to the
    readers as soon as they arrive, so that a reader in a worker gets them in one batch.
    """
    choices: dict[int, _Choice] = {}

    def open_stream(at: int) -> AsyncGenerator[GenerationDelta, None]:
        return engine.generate(job.prompts[at], job.params, replace(job.context, id=_part_id(job, at)))

    def read(at: int, delta: GenerationDelta) -> _Reading:
        index = at * job.params.n + delta.index
        if (choice := choices.get(index)) is None:
            choice = choices[index] = _Choice(readers.open(job.reading) if job.reading else PLAIN)
        if choice.closed:
            return at, choice, [(delta, ParsedPiece(()))]
        if delta.finish_reason in ("abort", "error"):
            raise EngineDead(f"the engine ended the request before it was done ({delta.finish_reason})")
        # Log-probabilities are sent with the events of their own tokens.
        parts = delta.split() if delta.logprobs else (delta,)
        reader = choice.reader
        return (
            at,
            choice,
            [(part, reader.read(part.text, part.parts, ended=bool(part.finish_reason))) for part in parts],
        )

    count = len(job.prompts)
    merging = merged(open_stream, count, read, size_of) if count > 1 else alone(open_stream, read)
    try:
        async with aclosing(merging) as items:
            async for item in items:
                yield item
    finally:
        for choice in choices.values():
            choice.reader.close()


def _part_id(job: Job, at: int) -> str:
    return job.context.id if len(job.prompts) == 1 else f"{job.context.id}-{at}"


def _slices(
    tokens: Sequence[int], logprobs: Sequence[TokenLogprobs | None]
) -> Iterator[Sequence[tuple[int, TokenLogprobs | None]]]:
    for start in range(0, len(logprobs), PROMPT_SLICE):
        end = start + PROMPT_SLICE
        yield list(zip(tokens[start:end], logprobs[start:end], strict=True))


def _visible_logprobs(delta: GenerationDelta, params: SamplingParams) -> Sequence[TokenLogprobs]:
    """Log-probabilities of the tokens that are part of the text, without the token that ended it."""
    hidden = delta.finish_reason == "stop" and not isinstance(delta.stop_reason, str) and not params.include_stop
    return delta.logprobs[:-1] if hidden else delta.logprobs


async def alone(
    open_stream: Callable[[int], AsyncGenerator[T, None]], take: Callable[[int, T], R]
) -> AsyncGenerator[R, None]:
    """The same as :func:`merged` for one stream, which is read directly: what is not read yet waits in the stream."""
    async with aclosing(open_stream(0)) as items:
        async for item in items:
            yield take(0, item)


async def merged(
    open_stream: Callable[[int], AsyncGenerator[T, None]],
    count: int,
    take: Callable[[int, T], R],
    size_of: Callable[[T], int],
) -> AsyncGenerator[R, None]:
    """Merges ``count`` streams: yields ``take(number, item)`` for each item of each stream, as they arrive.

    An error in one stream ends all, as does closing the iterator. Streams are opened one at a time, so that opening
    many does not block the event loop. Reading from them pauses while items with a total ``size_of`` of :data:`READY`
    are buffered.
    """
    ready: asyncio.Queue[tuple[int, R | Exception | None]] = asyncio.Queue()
    buffered, room = 0, asyncio.Event()

    async def pump(number: int) -> None:
        nonlocal buffered
        try:
            yielder = Yielder()
            async with aclosing(open_stream(number)) as items:
                async for item in items:
                    while buffered >= READY:
                        room.clear()
                        await room.wait()
                    size = size_of(item)
                    buffered += size
                    ready.put_nowait((size, take(number, item)))
                    await yielder.step()
            ready.put_nowait((0, None))
        except Exception as error:
            ready.put_nowait((0, error))

    async def open_all() -> None:
        for number in range(count):
            tasks.append(asyncio.create_task(pump(number)))
            await asyncio.sleep(0)

    tasks: list[asyncio.Task[None]] = []
    opening = asyncio.create_task(open_all())
    try:
        left = count
        while left:
            size, got = await ready.get()
            buffered -= size
            room.set()
            if isinstance(got, Exception):
                raise got
            if got is None:
                left -= 1
            else:
                yield got
    finally:
        opening.cancel()
        for task in tasks:
            task.cancel()
        await asyncio.gather(opening, *tasks, return_exceptions=True)
