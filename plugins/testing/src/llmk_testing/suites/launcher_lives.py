"""The part of the suite of launchers that follows processes from their start to their end: what they are given besides
their input, what they start themselves, and the order in which their lines and ends are reported."""

from __future__ import annotations

import base64
import json
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

from llmk.api import LaunchContext
from llmk_testing import launched as scripts
from llmk_testing.launched import RANKS, Launched, until

QUIET = 1.0
"""Seconds in which nothing more may happen."""
_CODE = 7
_LINES = 3000
_DOTS = "." * 30
"""With these, more than a pipe holds."""
_VARIABLE = "LLMK_TESTING_LAUNCHED"
_HEAD = """
import os, signal, socket, sys
host, port = sys.argv[1], int(sys.argv[2])
data = os.read(0, 1)
def connected(place):
    link = socket.create_connection((host, port))
    link.sendall(bytes([place]) * 64 + b"1".ljust(16))
    return link
"""
FAMILY = f"""{_HEAD}
if not os.fork():
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    connected(data[0] + {RANKS}).recv(1)
    os._exit(0)
code = (connected(data[0]).recv(1) or b"\\0")[0]
os._exit(code)
"""
"""Starts a process, which has its output and its input, and ends with the code that it is sent."""
WRITES = f"""{_HEAD}
link, output = connected(data[0]), os.fstat(1)
link.sendall(b"%d %d\\n" % (output.st_dev, output.st_ino))
code = (link.recv(1) or b"\\0")[0]
for number in range({_LINES}):
    sys.stdout.write("line %d{_DOTS}\\n" % number)
sys.stdout.flush()
os._exit(code)
"""
"""Says which file its output is, writes many lines, and ends at once."""
QUIETENED = f"""{_HEAD}
link = connected(data[0])
sys.stdout.flush()
os.close(1)
os.close(2)
link.sendall(link.recv(1))
link.recv(1)
"""
"""Closes its output, and answers then."""
SHOWS = f"""{_HEAD}
import json, time
held = bytearray(96 << 20)
held[::4096] = b"x" * len(held[::4096])  # so that its end takes a while
link = connected(data[0])
def shown(name):
    try:
        return open("/proc/self/" + name, encoding="latin-1").read()
    except OSError:
        return ""
text = json.dumps({{
    "pid": os.getpid(), "prefix": sys.prefix, "folder": os.getcwd(), "variable": os.environ.get("{_VARIABLE}"),
    "shown": shown("cmdline") + shown("environ"),
}})
link.recv(1)
link.sendall(text.encode() + b"\\n")
link.recv(1)
"""
"""Says where it is, and what others can see of it."""


def check_family(launched: Launched) -> None:
    """A rank's compilers and loaders would hold its device's memory."""
    _started(launched, FAMILY, 2 * RANKS)
    launched.launcher.kill()
    for number, link in launched.links.items():
        _check_gone(link, f"{_name(number)}, after kill()")


def check_left(launched: Launched) -> None:
    """It has the output and the input of the process open, whose end must be heard nevertheless."""
    _started(launched, FAMILY, 2 * RANKS)
    launched.links[1].sendall(bytes([_CODE]))
    until(lambda: bool(launched.ended), lambda: "the end of a process that leaves another one was not reported")
    _check_gone(launched.links[1 + RANKS], f"{_name(1 + RANKS)}, when that process had ended")
    assert launched.ended[0][0] == 1, f"the end of the process in place 1 was reported as {launched.ended}"
    for number in (0, RANKS):
        _check_there(launched.links[number], f"{_name(number)}, ended as well, when that in place 1 did")


def check_last_lines(launched: Launched) -> str | None:
    """They say why it has ended."""
    launched.start(1, WRITES)
    output = launched.links[1].makefile().readline()
    if output in {f"{file.st_dev} {file.st_ino}\n" for file in map(os.fstat, (1, 2))}:
        return "they inherit standard error"
    launched.links[1].sendall(bytes([_CODE]))
    until(lambda: bool(launched.ended), lambda: "the end of a process that writes much was not reported")
    time.sleep(QUIET)
    heard = [(what, text) for what, place, text in list(launched.heard) if place == 1]
    lines = [text for what, text in heard if what == "said"]
    right = [f"line {number}{_DOTS}" for number in range(_LINES)]
    assert lines == right, f"of {len(right)} lines {len(lines)} came, or in another order"
    late = len(heard) - 1 - [what for what, _ in heard].index("ended")
    assert not late, f"the end was reported before the last {late} lines that the process wrote"
    return f"{_LINES} lines"


def check_closed_output(launched: Launched) -> None:
    """That is no end."""
    launched.start(1, QUIETENED)
    for place, link in launched.links.items():
        link.sendall(b"?")
        assert link.recv(1) == b"?", f"the process in place {place} ended when it had closed its output"
    time.sleep(QUIET)
    for place, link in launched.links.items():
        _check_there(link, f"the process in place {place} ended when it had closed its output")
    assert not launched.ended, f"processes that closed their output were reported: {launched.ended}"


def check_late_start(launched: Launched) -> str | None:
    """One of them ends while the others are started: before a start, or while it is running."""
    launched.launcher.kill()
    _check_none(launched, "after kill()")
    launched.launcher.close()
    again = Launched(launched.make, launched.context)
    killing = threading.Thread(target=lambda: again.launcher.kill(), daemon=True)

    def kill() -> None:
        """A launcher may hold a lock while it starts a process: then it is killed once that is over."""
        killing.start()
        killing.join(QUIET)

    again.open()
    try:
        _starting.append(kill)
        _check_none(again, "while kill() was called")
        if not _starting:
            return None
        _starting.clear()
        return "by what it starts a process is not seen"
    finally:
        _starting.clear()
        again.close()


def _check_none(launched: Launched, when: str) -> None:
    """A process that is started is killed at once."""
    _hook()
    with socket.create_server((launched.launcher.address or "127.0.0.1", 0)) as server:
        with suppress(Exception):  # it may raise
            launched.start_at(server, 0, b"\x01", FAMILY)
        if _starting:
            return
        server.settimeout(2 * QUIET)
        try:
            link, _ = server.accept()
        except TimeoutError:
            return
        link.settimeout(QUIET)
        _check_gone(link, f"a process that was started {when}")


def check_idle(launched: Launched) -> None:
    """A start may fail before there is anything to end."""
    launched.launcher.kill()
    launched.launcher.close()
    for call in ("kill", "close"):
        unplaced = launched.make(launched.context)
        getattr(unplaced, call)()
        unplaced.close()


def check_stop_from_report(launched: Launched) -> None:
    """The rank that ended has failed the others."""
    done = threading.Event()

    def stop(place: int, how: str) -> None:
        again.launcher.kill()
        done.set()

    launched.launcher.close()
    again = Launched(_reporting(launched.make, stop), launched.context)
    patience = scripts.PATIENCE
    again.open()
    try:
        again.start(64)
        again.links[1].sendall(bytes([_CODE]))
        assert done.wait(patience), f"kill() did not return within {patience:g} s, called where an end is reported"
        _check_gone(again.links[0], f"{_name(0)}, after kill() where an end was reported")
    finally:
        closing = threading.Thread(target=again.close, daemon=True)  # it may wait for ever, too
        closing.start()
        closing.join(patience)
    assert not closing.is_alive(), f"close() did not return within {patience:g} s, after kill() from a report"


def check_here(launched: Launched) -> str:
    """What a rank has besides its input, where it runs on this machine; and no one else sees that."""
    secret = secrets.token_bytes(48)
    written: list[str] = []
    with patch.dict(os.environ, {_VARIABLE: "as here"}), _opened_for_writing(written):
        found = _shown(launched, secret)
    for place, answer in found.items():
        where = f"the process in place {place}"
        _check_secret(answer["shown"].encode("latin-1"), secret, f"what others see of {where} (arguments, environment)")
        if not launched.launcher.address:
            assert answer["prefix"] == sys.prefix, (
                f"{where} runs Python of {answer['prefix']}, this one of {sys.prefix}"
            )
            assert answer["variable"] == "as here", f"{where} lacks variables of this one's environment"
            same = os.path.realpath(answer["folder"]) == os.path.realpath(Path.cwd())
            assert same, f"{where} runs in {answer['folder']}, this one in {Path.cwd()}"
    for path in {path for path in written if os.path.isfile(path)}:
        with suppress(OSError):
            _check_secret(Path(path).read_bytes(), secret, f"the file {path}")
    return f"{len(written)} files were written"


def check_closed(launched: Launched) -> str | None:
    """Another engine gets their devices next."""
    if launched.launcher.address:
        return "its processes are on other machines"
    found = _shown(launched, b"")
    launched.launcher.close()
    for place, answer in found.items():
        with suppress(ProcessLookupError):
            os.kill(answer["pid"], 0)
            raise AssertionError(f"after close(), the process in place {place} is there, or was not waited for")
    return None


def _shown(launched: Launched, secret: bytes) -> dict[int, Any]:
    """What processes whose inputs have ``secret`` in them say of themselves, by place."""
    _started(launched, SHOWS, RANKS, secret)
    for link in launched.links.values():
        link.sendall(b"?")
    return {place: json.loads(link.makefile().readline()) for place, link in launched.links.items()}


def _started(launched: Launched, script: str, count: int, more: bytes = b"") -> None:
    """Starts a process in each place, and waits until ``count`` have connected."""
    with socket.create_server((launched.launcher.address or "127.0.0.1", 0)) as server:
        server.settimeout(scripts.PATIENCE)
        for place in range(RANKS):
            launched.start_at(server, place, bytes([place + 1]) + more, script)
        while len(launched.links) < count:
            launched.take(server)


def _check_secret(data: bytes, secret: bytes, where: str) -> None:
    """Also as hexadecimal digits, and as base64, which starts at any of three bytes."""
    forms = [secret, secret.hex().encode(), *(base64.b64encode(secret[at : at + 45]) for at in range(3))]
    assert not secret or not any(form in data for form in forms), f"{where} shows a process's input, which is secret"


_watching: list[list[str]] = []
_starting: list[Callable[[], None]] = []
"""What is called once, when a process is about to be started."""
_hooked: list[bool] = []
_STARTS = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn")


def _hook() -> None:
    """A hook can't be removed, so there is one."""
    if not _hooked:
        _hooked.append(True)
        sys.addaudithook(_audit)


@contextmanager
def _opened_for_writing(paths: list[str]) -> Iterator[None]:
    """Collects the files that this process opens to write."""
    _hook()
    _watching.append(paths)
    try:
        yield
    finally:
        _watching.pop()


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if _starting and event in _STARTS:
        _starting.pop()()
    if not _watching or event != "open" or not isinstance(args[0], (str, bytes, os.PathLike)):
        return
    _, mode, flags = args
    if (mode and set(mode) & set("wax+")) or (flags or 0) & (os.O_WRONLY | os.O_RDWR):
        _watching[-1].append(os.fsdecode(args[0]))


def _reporting(
    make: Callable[[LaunchContext], Any], also: Callable[[int, str], None]
) -> Callable[[LaunchContext], Any]:
    """Makes a launcher that reports ends to ``also``, too."""

    def made(context: LaunchContext) -> Any:
        def ended(place: int, how: str) -> None:
            context.ended(place, how)
            also(place, how)

        own = {name: getattr(context, name) for name in ("query", "resource", "said", "options")}
        return make(LaunchContext(ended=ended, **own))

    return made


def _name(number: int) -> str:
    place = number % RANKS
    return f"the process in place {place}" if number < RANKS else f"what the process in place {place} started"


def _check_gone(link: socket.socket, what: str) -> None:
    link.settimeout(scripts.PATIENCE)
    try:
        while link.recv(80):
            pass
    except TimeoutError:
        raise AssertionError(f"{what}, ran on for {scripts.PATIENCE:g} s") from None
    except OSError:
        return


def _check_there(link: socket.socket, what: str) -> None:
    """A connection that has nothing to read."""
    link.settimeout(QUIET / 4)
    try:
        assert link.recv(1), what
    except TimeoutError:
        return
    except OSError as error:
        raise AssertionError(what) from error
