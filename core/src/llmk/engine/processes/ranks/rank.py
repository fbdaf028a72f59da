"""A rank's process (``python -m llmk.engine.processes.ranks.rank``): sees that its machine has what the engine's has,
and then runs the worker.

Nothing heavy is imported before, so that a process that is not fit for it says so soon.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import psutil

from llmk.config import logs
from llmk.engine.processes import child_process as child
from llmk.engine.processes.ranks.checks import platform_problems
from llmk.engine.processes.ranks.worker_messages import Checked, RankStart
from llmk.engine.wire.plugin_calls import watched
from llmk.planning.packed_boot import unpack


def main() -> None:
    """The process, until its parent ends it or is gone."""
    (data,) = child.ParentLink().take()
    start = msgspec.msgpack.decode(data, type=RankStart)
    if start.watching:
        watched(*start.watching)
    commands, replies = start.link.connect(_leave)
    if problems := list(start.expected.problems()) if start.expected else []:
        _refuse(replies, start.rank, problems)
    packed: dict[str, Any] = pickle.loads(start.boot)  # nosec B301 # the engine wrote it, to our standard input
    server = packed["settings"].config.server
    logs.setup(server.log_level if start.rank == 0 else "warning", server.log_format)
    boot = unpack(packed)
    if problems := list(platform_problems(boot)) if start.expected else []:
        _refuse(replies, start.rank, problems)
    os.environ.update(_environment(boot, start))
    _send(replies, Checked(start.rank, os.getpid()))

    from llmk.engine.processes.ranks.worker import Worker

    Worker(start, commands, replies).run(boot)


def _environment(boot: Any, start: RankStart) -> Iterable[tuple[str, str]]:
    spec = next(found.spec for found in boot.registry.platforms if found.spec.id == boot.plan.platform_id)
    interface = next(_interfaces(start.address), "") if start.address else ""
    return dict(spec.ranks.environment(start.devices, interface)).items()


def _interfaces(address: str) -> Iterator[str]:
    """The network interfaces that have an address of this machine; for one of the loopback's range, the loopback."""
    for name, held in psutil.net_if_addrs().items():
        for each in held:
            if address == each.address or (address.startswith("127.") and each.address == "127.0.0.1"):
                yield name


def _refuse(replies: Any, rank: int, problems: list[str]) -> None:
    """Says what is wrong, and waits to be ended."""
    _send(replies, Checked(rank, os.getpid(), problems))
    threading.Event().wait()  # the thread that reads standard input ends the process


def _send(replies: Any, reply: Checked) -> None:
    replies.send(msgspec.msgpack.encode(reply))


def _leave(_: int) -> None:
    print("the connection to the engine ended, or was silent for too long", file=sys.stderr, flush=True)
    os._exit(1)


if __name__ == "__main__":
    main()
