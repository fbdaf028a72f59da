"""What is left of a server after everything has happened to it at once.

    python benchmarks/chaos.py                                      # 2,000 requests, five kills and a stop of 20 s
    python benchmarks/chaos.py --kill-worker -- --parallel.tensor 2    # first a worker of the engine, then the engine
    python benchmarks/chaos.py -- --replicas 3 --select.router.use prefix_aware    # one replica after the other

A server is started, answers a set of requests undisturbed, and is warmed up by a smaller run of the same. Then many
clients at once ask, streamed and not, leave before they are answered, and send what can't be served, while the engine
is killed and stopped. Every request must get the undisturbed answer or the error that it deserves within a minute,
nothing may be left running, and the memory of all processes must come back to what it was after the warm-up. Exits with
1 where any of that fails.

What stands behind ``--`` goes to ``llmk serve``. The default dtype is float32: a sequence that goes on in a new engine
has its cache computed by other products than before, which in a narrower dtype may round to another token.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import math
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

LLMK = [sys.executable, "-c", "import sys; from llmk.cli.main import main; sys.exit(main())"]
TIMEOUT = 120.0
"""Seconds without an answer after which a request counts as forgotten."""
PATIENCE = 60.0
"""Seconds in which every request must end."""
STOP_SECONDS = 20.0
"""How long an engine is stopped."""
STILL = 4 * 2**20
"""Bytes by which memory may change in two seconds once nothing starts any more."""
SETTLE = 30.0
"""Seconds that what the server holds may take to come back to what it was."""
WARM_UP_SHARE = 0.5
GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_blocks_used")

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
OPENINGS = ("One day", "The capital of France is", "Once upon a time", "2 + 3 =", "My name is", "Water is")
QUESTIONS = ("What is 17 + 25?", "Who are you?", "What is the capital of Italy?", "Say hello in French.")
MALFORMED: tuple[tuple[str, str, bytes, dict[str, str], int], ...] = (
    ("POST", COMPLETIONS, b"{", {}, 400),
    ("POST", COMPLETIONS, b"[1, 2]", {}, 400),
    ("POST", COMPLETIONS, b"\xff\xfe", {}, 400),
    ("POST", COMPLETIONS, b'{"prompt": 5}', {}, 400),
    ("POST", COMPLETIONS, b'{"prompt": "x", "temperature": -1}', {}, 400),
    ("POST", COMPLETIONS, b'{"prompt": "x", "no_such_thing": 1}', {}, 400),
    ("POST", COMPLETIONS, b'{"prompt": [123456789]}', {}, 400),
    ("POST", COMPLETIONS, json.dumps({"prompt": "word " * 9000}).encode(), {}, 400),
    ("POST", COMPLETIONS, b'{"prompt": "x", "model": "no-such-model"}', {}, 404),
    ("POST", CHAT, b'{"messages": []}', {}, 400),
    ("POST", CHAT, b'{"messages": [{"role": "nobody", "content": "x"}]}', {}, 400),
    ("POST", CHAT, b"prompt=x", {"content-type": "text/plain"}, 415),
    ("POST", "/v1/nowhere", b"{}", {}, 404),
    ("GET", CHAT, b"", {}, 405),
)


@dataclass
class Tally:
    """What came of the requests. ``wrong`` are violations, in words."""

    kinds: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    kills: list[tuple[str, float, float]] = field(default_factory=list)
    """Of each kill: what was killed, seconds until that was noticed, seconds until there was an engine again."""
    longest: float = 0.0
    """Seconds that the slowest request took."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, kind: str, wrong: str = "") -> int:
        """Counts a request; returns how many there were."""
        with self.lock:
            self.kinds[kind] += 1
            if wrong:
                self.wrong.append(wrong)
            return self.kinds.total()


class Server:
    """``llmk serve`` in a process of its own; ``log`` takes its standard error."""

    def __init__(self, arguments: Sequence[str], log: Path) -> None:
        self.log = log
        with log.open("wb") as stderr:
            command = [*LLMK, "serve", "--port", "0", "--server.log-level", "warning", *arguments]
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
        assert self.process.stdout is not None
        line = next((line for line in self.process.stdout if line.startswith("serving ")), "")
        if not line:
            raise SystemExit(f"the server did not start:\n{log.read_text()}")
        self.address = urlsplit(line.split()[-1])

    def connect(self) -> http.client.HTTPConnection:
        """A new connection."""
        return http.client.HTTPConnection(str(self.address.hostname), self.address.port, timeout=TIMEOUT)

    def ask(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Status and body."""
        connection = self.connect()
        try:
            connection.request(method, path, body, {"content-type": "application/json", **(headers or {})})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def metric(self, name: str) -> float:
        """The value of a metric of the model."""
        text = self.ask("GET", "/metrics")[1].decode()
        found = re.search(rf"^llmk_{name}(?:\{{[^}}]*\}})? (\S+)$", text, re.MULTILINE)
        if not found:
            raise SystemExit(f"the server has no metric llmk_{name}")
        return float(found[1])

    def memory(self) -> int:
        """Bytes of memory of the server and all its processes, what they share counted once."""
        own = psutil.Process(self.process.pid)
        total = 0
        for process in (own, *own.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                total += int(process.memory_full_info().pss)
        return total

    def engine(self) -> psutil.Process:
        """An engine's process, once there is one: any of them, where there are replicas."""
        _until(lambda: bool(self._named("llmk-engine")))
        return random.choice(self._named("llmk-engine"))

    def settle(self) -> None:
        """Waits for the process that stands by for the engine, if there is to be one, and for its imports."""
        _until(lambda: bool(self._named("llmk-standby")), SETTLE)
        sizes = [0, self.memory()]

        def is_still() -> bool:
            time.sleep(1)
            sizes.append(self.memory())
            return abs(sizes[-1] - sizes[-3]) < STILL

        _until(is_still, SETTLE)

    def _named(self, name: str) -> list[psutil.Process]:
        found = []
        for child in psutil.Process(self.process.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if child.name() == name and child.status() != psutil.STATUS_ZOMBIE:
                    found.append(child)
        return found

    def worker(self) -> psutil.Process:
        """A worker of the engine: its largest child, since others are helpers."""
        children = self.engine().children()
        if not children:
            raise SystemExit("the engine has no workers; give it some, for example with -- --parallel.tensor 2")
        return max(children, key=lambda child: int(child.memory_info().rss))


class Chaos:
    """One run: its requests, what they should come to, and what they came to."""

    def __init__(self, server: Server, seed: int) -> None:
        self.server = server
        self.seed = seed
        self.tally = Tally()
        self.bodies = list(_bodies())
        self.expected = [self._undisturbed(path, body) for path, body in self.bodies]

    def run(self, count: int, concurrency: int, kills: Sequence[str], number: int) -> None:
        """Sends ``count`` requests, and kills what ``kills`` names (worker, engine; stop: stops the engine) at even
        distances."""
        self.tally = Tally()
        at = {count * (i + 1) // (len(kills) + 1): what for i, what in enumerate(kills)}
        rngs = [random.Random(f"{self.seed}/{number}/{i}") for i in range(count)]
        with ThreadPoolExecutor(concurrency) as clients, ThreadPoolExecutor(1) as killer:
            killed = [killer.submit(self._kill, at[done]) for done in clients.map(self._one, rngs) if done in at]
        for kill in killed:
            kill.result()

    def _one(self, rng: random.Random) -> int:
        began = time.monotonic()
        try:
            outcome, wrong = rng.choices((self._answer, self._leave, self._malformed), (6, 3, 1))[0](rng)
            self.tally.longest = max(self.tally.longest, took := time.monotonic() - began)
            return self.tally.add(outcome, wrong or (f"{outcome} took {took:.0f} s" if took > PATIENCE else ""))
        except TimeoutError:
            return self.tally.add("forgotten", f"no answer came within {TIMEOUT:g} s")
        except (OSError, http.client.HTTPException, ValueError) as error:
            return self.tally.add("cut off", f"the connection broke, or what came is no answer: {error!r}")

    def _answer(self, rng: random.Random) -> tuple[str, str]:
        """Waits for an answer, which must be the undisturbed one."""
        number = rng.randrange(len(self.bodies))
        path, body = self.bodies[number]
        if rng.random() < 0.5:
            status, answer = self.server.ask("POST", path, json.dumps(body).encode())
            kind, found = "whole", json.loads(answer)
            if status != 200:
                return f"error {status}", f"{body} was answered with {found}"
            got = [_text(choice) for choice in found["choices"]]
        else:
            kind, events = "streamed", self._events(path, body)
            if any("error" in event for event in events):
                return "error in stream", f"{body} was answered with {events[-1]}"
            got = [""] * len(self.expected[number])
            for event in events:
                for choice in event["choices"]:
                    got[choice["index"]] += _text(choice)
        if got != self.expected[number]:
            return "wrong", f"{body} was answered with {got}, not {self.expected[number]}"
        return kind, ""

    def _leave(self, rng: random.Random) -> tuple[str, str]:
        """Hangs up: half-way through the request, before the answer, or in the midst of it."""
        path, body = rng.choice(self.bodies)
        content = json.dumps({**body, "stream": rng.random() < 0.5, "max_tokens": 200}).encode()
        connection = self.server.connect()
        try:
            connection.putrequest("POST", path)
            connection.putheader("content-type", "application/json")
            connection.putheader("content-length", str(len(content)))
            connection.endheaders(content[: len(content) // 2] if rng.random() < 0.2 else content)
            if rng.random() < 0.5:
                time.sleep(rng.random())
            else:
                connection.sock.settimeout(rng.random())
                _read_some(connection, rng.randrange(2000))
        finally:
            connection.close()
        return "left", ""

    def _malformed(self, rng: random.Random) -> tuple[str, str]:
        """Sends what can't be served, which must be refused with an error object."""
        method, path, content, headers, expected = rng.choice(MALFORMED)
        status, answer = self.server.ask(method, path, content, headers)
        error = json.loads(answer).get("error")
        if status != expected or not error or not error["message"]:
            return "wrong", f"{method} {path} {content[:50]!r} was answered with {status} {answer[:200]!r}"
        return f"refused {status}", ""

    def _kill(self, what: str) -> None:
        target = self.server.worker() if what == "worker" else self.server.engine()
        restarts, killed = self.server.metric("engine_restarts_total"), time.monotonic()
        if what == "stop":
            self._stop(target)
            return
        target.kill()
        _until(lambda: not self.server.metric("engine_up") or self.server.metric("engine_restarts_total") > restarts)
        noticed = time.monotonic() - killed
        if not _until(lambda: self.server.metric("engine_restarts_total") > restarts):
            self.tally.wrong.append(f"the {what} was killed, and {TIMEOUT:g} s later there is no new engine")
        self.tally.kills.append((what, noticed, time.monotonic() - killed))

    def _stop(self, target: psutil.Process) -> None:
        """Stops a process for a while, unless it is replaced meanwhile."""
        restarts, stopped = self.server.metric("engine_restarts_total"), time.monotonic()
        target.suspend()
        replaced = _until(lambda: self.server.metric("engine_restarts_total") > restarts, STOP_SECONDS)
        back = time.monotonic() - stopped
        if not replaced:
            target.resume()
        self.tally.kills.append(("stop", back, back))

    def _undisturbed(self, path: str, body: dict[str, Any]) -> list[str]:
        status, answer = self.server.ask("POST", path, json.dumps(body).encode())
        if status != 200:
            raise SystemExit(f"{body} can't be answered: {answer.decode()}")
        return [_text(choice) for choice in json.loads(answer)["choices"]]

    def _events(self, path: str, body: dict[str, Any]) -> list[Any]:
        status, answer = self.server.ask("POST", path, json.dumps({**body, "stream": True}).encode())
        if status != 200:
            return [json.loads(answer)]
        lines = answer.decode().splitlines()
        if "data: [DONE]" not in lines:
            raise http.client.IncompleteRead(answer)
        return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def _bodies() -> Iterator[tuple[str, dict[str, Any]]]:
    """Requests whose answers are the same each time: greedy, or with a seed."""
    for number, opening in enumerate(OPENINGS):
        yield COMPLETIONS, {"prompt": opening, "max_tokens": 24, "temperature": 0}
        yield COMPLETIONS, {"prompt": opening, "max_tokens": 16, "seed": number, "n": 2, "ignore_eos": True}
    for question in QUESTIONS:
        yield CHAT, {"messages": [{"role": "user", "content": question}], "max_tokens": 40, "temperature": 0}


def _text(choice: dict[str, Any]) -> str:
    message = choice.get("message") or choice.get("delta") or {}
    parts = (choice.get("text"), message.get("reasoning_content"), message.get("content"))
    return "".join(part for part in parts if part)


def _read_some(connection: http.client.HTTPConnection, count: int) -> None:
    with contextlib.suppress(TimeoutError):
        connection.getresponse().read(count)


def _until(holds: Callable[[], bool], timeout: float = TIMEOUT) -> bool:
    """Waits for ``holds``; whether it came to."""
    end = time.monotonic() + timeout
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def _is_zero(server: Server, gauge: str) -> bool:
    return server.metric(gauge) == 0


def leftovers(server: Server, tasks: float, memory: float) -> Iterator[str]:
    """What the server still holds a while after its last request: more ``tasks`` or bytes of ``memory`` than that."""
    for gauge in GAUGES:
        if not _until(partial(_is_zero, server, gauge), SETTLE):
            yield f"{gauge} stays at {server.metric(gauge):g}"
    if not _until(lambda: server.metric("frontend_tasks") <= tasks, SETTLE):
        yield f"{server.metric('frontend_tasks'):g} tasks are left, there were {tasks:g}"
    if not _until(lambda: server.memory() <= memory, SETTLE):
        yield f"the processes keep {server.memory() / 2**20:.1f} MiB, more than {memory / 2**20:.1f} MiB"


def report(chaos: Chaos, memory: int, seconds: float) -> None:
    """Prints what came of it, as markdown."""
    tally = chaos.tally
    print(f"\n| outcome | requests of {tally.kinds.total()} in {seconds:.0f} s |\n| --- | --- |")
    for kind, count in sorted(tally.kinds.items()):
        print(f"| {kind} | {count} |")
    print("\n| killed | noticed after (s) | engine back after (s) |\n| --- | --- | --- |")
    for what, noticed, back in tally.kills:
        print(f"| {what} | {noticed:.2f} | {back:.1f} |")
    print(f"\nsequences retried: {chaos.server.metric('sequences_retried_total'):g}")
    now = chaos.server.memory()
    print(f"the slowest request took {tally.longest:.1f} s")
    before, after, change = memory / 2**20, now / 2**20, now / memory - 1
    print(f"memory of all processes: {before:.1f} MiB before, {after:.1f} MiB after ({change:+.1%})")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs it all; 1 where something is not as it must be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--concurrency", type=int, default=48)
    parser.add_argument("--kills", type=int, default=5, help="how often the engine is killed")
    parser.add_argument("--stops", type=int, default=1, help="how often the engine is stopped for a while")
    parser.add_argument("--kill-worker", action="store_true", help="first of all, kill a worker of the engine")
    parser.add_argument("--memory-slack", type=float, default=0.02, help="share by which memory may grow")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("serve", nargs="*", help="arguments of llmk serve, after --")
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        server = Server(["--model.dtype", "float32", *args.serve], Path(folder) / "log")
        try:
            wrong = _measure(server, args)
        finally:
            server.process.terminate()
            status = server.process.wait()
        for violation in wrong[:20]:
            print(f"WRONG: {violation}", file=sys.stderr)
        if wrong or status:
            print(f"{len(wrong)} violations, exit status {status}; the log ends with:", file=sys.stderr)
            print(server.log.read_text()[-4000:], file=sys.stderr)
    return 1 if wrong or status else 0


def _measure(server: Server, args: argparse.Namespace) -> list[str]:
    kills = ["worker"] * args.kill_worker + ["engine"] * (args.kills - args.kills // 2)
    kills += ["stop"] * args.stops + ["engine"] * (args.kills // 2)
    tasks = server.metric("frontend_tasks")
    chaos = Chaos(server, args.seed)
    chaos.run(int(args.requests * WARM_UP_SHARE), args.concurrency, kills[:1], 0)
    wrong = [*chaos.tally.wrong, *leftovers(server, tasks, math.inf)]
    server.settle()
    memory, began = server.memory(), time.monotonic()
    chaos.run(args.requests, args.concurrency, kills, 1)
    seconds = time.monotonic() - began
    server.settle()
    wrong += [*chaos.tally.wrong, *leftovers(server, tasks, memory * (1 + args.memory_slack))]
    report(chaos, memory, seconds)
    return wrong


if __name__ == "__main__":
    sys.exit(main())
