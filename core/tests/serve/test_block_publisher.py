"""Events over ZeroMQ, read by a reader that was written from the public schema alone: plain msgpack."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
import zmq
import zmq.asyncio

from llmk.api import ConfigError
from llmk.config.replicas_section import EventsSection
from llmk.engine.wire.block_events import AllBlocksCleared, BlockRemoved, BlockStored
from llmk.serve.metrics.block_publisher import BlockPublisher, publishing


class Reader:
    """A cluster's router: which blocks each rank has, and the last number; asks again for what it missed."""

    def __init__(self, context: zmq.asyncio.Context, events: str, replay: str, topic: bytes = b"") -> None:
        self.blocks: dict[int, set[int]] = {}
        self.next = 0
        self.gaps = 0
        self.times: list[float] = []
        self._socket = context.socket(zmq.SUB)
        self._socket.connect(events)
        self._socket.subscribe(topic)
        self._replay = context.socket(zmq.DEALER)
        self._replay.connect(replay)

    async def read(self) -> None:
        topic, number, payload = await asyncio.wait_for(self._socket.recv_multipart(), 5)
        assert topic == b"kv@pod-1@demo"
        if (found := int.from_bytes(number, "big")) > self.next:
            self.gaps += 1
            await self.catch_up()
        if found == self.next:
            self.take(found, payload)

    async def catch_up(self) -> None:
        await self._replay.send_multipart((b"", self.next.to_bytes(8, "big")))
        while True:
            _, number, payload = await asyncio.wait_for(self._replay.recv_multipart(), 5)
            if number == (-1).to_bytes(8, "big", signed=True):
                assert payload == b""
                return
            self.take(int.from_bytes(number, "big"), payload)

    def take(self, number: int, payload: bytes) -> None:
        assert number >= self.next
        self.next = number + 1
        ts, events, rank = msgspec.msgpack.decode(payload)
        self.times.append(ts)
        known = self.blocks.setdefault(rank, set())
        for name, *fields in events:
            if name == "BlockStored":
                hashes, parent, tokens, size, lora = fields
                assert parent is None or parent in known
                assert len(tokens) == size * len(hashes)
                assert lora is None or lora > 0
                known.update(hashes)
            elif name == "BlockRemoved":
                known.difference_update(fields[0])
            else:
                assert (name, fields) == ("AllBlocksCleared", [])
                known.clear()


def stored(*hashes: int, parent: int | None = None) -> BlockStored:
    return BlockStored(list(hashes), parent, [1] * (4 * len(hashes)), 4, None)


def with_reader(folder: Path, scenario, buffer: int = 100) -> None:
    async def main() -> None:
        events, replay = f"ipc://{folder}/events", f"ipc://{folder}/replay"
        config = EventsSection(endpoint=events, replay_endpoint=replay, topic="kv@pod-1@demo", buffer=buffer)
        publisher, context = BlockPublisher(config), zmq.asyncio.Context()
        try:
            await scenario(publisher, Reader(context, events, replay))
        finally:
            context.destroy(linger=0)
            await publisher.close()

    asyncio.run(main())


def test_a_reader_follows_and_requests_what_it_missed(tmp_path: Path) -> None:
    async def scenario(publisher: BlockPublisher, reader: Reader) -> None:
        publisher.publish(0, [stored(1, 2), stored(3, parent=2)])  # before it has subscribed
        await asyncio.sleep(0.3)
        publisher.publish(1, [stored((1 << 64) - 1)])
        publisher.publish(0, [])
        await reader.read()
        assert (reader.gaps, reader.next) == (1, 3)
        assert reader.blocks == {0: {1, 2, 3}, 1: {(1 << 64) - 1}}
        publisher.publish(0, [BlockRemoved([3]), stored(4, parent=2)])
        await reader.read()
        publisher.publish(1, [AllBlocksCleared()])
        await reader.read()
        assert (reader.gaps, reader.blocks) == (1, {0: {1, 2, 4}, 1: set()})
        assert reader.times == sorted(reader.times)

    with_reader(tmp_path, scenario)


def test_what_is_kept_is_bounded_and_a_reader_sees_the_gap(tmp_path: Path) -> None:
    async def scenario(publisher: BlockPublisher, reader: Reader) -> None:
        for number in range(50):
            publisher.publish(0, [stored(number)])
        await reader.catch_up()
        assert reader.next == 51
        assert reader.blocks[0] == set(range(40, 50)), "the last ten"

    with_reader(tmp_path, scenario, buffer=10)


def test_malformed_requests_are_not_answered_and_do_no_harm(tmp_path: Path) -> None:
    async def scenario(publisher: BlockPublisher, reader: Reader) -> None:
        for frames in ((b"",), (b"", b"12345678", b"more"), (b"", b"")):
            await reader._replay.send_multipart(frames)
        await reader.catch_up()
        assert reader.next == 1

    with_reader(tmp_path, scenario)


def test_an_address_that_cannot_be_bound_is_named() -> None:
    async def main() -> None:
        with pytest.raises(ConfigError, match=r"events\.endpoint = 'tcp://203\.0\.113\.1:5557' can't be bound"):
            async with publishing(EventsSection(endpoint="tcp://203.0.113.1:5557"), []):
                pass
        listeners: list = []
        async with publishing(EventsSection(), listeners):
            assert listeners == []

    asyncio.run(main())
