"""An engine that follows a test's script, for orders of events that can't be provoked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from llmk.api import EngineDead
from llmk.engine.processes.output_queue import OutputQueue, OutputSink
from llmk.engine.wire.engine_info import EngineInfo
from llmk.engine.wire.request import EngineOutputs, EngineRequest, EngineStats, TokenOutput
from llmk.engine.wire.sampling_params import SamplingParams


def request(id_: str, prompt: tuple[int, ...] = (1, 2, 3), **params) -> EngineRequest:
    return EngineRequest(id=id_, prompt_token_ids=list(prompt), params=SamplingParams(**params), seed=5)


class Engine:
    """An engine that follows the test's script, and keeps what it was sent."""

    outage = None
    culprit = None

    def __init__(self, num_blocks: int = 8) -> None:
        self.info = EngineInfo(max_model_len=64, vocab_size=9, block_size=4, num_blocks=num_blocks, plan={})
        self.added: list[EngineRequest] = []
        self.aborted: list[str] = []
        self.closed = False
        self.unpinned: list[str] = []
        self.well = True
        self.outputs = OutputQueue()
        self._sink: OutputSink = self.outputs

    @property
    def ids(self) -> list[str]:
        return [added.id for added in self.added]

    async def say(self, *outputs: TokenOutput, admitted: tuple[str, ...] = ()) -> None:
        self._sink.put(EngineOutputs(outputs=list(outputs), admitted=list(admitted), stats=EngineStats(steps=1)))
        await settle()

    async def die(self, error: Exception | None = None) -> None:
        def cause() -> EngineDead:
            if error is not None:
                raise error
            return EngineDead("it was killed")

        self._sink.end(cause)
        await settle()

    async def add(self, requests: list[EngineRequest]) -> None:
        self.added += requests

    async def abort(self, ids) -> None:
        self.aborted += ids

    def forward(self, sink: OutputSink) -> None:
        self._sink = sink

    async def unpin(self, ids) -> None:
        self.unpinned += ids

    def check_health(self) -> float:
        if not self.well:
            raise EngineDead("it has not answered")
        return 0.0

    async def close(self) -> None:
        self.closed = True


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)
    await asyncio.sleep(0.002)


async def until(holds: Callable[[], bool]) -> None:
    """Waits for what takes a time that depends on the machine's load, at most ten seconds."""
    async with asyncio.timeout(10.0):
        while not holds():
            await asyncio.sleep(0.001)


def token(id_: str, *ids: int, end: bool = False) -> TokenOutput:
    return TokenOutput(id=id_, token_ids=list(ids), finish_reason="length" if end else None)
