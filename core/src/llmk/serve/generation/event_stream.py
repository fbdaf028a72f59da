"""One request's answer as one stream of typed events, whatever it is rendered to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from msgspec.structs import replace

from llmk.api import EngineDead, Event, ToolCallFailed, ToolCallStart
from llmk.engine.cooperative import Yielder
from llmk.engine.text.output_streams import size_of
from llmk.engine.wire.request import RequestContext, SamplingParams, TokenLogprobs
from llmk.serve.generation.reading import PLAIN, ParsedPiece, Reader, Readers

if TYPE_CHECKING:
    from llmk.engine.text.output_processor import GenerationDelta, SequenceTimes

T = TypeVar("T")
R = TypeVar("R")

READY = 1 << 15
"""Tokens and log-probabilities that are taken from the engine ahead of what is sent."""
PROMPT_SLICE = 32
"""Tokens of a prompt whose log-probabilities are told at a time."""


class AnswerEngine(Protocol):
    """The part of :class:`llmk.engine.async_llm.AsyncLLM` that answers are made from."""

    def check_room(self, num_new: int, tenant: str) -> None:
        """Raises where so many more sequences are too many."""
        ...

    def generate(
        self,
        prompt: str | list[int],
        params: SamplingParams,
        context: RequestContext,
    ) -> AsyncGenerator[GenerationDelta, None]:
        """Generates; closing the iterator aborts."""
        ...

    async def abort(self, request_id: str, index: int | None = None) -> None:
        """Ends a request, or one choice of it."""
        ...


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be generated. Prompt ``p`` has the indices ``p * n`` and up. ``reading`` is the encoded
    :class:`~llmk.serve.generation.reading.ReaderSetup` of what reads its text, empty where nothing does.
    """

    context: RequestContext
    prompts: Sequence[list[int]]
    params: SamplingParams
    reading: bytes = b""
    stop: Sequence[str] = ()
    """Texts that end it, whoever looks for them."""


@dataclass(slots=True)
class Usage:
    """Token counts of an answer, complete when its stream has ended."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ChoiceDelta:
    """What came to one choice. The last delta of a choice has a ``finish_reason``: stop, length or tool_calls."""

    index: int
    events: Sequence[Event]
    logprobs: Sequence[TokenLogprobs] = ()
    prompt: Sequence[tuple[int, TokenLogprobs | None]] = ()
    """Tokens and log-probabilities of the prompt, where they are asked for: in deltas of their own, the first."""
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    times: SequenceTimes | None = None


@dataclass(slots=True)
class _Choice:
    """A choice under way: who reads it, and whose the tokens are that no event has accounted for yet."""

    reader: Reader
    thinking: bool = False
    pending: int = 0
    calls: int = 0
    closed: bool = False
    """Whether it has ended by its request's rules, so that what still comes is not part of it."""

    def take(self, piece: ParsedPiece, delta: GenerationDelta, usage: Usage) -> str | None:
        """Counts what ``delta`` came to; returns why the choice has ended, if it has: by itself, or by its request's
        rules."""
        self.closed = piece.closed
        ended = delta.finish_reason is not None or piece.closed
        self._count(piece, len(delta.token_ids), usage, ended=ended)
        for event in piece.events:
            self.calls += isinstance(event, ToolCallStart) - isinstance(event, ToolCallFailed)
        finish_reason = "stop" if piece.closed else delta.finish_reason
        return "tool_calls" if self.calls and finish_reason == "stop" else finish_reason

    def _count(self, piece: ParsedPiece, num_tokens: int, usage: Usage, *, ended: bool) -> None:
        """Tokens belong to what they lead to, the markers of thinking included."""
        usage.completion_tokens += num_tokens
        self.pending += num_tokens
        if piece.split or ended:
            if self.thinking or piece.thought:
                usage.reasoning_tokens += self.pending
            self.pending = 0
        if piece.split:
            self.thinking = piece.thinking


async def answer(engine: AnswerEngine, job: Job, usage: Usage, readers: Readers) -> AsyncGenerator[ChoiceDelta, None]:
    """Runs ``job`` and counts into ``usage``. Closing the iterator aborts every sequence of it.

    Raises what the engine raises, and :class:`~llmk.serve.http.errors.ParserFailed`.
    """
    engine.check_room(len(job.prompts) * job.params.n, job.context.tenant)
    seen: set[int] = set()
    async with aclosing(_read(engine, job, readers)) as items:
        async for at, delta, choice, reading in items:
            if at not in seen:
                seen.add(at)
                usage.prompt_tokens += delta.num_prompt_tokens
                usage.cached_tokens += delta.num_cached_tokens
            if choice.closed:
                continue  # what the engine had made before it was aborted
            piece = reading if isinstance(reading, ParsedPiece) else await reading
            index = at * job.params.n + delta.index
            finish_reason = choice.take(piece, delta, usage)
            if piece.closed and delta.finish_reason is None:
                await engine.abort(_part_id(job, at), delta.index)
            stop_reason = piece.stop_reason if piece.closed else delta.stop_reason
            if delta.prompt_logprobs:
                for told in _slices(job.prompts[at], delta.prompt_logprobs):
                    yield ChoiceDelta(index, (), prompt=told)
            spoken = _spoken(delta, job.params)
            yield ChoiceDelta(index, piece.events, spoken, (), finish_reason, stop_reason, delta.times)


_Reading = tuple[int, "GenerationDelta", _Choice, "ParsedPiece | asyncio.Future[ParsedPiece]"]


async def _read(engine: AnswerEngine, job: Job, readers: Readers) -> AsyncGenerator[_Reading, None]:
    """What comes to all choices, with what is being read of it. Whatever is there is given to the readers at once: one
    that works elsewhere may take it together.
    """
    choices: dict[int, _Choice] = {}

    def open_stream(at: int) -> AsyncGenerator[GenerationDelta, None]:
        return engine.generate(job.prompts[at], job.params, replace(job.context, id=_part_id(job, at)))

    def read(at: int, delta: GenerationDelta) -> _Reading:
        index = at * job.params.n + delta.index
        if (choice := choices.get(index)) is None:
            choice = choices[index] = _Choice(readers.open(job.reading) if job.reading else PLAIN)
        if choice.closed:
            return at, delta, choice, ParsedPiece(())
        if delta.finish_reason in ("abort", "error"):
            raise EngineDead(f"the engine ended the request before it was done ({delta.finish_reason})")
        reading = choice.reader.read(delta.text, len(delta.token_ids), ended=delta.finish_reason is not None)
        return at, delta, choice, reading

    try:
        async with aclosing(merged(open_stream, len(job.prompts), read, size_of)) as items:
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


def _spoken(delta: GenerationDelta, params: SamplingParams) -> Sequence[TokenLogprobs]:
    """Log-probabilities of tokens that are part of the text: not of the token that ended it."""
    silent = delta.finish_reason == "stop" and not isinstance(delta.stop_reason, str) and not params.include_stop
    return delta.logprobs[:-1] if silent else delta.logprobs


async def merged(
    open_stream: Callable[[int], AsyncGenerator[T, None]],
    count: int,
    take: Callable[[int, T], R],
    weigh: Callable[[T], int],
) -> AsyncGenerator[R, None]:
    """What ``take`` makes of the items of ``count`` streams, with their stream's number, as they come.

    An error ends all of them, as does closing. Streams are opened one by one, so that opening many does not hold the
    event loop. Nothing more is taken from them while what weighs :data:`READY` by ``weigh`` waits here.
    """
    ready: asyncio.Queue[tuple[int, R | Exception | None]] = asyncio.Queue()
    waits, room = 0, asyncio.Event()

    async def pump(number: int) -> None:
        nonlocal waits
        try:
            breather = Yielder()
            async with aclosing(open_stream(number)) as items:
                async for item in items:
                    while waits >= READY:
                        room.clear()
                        await room.wait()
                    weight = weigh(item)
                    waits += weight
                    ready.put_nowait((weight, take(number, item)))
                    await breather.step()
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
            weight, got = await ready.get()
            waits -= weight
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
