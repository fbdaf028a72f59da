"""Publishes the events of the K/V cache over ZeroMQ, for routers of clusters.

Each message has three frames: the topic, the sequence number (8 bytes, big-endian), and a msgpack array
(:class:`~llmk.engine.wire.block_events.EventBatch`). A reader that missed some sends the number of the first to the
second socket (a ROUTER, for a REQ or DEALER that sends an empty frame before it), and gets each that is still kept, as
number and array, and last the number -1 with an empty frame. Schema and protocol are those of vLLM, which llm-d and
Dynamo read.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import AsyncIterator

import msgspec
import zmq
import zmq.asyncio

from llmk.api import ConfigError
from llmk.config.replicas_section import EventsSection
from llmk.engine.output_router import BlockListener
from llmk.engine.wire.block_events import AllBlocksCleared, BlockEvent, EventBatch

logger = logging.getLogger(__name__)

END = (-1).to_bytes(8, "big", signed=True)
"""What ends the answer to a request for past messages, as a sequence number."""
UNSENT = 100_000
"""Messages that may wait for a reader that is slow; more are dropped for it, which it sees by the numbers."""


class BlockPublisher:
    """Sends messages without waiting for readers. Needs a running event loop."""

    def __init__(self, config: EventsSection) -> None:
        self._context = zmq.asyncio.Context()
        self._topic = config.topic.encode()
        self._kept: deque[tuple[bytes, bytes]] = deque(maxlen=config.buffer)
        self._number = 0
        self._encoder = msgspec.msgpack.Encoder()
        self._replaying: asyncio.Task[None] | None = None
        try:
            self._events = self._bind(zmq.PUB, config.endpoint, "endpoint")
            if config.replay_endpoint:
                replay = self._bind(zmq.ROUTER, config.replay_endpoint, "replay_endpoint")
                self._replaying = asyncio.create_task(self._replay(replay), name="llmk-events-replay")
        except ConfigError:
            self._context.destroy(linger=0)
            raise
        self.publish(0, [AllBlocksCleared()])  # a reader may know blocks of a server before this one

    def publish(self, replica: int, events: list[BlockEvent]) -> None:
        """Sends the events of a replica's step, if there are any."""
        if not events:
            return
        number = self._number.to_bytes(8, "big")
        payload = self._encoder.encode(EventBatch(time.time(), events, replica))
        self._number += 1
        self._kept.append((number, payload))
        with contextlib.suppress(zmq.Again):
            zmq.Socket.send_multipart(self._events, (self._topic, number, payload), zmq.NOBLOCK)

    async def close(self) -> None:
        """Ends both sockets. Idempotent."""
        if self._replaying is not None:
            self._replaying.cancel()
            await asyncio.gather(self._replaying, return_exceptions=True)
        self._context.destroy(linger=200)

    async def _replay(self, socket: zmq.asyncio.Socket) -> None:
        """Answers requests for past messages."""
        while True:
            frames = await socket.recv_multipart()
            if len(frames) != 3 or len(frames[2]) != 8:
                logger.warning("a request for past events is not an empty frame and 8 bytes, and is not answered")
                continue
            reader, _, first = frames
            for number, payload in [kept for kept in self._kept if kept[0] >= first]:
                await socket.send_multipart((reader, b"", number, payload))
            await socket.send_multipart((reader, b"", END, b""))

    def _bind(self, kind: int, address: str, key: str) -> zmq.asyncio.Socket:
        socket: zmq.asyncio.Socket = self._context.socket(kind)
        socket.set_hwm(UNSENT)
        try:
            socket.bind(address)
        except zmq.ZMQError as error:
            hint = "name an address of this machine and a free port: tcp://127.0.0.1:5557, or ipc:///run/llmk/events"
            raise ConfigError(f"events.{key} = {address!r} can't be bound: {error}", hint=hint) from error
        return socket


@contextlib.asynccontextmanager
async def publishing(config: EventsSection, listeners: list[BlockListener]) -> AsyncIterator[None]:
    """While the context is open, publishes what ``listeners`` are called with, if an address is configured."""
    if not config.endpoint:
        yield
        return
    publisher = BlockPublisher(config)
    listeners.append(publisher.publish)
    try:
        yield
    finally:
        listeners.remove(publisher.publish)
        await publisher.close()
