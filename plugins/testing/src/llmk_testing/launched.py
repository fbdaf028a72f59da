"""A launcher that the suite of launchers made: the processes that it started, and what it has reported."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from llmk.api import ConfigError, LaunchContext, NotEnoughResources, RankLauncher, RankPlace, RankProcess
from llmk_testing.case import Skip

RANKS = 2
PATIENCE = 30.0
"""Seconds that a process may take to start, and a launcher to hear of its end."""
SCRIPT = """
import os, signal, socket, sys, threading
signal.signal(signal.SIGTERM, signal.SIG_IGN)
host, port, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
data = bytearray()
while len(data) < size and (more := os.read(0, size - len(data))):
    data += more
link = socket.create_connection((host, port))
link.sendall(bytes(data[:64]).ljust(64) + str(len(data)).encode().ljust(16))
print("a line", data[0], flush=True)
def follow():
    while os.read(0, 1024):
        pass
    os._exit(0)
threading.Thread(target=follow, daemon=True).start()
code = link.recv(1)[0]
if code == 255:
    os.kill(os.getpid(), signal.SIGKILL)
os._exit(code)
"""
"""Reads its input, sends the start of it and its length to the kit, and ends with the exit code that it is sent, or
when its input or the connection does; by a signal, where that is 255."""
TALKS = """
import os, socket, sys
link = socket.create_connection((sys.argv[1], int(sys.argv[2])))
link.sendall(os.read(0, 1).ljust(64) + b"1".ljust(16))
def say(stream, data):
    stream.buffer.write(data)
    stream.flush()
say(sys.stdout, b"  two spaces\\n")
say(sys.stderr, b"an error\\n")
say(sys.stdout, b"not \\xff UTF-8\\n")
say(sys.stdout, b"x" * 70000 + b"\\n")
say(sys.stdout, b"no end")
link.recv(1)
"""
"""Writes lines of several kinds, and ends when the connection does."""
SAID = ("  two spaces", "an error", "x" * 70_000)
LATE = """
import os, socket, sys
link = socket.create_connection((sys.argv[1], int(sys.argv[2])))
link.recv(1)
size, data = int(sys.argv[3]), b""
while len(data) < size and (more := os.read(0, size - len(data))):
    data += more
link.sendall(data[:64].ljust(64) + str(len(data)).encode().ljust(16))
link.recv(1)
"""
"""Reads its input once the kit says so, as a process that imports for long does."""


@dataclass
class Launched:
    """A launcher that was made with ``make``, and what it has reported."""

    make: Callable[[LaunchContext], RankLauncher]
    context: LaunchContext
    given: set[tuple[int, int]] = field(default_factory=set)
    """Tensor parallel ranks and stages for which the launcher had places in a case before."""
    ended: list[tuple[int, str]] = field(default_factory=list)
    said: list[tuple[int, str]] = field(default_factory=list)
    launcher: RankLauncher = field(init=False)
    places: list[RankPlace] = field(init=False)
    heard: list[tuple[str, int, str]] = field(default_factory=list)
    """Both in the order in which they were reported, each with its name, ``"ended"`` or ``"said"``."""
    links: dict[int, socket.socket] = field(default_factory=dict)
    lengths: dict[int, int] = field(default_factory=dict)

    def open(self) -> None:
        """Makes the launcher, and has it reserve places."""

        def ended(place: int, how: str) -> None:
            self.ended.append((place, how))
            self.heard.append(("ended", place, how))

        def said(place: int, line: str) -> None:
            self.said.append((place, line))
            self.heard.append(("said", place, line))

        try:
            self.launcher = self.make(replace(self.context, ended=ended, said=said))
            self.places = list(self.launcher.place())
        except (ConfigError, NotEnoughResources) as reason:
            here = hasattr(self, "launcher") and not self.launcher.address
            if here and self.ranks in self.given:
                raise AssertionError(
                    f"places for {self.ranks[0]} x {self.ranks[1]} ranks, which there were before, are not there any "
                    f"more, as if launchers that were closed had not given them back: {reason.message}"
                ) from reason
            raise Skip(f"it has nowhere to start processes: {reason.message}") from reason
        self.given.add(self.ranks)

    @property
    def ranks(self) -> tuple[int, int]:
        """Of a stage, and how many stages."""
        return self.context.query.tensor, self.context.query.pipeline

    def start(self, size: int = 1 << 20, script: str = SCRIPT) -> None:
        """Starts a process in each place, with an input of its own of so many bytes, and waits until all say that they
        have it."""
        with socket.create_server((self.launcher.address or "127.0.0.1", 0)) as server:
            server.settimeout(PATIENCE)
            for place in range(len(self.places)):
                self.start_at(server, place, bytes([place + 1]) * size, script)
            while len(self.links) < len(self.places):
                self.take(server)

    def start_at(self, server: socket.socket, place: int, data: bytes, script: str = SCRIPT) -> None:
        """Starts a process that connects to ``server``."""
        host, port = server.getsockname()[:2]
        arguments = ("-c", script, host, str(port), str(len(data)))
        self.launcher.start(place, RankProcess(arguments=arguments, input=data))

    def take(self, server: socket.socket) -> None:
        """Waits for the connection of one more process, and keeps it by the process's place, which its input says."""
        try:
            link, _ = server.accept()
        except TimeoutError:
            missing = [place for place in range(len(self.places)) if place not in self.links]
            raise AssertionError(f"the processes in places {missing} did not start within {PATIENCE:g} s") from None
        link.settimeout(PATIENCE)
        answer = read(link, 80)
        places = set(answer[:64].rstrip())
        assert len(places) == 1, "a process got no input, or that of several"
        place = places.pop() - 1
        assert place not in self.links, f"two processes got the input of place {place}"
        self.links[place], self.lengths[place] = link, int(answer[64:])

    def close(self) -> None:
        """Ends all."""
        for link in self.links.values():
            link.close()
        if hasattr(self, "launcher"):
            self.launcher.close()


def read(link: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count and (more := link.recv(count - len(found))):
        found += more
    return found


def short(lines: list[str]) -> list[str]:
    return [line[:20] for line in lines]


def until(done: Callable[[], bool], what: Callable[[], str]) -> None:
    end = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < end, what()
        time.sleep(0.02)
