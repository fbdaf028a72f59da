"""Networks between nodes that are really on this machine: each node is a network namespace, so that what one sends to
another can be lost in one direction alone. Needs root on Linux."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import cycle
from string import ascii_lowercase

_CLONE_NEWNET = 0x40000000
_HERE = "/proc/self/ns/net"
_NOBODY = "02:00:00:00:00:01"
"""A hardware address that no node has."""
_LETTERS = cycle(ascii_lowercase)
"""Names of networks, whose interfaces may outlive them for a moment."""


class Network:
    """A bridge in this process's own namespace, and nodes that are connected to it. This process is ``address``."""

    address = "10.213.77.1"

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._name = f"llmk{os.getpid() % 10_000}{next(_LETTERS)}"
        self._count = 1
        _run("link", "add", self._name, "type", "bridge")
        stack.callback(_run, "link", "del", self._name)
        _run("addr", "add", f"{self.address}/24", "dev", self._name)
        _run("link", "set", self._name, "up")

    def add(self) -> str:
        """Adds a node; returns its address."""
        self._count += 1
        name, outside = self._node(self._count), f"{self._name}-{self._count}"
        address = f"10.213.77.{self._count}"
        _run("netns", "add", name)
        self._stack.callback(_run, "netns", "del", name)
        _run("link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", name)
        self._stack.callback(_run, "link", "del", outside)  # the namespace goes only when its last process does
        _run("link", "set", outside, "master", self._name, "up")
        for given in (
            ("addr", "add", f"{address}/24", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            ("link", "set", "lo", "up"),
        ):
            _run("-n", name, *given)
        return address

    @contextmanager
    def inside(self, address: str) -> Iterator[None]:
        """What this thread starts meanwhile is on the node."""
        with open(_HERE) as here, open(f"/run/netns/{self._node(_number(address))}") as there:
            _enter(there.fileno())
            try:
                yield
            finally:
                _enter(here.fileno())

    def lose(self, source: str, target: str) -> None:
        """From now on, nothing that ``source`` sends arrives at ``target``. What ``target`` sends, does."""
        at = () if source == self.address else ("-n", self._node(_number(source)))
        device = "eth0" if at else self._name
        _run(*at, "neigh", "replace", target, "lladdr", _NOBODY, "dev", device, "nud", "permanent")

    def _node(self, number: int) -> str:
        return f"{self._name}-{number}"


def why_not() -> str:
    """Why this machine can have none; empty: it can."""
    try:
        with ExitStack() as stack:
            Network(stack).add()
    except (OSError, subprocess.CalledProcessError) as error:
        return f"needs network namespaces, and so root on Linux with iproute2: {error}"
    return ""


@contextmanager
def network() -> Iterator[Network]:
    """One, which is removed at the end."""
    with ExitStack() as stack:
        yield Network(stack)


def _number(address: str) -> int:
    return int(address.rpartition(".")[2])


def _run(*arguments: str) -> None:
    subprocess.run(("ip", *arguments), check=True, capture_output=True)


def _enter(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")
