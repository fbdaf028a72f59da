"""The sockets between an engine and its ranks. On one machine they are files in a private folder. To other machines
they are TCP connections, encrypted, between keys that were made for this engine alone (CURVE): a stranger who connects
is not heard.

A connection that is silent is closed by both sides (ZMTP heartbeats, which go on while a rank computes), and none is
made again: a message might be lost in between, and ranks would wait for it in different steps.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import zmq
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils.monitor import recv_monitor_message

from llmk.api import ConfigError
from llmk.engine.processes import child_process as child

_ENDED = "inproc://ended"
_LOOK_MILLISECONDS = 200
_OPENED = zmq.EVENT_ACCEPTED | zmq.EVENT_CONNECTED
_EVENTS = _OPENED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED


class Link(msgspec.Struct, frozen=True):
    """How a rank reaches the engine. The keys are empty where both are on one machine."""

    commands: str
    replies: str
    silence_seconds: float = 0.0
    engine_key: bytes = b""
    public_key: bytes = b""
    secret_key: bytes = b""

    def connect(self, broken: Callable[[int], None]) -> tuple[Any, Any]:
        """The rank's sockets for commands and replies. ``broken`` is called, from a thread, where the engine is on
        another machine and a connection to it ended."""
        context: zmq.Context[Any] = zmq.Context()
        ends = ((zmq.PULL, self.commands), (zmq.PUSH, self.replies))
        if not self.engine_key:
            commands, replies = (child.connect(context, *end) for end in ends)
            return commands, replies
        commands, replies = sockets = [self._encrypted(context.socket(kind)) for kind, _ in ends]
        LinkWatch({socket: number for number, socket in enumerate(sockets)}, broken)
        for socket, (_, address) in zip(sockets, ends, strict=True):
            socket.connect(address)
        return commands, replies

    def _encrypted(self, socket: Any) -> Any:
        socket.set_hwm(0)
        socket.curve_serverkey, socket.curve_publickey = self.engine_key, self.public_key
        socket.curve_secretkey = self.secret_key
        _keep_alive(socket, self.silence_seconds)
        socket.reconnect_ivl = -1
        return socket


class EngineSockets:
    """The engine's ends: a socket for each rank's commands, and one for all replies. ``address`` is that of this
    machine, by which ranks on others reach it; empty: all are on this machine. Raises ConfigError where nothing can
    listen there.
    """

    def __init__(self, num_ranks: int, address: str, silence_seconds: float) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="llmk-")
        self._context: zmq.Context[Any] = zmq.Context()
        self._address, self._silence_seconds = address, silence_seconds
        self._public, self._secret = zmq.curve_keypair() if address else (b"", b"")
        self._keys = [zmq.curve_keypair() if address else (b"", b"") for _ in range(num_ranks)]
        self._authenticator = self._authenticated() if address else None
        self.commands = [self._bind(zmq.PUSH, f"rank{rank}") for rank in range(num_ranks)]
        self.replies = self._bind(zmq.PULL, "replies")
        self._reply_address = child.address(self.replies)
        self.replies.bind(_ENDED)
        self._watch: LinkWatch | None = None

    @property
    def folder(self) -> str:
        """The private one, which has room for files that all ranks on this machine know; empty: some are on others."""
        return "" if self._address else self._folder.name

    def link(self, rank: int) -> Link:
        """What a rank must know."""
        commands = child.address(self.commands[rank])
        return Link(commands, self._reply_address, self._silence_seconds, self._public, *self._keys[rank])

    def watch(self, broken: Callable[[int], None]) -> None:
        """Has ``broken`` called, from a thread, with a rank whose connection ended."""
        if self._address:
            self._watch = LinkWatch({socket: rank for rank, socket in enumerate(self.commands)}, broken)

    def reply(self, data: bytes) -> None:
        """Puts a reply among those of the ranks; from any thread."""
        socket = child.connect(self._context, zmq.PUSH, _ENDED)
        socket.send(data)
        socket.close(linger=1000)

    def close(self) -> None:
        """Closes all, and removes the folder."""
        if self._watch is not None:
            self._watch.stop()
        if self._authenticator is not None:
            self._authenticator.stop()
        self._context.destroy(linger=0)
        self._folder.cleanup()

    def _authenticated(self) -> ThreadAuthenticator:
        if not zmq.has("curve"):
            raise ConfigError("this machine's libzmq can't encrypt (CURVE)", hint="install pyzmq from its wheel")
        authenticator = ThreadAuthenticator(self._context)
        authenticator.start()
        for rank, (public, _) in enumerate(self._keys):
            authenticator.configure_curve_callback(f"rank{rank}", _Allowed(public))
        authenticator.configure_curve_callback("replies", _Allowed(*(public for public, _ in self._keys)))
        return authenticator

    def _bind(self, kind: int, name: str) -> Any:
        if not self._address:
            return child.bind(self._context, kind, self._folder.name, name)
        socket = self._context.socket(kind)
        socket.set_hwm(0)
        socket.curve_server = True
        socket.curve_secretkey, socket.zap_domain = self._secret, name.encode()
        _keep_alive(socket, self._silence_seconds)
        try:
            socket.bind(f"tcp://{self._address}:*")
        except zmq.ZMQError as error:
            what = f"can't listen on {self._address}, this machine's address for ranks on others: {error}"
            raise ConfigError(what, hint="name an address that this machine has, in the launcher's options") from error
        return socket


class _Allowed:
    """The public keys that may connect to a socket."""

    def __init__(self, *keys: bytes) -> None:
        self._keys = frozenset(keys)

    def callback(self, domain: str, key: bytes) -> bool:
        """Whether a key is among them. ZeroMQ's authenticator calls it."""
        return key in self._keys


class LinkWatch:
    """Watches the connections of ``sockets``, each of which has one peer, and calls ``broken`` with the value of a
    socket whose connection was made and has ended. Strangers, whose connections are refused, are not noticed."""

    def __init__(self, sockets: Mapping[Any, int], broken: Callable[[int], None]) -> None:
        self._lines = {socket.get_monitor_socket(_EVENTS): _Line(value) for socket, value in sockets.items()}
        self._broken, self._stopped = broken, threading.Event()
        self._thread = threading.Thread(target=self._run, name="llmk-links", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stops, before the sockets are closed."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        poller = zmq.Poller()
        for monitor in self._lines:
            poller.register(monitor, zmq.POLLIN)
        while not self._stopped.is_set():
            for monitor, _ in poller.poll(_LOOK_MILLISECONDS):
                event: Any = recv_monitor_message(monitor)
                line = self._lines[monitor]
                if line.breaks(event["event"], event["value"]):
                    self._broken(line.value)


class _Line:
    """A socket's connections. ZeroMQ names a connection's descriptor when it is opened and when it ends, but not when
    the peer proves to know the key: the peer's is among those that were open then."""

    def __init__(self, value: int) -> None:
        self.value = value
        self._open: set[int] = set()
        self._peers: set[int] = set()

    def breaks(self, event: int, descriptor: int) -> bool:
        """Takes note of an event; returns whether the peer's connection ended by it."""
        if event & _OPENED:
            self._open.add(descriptor)
        elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._peers = self._peers or set(self._open)
        else:
            self._open.discard(descriptor)
            if descriptor in self._peers:
                self._peers.discard(descriptor)
                return not self._peers
        return False


def _keep_alive(socket: Any, seconds: float) -> None:
    """Closes the connection where the other side is silent for so long."""
    socket.heartbeat_ivl = int(1000 * seconds / 3)
    socket.heartbeat_timeout = int(1000 * seconds * 2 / 3)
