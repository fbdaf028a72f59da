"""The asynchronous front end: prompts in, text out, with the engine in a process or a thread."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from msgspec import structs

from llmk.api import PluginError
from llmk.config import logs
from llmk.engine.cooperative import Yielder
from llmk.engine.output_router import BlockListener, OutputRouter
from llmk.engine.processes.client import EngineClient
from llmk.engine.processes.replicas import Replicas
from llmk.engine.processes.spawn import AHEAD, spawn
from llmk.engine.processes.supervisor import Supervisor
from llmk.engine.text.input_processor import InputProcessor, default_params
from llmk.engine.text.io_processors import IOHost, IOProcessors, ProcessLost
from llmk.engine.text.output_processor import GenerationDelta
from llmk.engine.text.pinned_prefixes import PinnedPrefix, PinnedPrefixes, read_text
from llmk.engine.text.pooler import PARAMS
from llmk.engine.text.prompt_embeddings import Prompt, from_arrays
from llmk.engine.text.tokenizer import Tokenizer, tokenizer_options
from llmk.engine.wire.engine_info import EngineInfo, Outage
from llmk.engine.wire.prompt import EmbeddedPrompt
from llmk.engine.wire.rank_stats import RankStats
from llmk.engine.wire.request import EngineStats, RequestContext, Returns, StepTimes
from llmk.engine.wire.sampling_params import SamplingParams

if TYPE_CHECKING:
    from subprocess import Popen

    from llmk.config import Settings
    from llmk.engine.processes.engine_process import ProcessClient
    from llmk.planning.boot import Boot

__all__ = ["AsyncLLM", "GenerationDelta"]

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger(__name__)

IO_TRIES = 3
"""How often a request of an IO processor is run that was lost with others."""


class AsyncLLM:
    """A model that answers many requests at once. Make one with :meth:`start`, and :meth:`close` it."""

    def __init__(self, boot: Boot, client: EngineClient, tokenizer: Tokenizer) -> None:
        config = boot.settings.config
        self.boot = boot
        self.tokenizer = tokenizer
        self.model_name = config.model.served_name or boot.checkpoint.name
        self.adapters = {adapter.name: str(adapter.folder) for adapter in boot.adapters}
        """Folders of adapters, by name."""
        self.default_params = default_params(boot.checkpoint.generation_config)
        self._client = client
        self._input_processor = InputProcessor(
            tokenizer,
            self.info,
            seed=config.engine.seed,
            isolate_tenants=config.cache.isolate_tenants,
            adapters=self.adapters,
        )
        self._io = IOProcessors(boot, tokenizer, self.model_name, self.default_params)
        self._io_thread = ThreadPoolExecutor(1, thread_name_prefix="llmk-io")
        self.pins = PinnedPrefixes(lambda: self.stats.pins)
        self._router = OutputRouter(client, tokenizer, config)

    @classmethod
    async def start(
        cls,
        settings: Settings,
        *,
        spawned: Popen[bytes] | None = None,
        in_process: bool = False,
    ) -> AsyncLLM:
        """Resolves the plan and starts the engine, in a process of its own or (``in_process``) in a thread of this one.

        ``spawned`` is the process, where it is running already (:mod:`llmk.engine.processes.spawn`). Raises
        :class:`~llmk.api.LlmkError` where the model can't be served.
        """
        from llmk.engine.processes.engine_process import ProcessClient
        from llmk.planning.boot import boot as start_up
        from llmk.planning.packed_boot import early_setup

        async with contextlib.AsyncExitStack() as undo:
            process = None
            if not in_process:  # it imports what takes it longest while its plan is made
                process = ProcessClient(spawned or spawn(AHEAD))
                undo.push_async_callback(process.close)
            with logs.timed("plan"):
                boot = await asyncio.to_thread(start_up, settings, verify=in_process)
            if process:
                process.set_up_early(early_setup(boot))
            model = boot.settings.config.model
            with logs.timed("tokenizer"):
                tokenizer = await asyncio.to_thread(Tokenizer.load, boot.checkpoint, **tokenizer_options(model))
            undo.pop_all()
        return await cls.launch(boot, tokenizer, process)

    @classmethod
    async def launch(cls, boot: Boot, tokenizer: Tokenizer, process: ProcessClient | None = None) -> AsyncLLM:
        """Starts the engine of ``boot`` in a ``process`` that sets its device up already, or in a thread of this one.
        Raises what :meth:`start` raises; the process is then closed."""
        from llmk.engine.processes.start_engines import start_engines

        async with contextlib.AsyncExitStack() as undo:
            if process:
                undo.push_async_callback(process.close)
            configured = {pin: read_text(pin) for pin in boot.settings.config.cache.pins}
            client, boot = await (start_engines(boot, process) if process else _start_thread(boot))
            llm = cls(boot, client, tokenizer)
            undo.push_async_callback(llm.close)
            for pin, text in configured.items():
                context = RequestContext(pin.id, tenant=pin.tenant, cache_salt=pin.cache_salt)
                await llm.pin(text, context, seconds=pin.seconds)
            undo.pop_all()
        return llm

    @property
    def info(self) -> EngineInfo:
        """The engine's limits and plan; they may change when it is started again."""
        return self._client.info

    @property
    def stats(self) -> EngineStats:
        """The engine's latest gauges and counters."""
        return self._router.stats

    @property
    def replicas(self) -> Replicas | None:
        """The engines, where there are several."""
        return self._client if isinstance(self._client, Replicas) else None

    @property
    def ranks(self) -> dict[tuple[int, int], RankStats]:
        """What each rank said last of itself, by the number of its replica (0: there is one engine) and its own."""
        return self._router.ranks

    @property
    def step_listeners(self) -> list[Callable[[StepTimes], object]]:
        """Called with every step that ends."""
        return self._router.step_listeners

    @property
    def block_listeners(self) -> list[BlockListener]:
        """Called with the number of a replica (0: there is one engine) and what happened to its cached blocks."""
        return self._router.block_listeners

    @property
    def outage(self) -> Outage | None:
        """Set while the engine is dead and being started again."""
        return self._client.outage

    async def generate(
        self, prompt: Prompt | EmbeddedPrompt, params: SamplingParams, context: RequestContext
    ) -> AsyncGenerator[GenerationDelta, None]:
        """Yields the deltas of each of ``params.n`` choices, until all have ended. Closing the iterator aborts. Prompts
        are those of :meth:`llmk.LLM.generate`.

        Raises:
            ContextLengthExceeded: where the prompt leaves no room for a token.
            RequestError: where prompt or parameters can't be served, or the context's id is in use.
            Overloaded: where too many sequences run and wait, in all or of this tenant.
            RequestTimeout: where it was not started or done within the configured times.
            EngineDead: where the engine is gone, and was not started again in time.
        """
        tokens, params = await self._taken_in(prompt, params)
        sequences = self._input_processor.sequences(tokens, params, context)
        self._router.check_room(len(sequences), context.tenant)
        async with aclosing(self._router.answer(sequences)) as deltas:
            async for delta in deltas:
                yield delta

    async def pool(
        self, prompts: Sequence[list[int] | EmbeddedPrompt], returns: Returns, context: RequestContext
    ) -> AsyncGenerator[GenerationDelta, None]:
        """Yields what is returned of each prompt's hidden states, with its number as index, until all have ended.
        Closing the iterator aborts. Raises what :meth:`generate` raises."""
        self._input_processor.info = self.info
        self._router.check_room(len(prompts), context.tenant)
        sequences, yielder = [], Yielder()
        for number, prompt in enumerate(prompts):
            own = structs.replace(context, id=f"{context.id}/{number}")
            sequences += self._input_processor.sequences(prompt, PARAMS, own, returns)
            await yielder.step()
        async with aclosing(self._router.answer(sequences)) as deltas:
            async for delta in deltas:
                yield delta

    async def pin(self, prompt: str | list[int], context: RequestContext, *, seconds: float = 0.0) -> PinnedPrefix:
        """Keeps the full blocks of ``prompt`` in the cache for ``seconds`` (0: until it is unpinned), under the
        context's id, and in place of what that id pinned before; computes them first where they are not cached.

        Raises:
            RequestError: where it fills no block, or more than may be pinned.
        """
        tokens, params = await self._taken_in(prompt, SamplingParams(max_tokens=1, temperature=0.0))
        id, tenant, cache_salt = context.id, context.tenant, context.cache_salt
        sequences = self._input_processor.sequences(tokens, params, structs.replace(context, id=f"pin-{id}"))
        pinning = [structs.replace(sequence, pin=id, pin_seconds=seconds) for sequence in sequences]
        num_tokens = 0
        async with aclosing(self._router.answer(pinning)) as deltas:
            async for delta in deltas:
                num_tokens = delta.num_pinned_tokens
        pinned = PinnedPrefix(id, num_tokens, time.time() + seconds if seconds else None, cache_salt, tenant)
        self.pins.add(pinned)
        return pinned

    async def _taken_in(
        self, prompt: Prompt | EmbeddedPrompt, params: SamplingParams
    ) -> tuple[list[int] | EmbeddedPrompt, SamplingParams]:
        """Prompt and parameters without texts that are to be tokenized and arrays that are to be checked, which is done
        in a thread."""
        self._input_processor.info = self.info
        if params.bad_words:
            params = await asyncio.to_thread(self._input_processor.checked, params)
        if isinstance(prompt, str):
            prompt = await asyncio.to_thread(self.tokenizer.encode, prompt)
        elif not isinstance(prompt, list | EmbeddedPrompt):
            prompt = await asyncio.to_thread(from_arrays, prompt, self.info)
        return prompt, params

    async def unpin(self, id: str) -> bool:
        """Ends a pin; returns whether there was one."""
        known = self.pins.drop(id)
        await self._client.unpin([id])
        return known

    async def process(self, name: str, body: Mapping[str, Any], context: RequestContext) -> bytes:
        """The answer of the IO processor of that name or id to ``body``, as JSON. Cancelling it aborts.

        Raises what :meth:`generate` raises, UnknownIOProcessor where there is no such processor, and PluginError where
        it fails.
        """
        self._input_processor.info = self.info
        run = await self._in_thread(self._io.open, name, body, self._input_processor, context)
        self._router.check_room(len(run.sequences), context.tenant)
        async with aclosing(self._router.answer(run.sequences)) as deltas:
            async for delta in deltas:
                await self._in_thread(run.add, delta)
        return await self._in_thread(run.answer)

    async def process_in(self, host: IOHost, name: str, body: bytes, context: RequestContext) -> bytes:
        """The same for a body that was not read yet, by a processor that runs in ``host``.

        A request that was lost there by no fault of its own is run again.
        """
        id, called = self._io.resolve(name)
        info = structs.replace(self.info, plan={}, pickled_plan=b"")
        for _ in range(IO_TRIES):
            with contextlib.suppress(ProcessLost):
                run = await host.open(id, called, body, info, context)
                try:
                    self._router.check_room(len(run.sequences), context.tenant)
                    async with aclosing(self._router.answer(run.sequences)) as deltas:
                        async for delta in deltas:
                            await run.add(delta)
                    return await run.answer()
                finally:
                    run.close()
        raise PluginError(f"{called} ended its process {IO_TRIES} times while it ran other requests")

    @property
    def io_processors(self) -> list[dict[str, Any]]:
        """The IO processors that are installed (:meth:`~llmk.engine.text.io_processors.IOProcessors.describe`)."""
        return self._io.describe()

    async def _in_thread(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs a call of an IO processor in a thread, one at a time."""
        context = copy_context()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._io_thread, lambda: context.run(call, *args, **kwargs))

    def check_health(self) -> float:
        """Says at once for how many seconds a step has been running without a sign of life. Raises
        :class:`~llmk.api.EngineDead` where the engine is not well.
        """
        return self._client.check_health()

    async def close(self) -> None:
        """Stops the engine; requests that are being answered fail. Idempotent."""
        await self._router.close()
        await self._client.close()

    def check_room(self, num_new: int, tenant: str) -> None:
        """Raises :class:`~llmk.api.Overloaded` where ``num_new`` more sequences are too many, and RequestError where
        they always are."""
        self._router.check_room(num_new, tenant)

    async def abort(self, request_id: str, index: int | None = None) -> None:
        """Ends a request, or choice ``index`` of it. Its iterator yields a last delta with the finish reason
        ``"abort"`` for each choice that ends so."""
        await self._router.abort(request_id, index)


async def _start_thread(boot: Boot) -> tuple[EngineClient, Boot]:
    """An engine in a thread, and its boot. Imports torch only here."""
    from llmk.engine.launch import build_core
    from llmk.engine.processes.in_process_client import InProcessClient

    seconds = boot.settings.config.engine.restart_seconds
    client = await Supervisor.start(lambda: InProcessClient.start(lambda: build_core(boot)), restart_seconds=seconds)
    return client, boot
