"""Hands what the engine sends to the requests that wait for it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable

from llmk.api import EngineDead, LlmkError, Overloaded, RequestError
from llmk.api.errors import describe
from llmk.config.schema import Config
from llmk.engine.cooperative import Yielder
from llmk.engine.processes.client import EngineClient
from llmk.engine.text.input_processor import sequence_id
from llmk.engine.text.output_processor import GenerationDelta, SequenceOutput
from llmk.engine.text.output_streams import AnswerNotRead, OutputStream, UnreadCounter
from llmk.engine.text.tokenizer import Tokenizer
from llmk.engine.wire.block_events import BlockEvent
from llmk.engine.wire.rank_stats import RankStats
from llmk.engine.wire.request import EngineRequest, EngineStats, StepTimes, TokenOutput

logger = logging.getLogger(__name__)

BlockListener = Callable[[int, list[BlockEvent]], object]

_TOKENS_AT_ONCE = 1 << 16
"""Prompt tokens that are sent to the engine without a pause: about two milliseconds' worth."""
_STEPS_AT_ONCE = 8
"""Steps whose outputs may be handed out before the requests that they are for go on. Steps wait where the front end is
slower than the engine; sending the tokens of several at once is what lets it catch up."""
_WOKEN = 8
"""Requests that send something to their clients before the event loop gets to others."""


class OutputRouter:
    """The requests that are being answered, over the engine that ``client`` speaks to.

    ``stats`` are the engine's latest; ``step_listeners`` are called with every step that ends, ``block_listeners`` with
    the number of a replica and what happened to its cached blocks.
    """

    def __init__(self, client: EngineClient, tokenizer: Tokenizer, config: Config) -> None:
        self.stats = EngineStats(total_blocks=client.info.num_blocks)
        self.step_listeners: list[Callable[[StepTimes], object]] = []
        self.block_listeners: list[BlockListener] = []
        self.ranks: dict[tuple[int, int], RankStats] = {}
        """What each rank said last of itself, by the number of its replica and its own."""
        self._client = client
        self._tokenizer = tokenizer
        self._max_per_tenant = config.scheduler.max_per_tenant
        self._max_sequences = config.scheduler.max_num_seqs + config.scheduler.max_waiting
        self._unread = UnreadCounter(config.server.max_unread, config.server.max_unread_per_client)
        self._requests: dict[str, OutputStream] = {}
        """By request id."""
        self._streams: dict[str, OutputStream] = {}
        """The same by sequence id, while the sequence has not ended."""
        self._due: dict[OutputStream, None] = {}
        """Those that got something since they were last woken; a dictionary for its order."""
        self._dead: EngineDead | None = None
        """Why no output will arrive any more."""
        self._pump = asyncio.create_task(self._deliver(), name="llmk-outputs")

    async def answer(self, sequences: list[EngineRequest]) -> AsyncGenerator[GenerationDelta, None]:
        """Runs the sequences of a request; yields their deltas until all have ended. Closing the iterator aborts."""
        request_id = sequences[0].context.id
        if self._dead is not None:
            raise EngineDead(self._dead.message, hint=self._dead.hint)
        if request_id in self._requests:
            raise RequestError(f"a request with the id {request_id!r} is being answered")
        stream = self._open(request_id, sequences)
        try:
            await self._add(sequences)
            unfinished = len(sequences)
            while unfinished:
                delta = await stream.next()
                unfinished -= delta.finish_reason is not None
                yield delta
        finally:
            await self._forget(request_id, stream)

    async def _add(self, sequences: list[EngineRequest]) -> None:
        """Gives sequences to the engine, few at a time where they are long: each is encoded by itself."""
        some: list[EngineRequest] = []
        size = 0
        for sequence in sequences:
            length = _TOKENS_AT_ONCE if sequence.embeddings else len(sequence.prompt_token_ids)
            if some and size + length > _TOKENS_AT_ONCE:
                await self._client.add(some)
                await asyncio.sleep(0)
                some, size = [], 0
            some.append(sequence)
            size += length
        await self._client.add(some)

    async def abort(self, request_id: str, index: int | None = None) -> None:
        """Ends a request, or choice ``index`` of it. Who iterates over it gets a last delta with the finish reason
        ``"abort"`` for each choice that ends so."""
        stream = self._requests.get(request_id)
        if stream is not None:
            wanted = None if index is None else sequence_id(request_id, index)
            ids = [id for id in stream.sequences if wanted in (None, id)]
            for id in ids:
                self._take(TokenOutput(id=id, finish_reason="abort"), 0.0)
            stream.wake()
            await self._client.abort(ids)

    async def close(self) -> None:
        """Fails the requests that are being answered. Idempotent."""
        self._pump.cancel()
        await asyncio.gather(self._pump, return_exceptions=True)
        self._fail(EngineDead("the engine was closed"))

    def check_room(self, num_new: int, tenant: str) -> None:
        """Raises :class:`~llmk.api.Overloaded` where ``num_new`` more sequences are too many, and RequestError where
        they always are."""
        if num_new > (most := min(self._max_sequences, self._max_per_tenant or num_new)):
            what = f"the request comes to {num_new} sequences; no more than {most} may run and wait"
            limits = "scheduler.max_num_seqs and max_waiting, or scheduler.max_per_tenant"
            hint = "send fewer prompts in one request, or a smaller 'n'"
            raise RequestError(f"{what} ({limits})", param="prompt", hint=hint)
        if len(self._streams) + num_new > self._max_sequences:
            raise Overloaded(f"{len(self._streams)} sequences run and wait; no more than {self._max_sequences} may")
        if limit := self._max_per_tenant:
            mine = sum(len(stream.sequences) for stream in self._requests.values() if stream.tenant == tenant)
            if mine + num_new > limit:
                what = f"{mine} sequences of this client run and wait"
                raise Overloaded(f"{what}; no more than {limit} (scheduler.max_per_tenant) may")

    def _open(self, request_id: str, sequences: list[EngineRequest]) -> OutputStream:
        stream = self._requests[request_id] = OutputStream(sequences[0], self._unread)
        for index, sequence in enumerate(sequences):
            stream.sequences[sequence.id] = SequenceOutput(
                sequence.params,
                self._tokenizer.detokenizer(sequence.params.skip_special_tokens),
                index=index,
                num_prompt_tokens=len(sequence.prompt_token_ids),
            )
            self._streams[sequence.id] = stream
        return stream

    async def _forget(self, request_id: str, stream: OutputStream) -> None:
        """Drops a request, and ends in the engine what has not ended. Nothing here waits, so nothing can interrupt
        it.
        """
        del self._requests[request_id]
        stream.drop()
        ids = list(stream.sequences)
        for id in ids:
            del self._streams[id]
        if ids:
            with contextlib.suppress(EngineDead):
                await self._client.abort(ids)

    async def _deliver(self) -> None:
        """Hands out what the engine sends, until it is gone."""
        breather, num_steps = Yielder(), 0
        try:
            while True:
                if num_steps == _STEPS_AT_ONCE or not self._client.outputs.has_more:
                    await self._wake()
                    num_steps = 0
                outputs = await self._client.outputs.next()
                num_steps += 1
                self.stats = outputs.stats
                if outputs.step is not None:  # first, so that metrics have the steps of every output that was read
                    for listener in self.step_listeners:
                        listener(outputs.step)
                for notice in self.block_listeners if outputs.blocks else ():
                    notice(outputs.replica, outputs.blocks)
                for rank in outputs.ranks:
                    self.ranks[outputs.replica, rank.rank] = rank
                stopped = []
                for output in outputs.outputs:
                    if self._take(output, outputs.time):
                        stopped.append(output.id)
                    await breather.step()
                stopped += self._end_unread()
                if stopped:
                    await self._client.abort(stopped)
        except EngineDead as error:
            logger.error("%s", error)
            self._dead = error
        except Exception as error:
            logger.exception("outputs can't be handed out any more")
            self._dead = EngineDead(f"the front end failed: {describe(error)}")
        self._fail(self._dead)

    async def _wake(self) -> None:
        """Has requests go on that got something, few at a time, as each then holds the event loop to send it."""
        due, self._due = self._due, {}
        for number, stream in enumerate(due, 1):
            stream.wake()
            if number % _WOKEN == 0:
                await asyncio.sleep(0)

    def _take(self, output: TokenOutput, time: float) -> bool:
        """Hands an output of ``time`` to its request; returns whether the sequence has ended here and the engine
        doesn't know yet."""
        stream = self._streams.get(output.id)
        if stream is None:
            return False
        self._due[stream] = None
        try:
            ended = stream.take(output, time)
        except Exception as error:
            logger.exception("the output of %s could not be read", output.id, extra={"request_id": stream.request_id})
            stream.fail(LlmkError(f"the output could not be read: {type(error).__name__}: {error}"))
            return False
        if ended:
            del self._streams[output.id]
        return ended and output.finish_reason is None

    def _end_unread(self) -> list[str]:
        """Ends requests of which too much waits; returns the sequences that the engine must end."""
        ended: list[str] = []
        while (over := self._unread.over()) is not None:
            tenant, key = over
            stream = max(
                (stream for stream in self._requests.values() if stream.tenant == tenant), key=lambda one: one.held
            )
            if stream.holds_one and stream.held == self._unread.tenants[tenant]:
                break
            what = f"{stream.held} tokens and log-probabilities of the answer wait to be read, more than may ({key})"
            stream.drop()
            stream.fail(AnswerNotRead(what, hint="read faster, or request less at once"))
            for id in stream.sequences:
                del self._streams[id]
                ended.append(id)
            stream.sequences.clear()
        return ended

    def _fail(self, error: EngineDead) -> None:
        for stream in self._requests.values():
            stream.fail(EngineDead(error.message, hint=error.hint))
