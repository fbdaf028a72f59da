"""One request's answer as one stream of typed events, whatever it is rendered to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from llmk.api import EngineDead, Event, ReasoningDelta, ToolCallStart
from llmk.engine.request import SamplingParams, TokenLogprobs
from llmk.serve.parsing import Chain

if TYPE_CHECKING:
    from llmk.engine.output import GenerationDelta, SequenceTimes

T = TypeVar("T")


class Engine(Protocol):
    """The part of :class:`llmk.engine.frontend.AsyncLLM` that answers are made from."""

    def generate(
        self,
        prompt: str | list[int],
        params: SamplingParams,
        *,
        request_id: str,
        priority: int = 0,
        cache_salt: str = "",
        tenant: str = "",
    ) -> AsyncGenerator[GenerationDelta, None]:
        """Generates; closing the iterator aborts."""
        ...


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be generated. ``chain`` makes one choice's parsers. Prompt ``p`` has the indices ``p * n`` and up."""

    id: str
    prompts: Sequence[list[int]]
    params: SamplingParams
    chain: Callable[[], Chain]
    priority: int = 0
    cache_salt: str = ""
    tenant: str = ""


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
    """With the first delta, tokens and log-probabilities of the prompt, where they were asked for."""
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    times: SequenceTimes | None = None


@dataclass(slots=True)
class _Choice:
    """A choice under way: its parsers, and whose the tokens are that no event has accounted for yet."""

    chain: Chain
    thinking: bool = False
    pending: int = 0
    calls: int = 0

    def take(self, delta: GenerationDelta, usage: Usage) -> tuple[list[Event], str | None]:
        events = self.chain.push(delta.text)
        if delta.finish_reason is not None:
            events += self.chain.finish()
        self._count(len(delta.token_ids), usage, ended=delta.finish_reason is not None)
        self.calls += sum(isinstance(event, ToolCallStart) for event in events)
        called = self.calls and delta.finish_reason == "stop"
        return events, "tool_calls" if called else delta.finish_reason

    def _count(self, num_tokens: int, usage: Usage, *, ended: bool) -> None:
        """Tokens belong to what they lead to, the markers of thinking included."""
        usage.completion_tokens += num_tokens
        self.pending += num_tokens
        split = self.chain.split
        if split or ended:
            if self.thinking or any(isinstance(event, ReasoningDelta) for event in split):
                usage.reasoning_tokens += self.pending
            self.pending = 0
        if split:
            self.thinking = isinstance(split[-1], ReasoningDelta)


async def answer(engine: Engine, job: Job, usage: Usage) -> AsyncGenerator[ChoiceDelta, None]:
    """Runs ``job`` and counts into ``usage``. Closing the iterator aborts every sequence of it.

    Raises what the engine raises, and :class:`~llmk.serve.errors.ParserFailed`.
    """
    choices: dict[int, _Choice] = {}
    generate = partial(engine.generate, priority=job.priority, cache_salt=job.cache_salt, tenant=job.tenant)
    streams = [generate(prompt, job.params, request_id=_part_id(job, at)) for at, prompt in enumerate(job.prompts)]
    seen: set[int] = set()
    async with aclosing(merged(streams)) as deltas:
        async for at, delta in deltas:
            if at not in seen:
                seen.add(at)
                usage.prompt_tokens += delta.num_prompt_tokens
                usage.cached_tokens += delta.num_cached_tokens
            if delta.finish_reason in ("abort", "error"):
                raise EngineDead(f"the engine ended the request before it was done ({delta.finish_reason})")
            index = at * job.params.n + delta.index
            choice = choices.get(index)
            if choice is None:
                choice = choices[index] = _Choice(job.chain())
            events, finish_reason = choice.take(delta, usage)
            told = list(zip(job.prompts[at], delta.prompt_logprobs, strict=True)) if delta.prompt_logprobs else ()
            spoken = _spoken(delta, job.params)
            yield ChoiceDelta(index, events, spoken, told, finish_reason, delta.stop_reason, delta.times)


def _spoken(delta: GenerationDelta, params: SamplingParams) -> Sequence[TokenLogprobs]:
    """Log-probabilities of tokens that are part of the text: not of the token that ended it."""
    silent = delta.finish_reason == "stop" and not isinstance(delta.stop_reason, str) and not params.include_stop
    return delta.logprobs[:-1] if silent else delta.logprobs


def _part_id(job: Job, at: int) -> str:
    return job.id if len(job.prompts) == 1 else f"{job.id}-{at}"


async def merged(streams: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[tuple[int, T], None]:
    """Items of all ``streams`` as they come, with their stream's number. An error ends all of them, as does closing."""
    if len(streams) == 1:
        async with aclosing(streams[0]) as only:
            async for item in only:
                yield 0, item
        return
    ready: asyncio.Queue[tuple[int, T] | Exception | None] = asyncio.Queue()

    async def pump(number: int, stream: AsyncGenerator[T, None]) -> None:
        try:
            async with aclosing(stream) as items:
                async for item in items:
                    ready.put_nowait((number, item))
            ready.put_nowait(None)
        except Exception as error:
            ready.put_nowait(error)

    tasks = [asyncio.create_task(pump(number, stream)) for number, stream in enumerate(streams)]
    try:
        left = len(tasks)
        while left:
            got = await ready.get()
            if isinstance(got, Exception):
                raise got
            if got is None:
                left -= 1
            else:
                yield got
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
