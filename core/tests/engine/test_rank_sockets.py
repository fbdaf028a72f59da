"""The sockets between an engine and ranks on other machines: strangers, silence in one direction, and ends."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import zmq
from msgspec.structs import replace

from llmk.api import ConfigError
from llmk.engine.processes.ranks.sockets import EngineSockets, Link

HERE = "127.0.0.1"
SILENCE = 1.2
SOON = 5.0


class Proxy:
    """Forwards connections to an address, until one direction is dropped: "to" the address, or "from" it."""

    def __init__(self, address: str) -> None:
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        self._target = (host, int(port))
        self._server = socket.create_server((HERE, 0))
        self.address = f"tcp://{HERE}:{self._server.getsockname()[1]}"
        self.dropped = ""
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for each in (self._server, *self._open):
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                return
            far = socket.create_connection(self._target)
            self._open += [near, far]
            threading.Thread(target=self._forward, args=(near, far), daemon=True).start()

    def _forward(self, near: socket.socket, far: socket.socket) -> None:
        ways = {near: (far, "to"), far: (near, "from")}
        try:
            while True:
                for source in select.select(list(ways), [], [])[0]:
                    target, way = ways[source]
                    data = source.recv(1 << 16)
                    if not data:
                        return
                    if way != self.dropped:
                        target.sendall(data)
        except (OSError, ValueError):
            return


@pytest.fixture
def engine() -> Iterator[Any]:
    sockets = EngineSockets(2, HERE, SILENCE)
    yield sockets
    sockets.close()


def until(done: list[Any]) -> None:
    end = time.monotonic() + SOON
    while not done and time.monotonic() < end:
        time.sleep(0.01)
    assert done


def test_messages_pass_both_ways(engine: EngineSockets) -> None:
    ranks = [engine.link(rank).connect(lambda _: None) for rank in range(2)]
    for number, (_, replies) in enumerate(ranks):
        replies.send(bytes([number]))
    assert {engine.replies.recv() for _ in ranks} == {b"\x00", b"\x01"}
    for number, (commands, _) in enumerate(ranks):
        engine.commands[number].send(b"go")
        assert commands.poll(1000 * SOON)
        assert commands.recv() == b"go"
    engine.reply(b"here")
    assert engine.replies.recv() == b"here"


@pytest.mark.parametrize("stranger", ["no key", "a key of its own", "another rank's key"])
def test_strangers_are_neither_heard_nor_sent_anything(engine: EngineSockets, stranger: str) -> None:
    """Nor do they end what they connect to."""
    broken: list[int] = []
    engine.watch(broken.append)
    link, other = engine.link(0), engine.link(1)
    commands, replies = link.connect(lambda _: None)
    replies.send(b"mine")
    assert engine.replies.recv() == b"mine"
    context: zmq.Context[Any] = zmq.Context()
    ends = [context.socket(zmq.PULL), context.socket(zmq.PUSH)]
    public, secret = (other.public_key, other.secret_key) if "rank" in stranger else zmq.curve_keypair()
    for end, address in zip(ends, (link.commands, link.replies), strict=True):
        if "no" not in stranger:
            end.curve_serverkey, end.curve_publickey, end.curve_secretkey = link.engine_key, public, secret
        if "rank" not in stranger or end is ends[0]:
            end.connect(address)
    if "rank" not in stranger:
        ends[1].send(b"stranger's")
    for _ in range(4):
        engine.commands[0].send(b"secret")
    assert not engine.replies.poll(500)
    assert not ends[0].poll(200)
    assert [commands.recv() for _ in range(4)] == [b"secret"] * 4
    context.destroy(linger=0)
    time.sleep(0.5)
    assert not broken


@pytest.mark.parametrize("way", ["to", "from"])
def test_a_direction_that_is_dropped_is_noticed_by_both(engine: EngineSockets, way: str) -> None:
    """Messages of idle connections need not be missed: none is sent."""
    link, lost, left = engine.link(1), list[int](), list[int]()
    proxies = [Proxy(link.commands), Proxy(link.replies)]
    engine.watch(lost.append)
    behind = replace(link, commands=proxies[0].address, replies=proxies[1].address)
    _, replies = behind.connect(left.append)
    replies.send(b"here")
    assert engine.replies.recv() == b"here"
    time.sleep(2 * SILENCE)
    assert not lost
    assert not left
    start = time.monotonic()
    for proxy in proxies:
        proxy.dropped = way
    until(lost)
    until(left)
    assert lost == [1]
    assert time.monotonic() - start < 3 * SILENCE
    for proxy in proxies:
        proxy.close()


def test_an_end_is_noticed_at_once(engine: EngineSockets) -> None:
    lost: list[int] = []
    engine.watch(lost.append)
    commands, replies = engine.link(1).connect(lambda _: None)
    replies.send(b"here")
    engine.replies.recv()
    start = time.monotonic()
    commands.close()
    until(lost)
    assert time.monotonic() - start < SILENCE / 2


def test_on_one_machine_there_are_files_and_no_keys() -> None:
    sockets = EngineSockets(1, "", SILENCE)
    assert sockets.link(0) == Link(f"ipc://{sockets.folder}/rank0", f"ipc://{sockets.folder}/replies", SILENCE)
    sockets.close()


def test_an_address_that_this_machine_lacks() -> None:
    with pytest.raises(ConfigError, match=r"can't listen on 192\.0\.2\.77, this machine's address for ranks on others"):
        EngineSockets(1, "192.0.2.77", SILENCE)
