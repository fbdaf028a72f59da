"""What one client can do to others.

    python benchmarks/hostile.py                                    # every case, twice
    python benchmarks/hostile.py --only 'word-*' 'stop*' --passes 1    # some cases, once
    python benchmarks/hostile.py --sample 8 --seed 3                # eight cases, drawn
    python benchmarks/hostile.py --list

A server is started. A prober asks /health every 20 ms, a quiet client asks for short streamed answers, each in a
process of its own. Then attackers do one harmful thing after the other, a few seconds each, from another address.
Whatever they do:

- no time between two answers of /health is longer than ``--gap``;
- the 99th percentile of the quiet client's latency is at most ``--ratio`` times that before the attacks. A single case,
  in which it has a dozen requests, is judged by the 90th, which may grow by a quarter more, and by the slowest
  (``--slowest``);
- every hostile request gets an answer that it deserves, or is cut off, in time, and nothing is an internal error;
- a minute after the last attack the server's processes hold as much memory as before, nothing is left running, and a
  second pass adds nothing. Before is after some valid load: an engine that has never had a full batch holds less.

Prints a table, and with ``--json`` writes all numbers. Exits with 1 where a bound is broken. Everything goes to
127.0.0.1, and ends by itself. What stands behind ``--`` goes to ``llmk serve``.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from hostile_cases import apis, bodies, connections, frame, observers, prompts, sampling, stored, traffic
from hostile_cases.server import Server
from hostile_cases.watching import SPAWN, Observer, Sample, percentile
from hostile_cases.wire import Target
from processes import Held, held, resident

ALL = [case for part in (bodies, prompts, sampling, connections, traffic, apis, stored) for case in part.CASES]
CASES = {case.name: case for case in ALL}
CALM = 0.3
"""Seconds for which the server must answer as before until the next case begins."""
RECOVERY = 60.0
"""Seconds after which a server that does not is started anew."""
LOG_PER_REQUEST = 1 << 10
LOG_PER_CASE = 1 << 16
FILLING = ("cache", "choices-128", "logprobs-128", "answers-200", "tools", "lengths")
"""Valid load after which the memory at the start is measured: steps of all sizes, long contexts and log-probabilities
grow the engine's heap to its working size, once."""
MOST_FILLS = 8
"""Rounds of it at most."""
STEADY = 5.0
"""Seconds in which memory must not grow until it counts as the start's: a process that stands by imports at leisure."""
AGAIN = 8 << 20
"""Bytes that a second pass may add."""
KEYS = ("the-quiet-clients-key", "the-attackers-key")
GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_blocks_used")


@dataclass(slots=True)
class Row:
    """What a case, or all of them, did to others. Times are milliseconds."""

    name: str
    requests: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    slowest_ms: float = 0.0
    gap_ms: float = 0.0
    p50_ms: float = 0.0
    p90_ms: float = 0.0
    p99_ms: float = 0.0
    first_ms: float = 0.0
    """99th percentile of the time to the quiet client's first token."""
    observed: int = 0
    """Answers to the observers."""
    failed: int = 0
    """Those of them that did not come, or were no good ones."""
    ratio: float = 0.0
    """By how much the quiet client's latency grew: its 99th percentile, or that of a single case its 90th."""
    noise_ms: float = 0.0
    """By how much the prober itself was late, at most: the machine's doing, not the server's."""
    recovery_s: float = 0.0
    peak_mib: float = 0.0
    """The most that all processes of the server had in memory, each counted in full."""
    wrong: list[str] = field(default_factory=list)


class Siege:
    """One run: a server, who observes it, and what came of each case."""

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self.args = args
        self.folder = folder
        self.cases = _chosen(args)
        self.rows: list[Row] = []
        self.wrong: list[str] = []
        self.memory: dict[str, Held] = {}
        self.calm = Row("before")
        self.every = Row("all")
        """All cases as one."""
        self._seen: tuple[list[Sample], list[Sample]] = ([], [])
        self._starts = 0
        self._start()

    def _start(self) -> None:
        self._starts += 1
        keys = KEYS if self.args.keys else ()
        self.server = Server(self.args.serve, self.folder / f"log-{self._starts}", self.args.within, keys)
        self.prober = Observer(observers.probe, self.server.quiet)
        self.quiet = Observer(observers.chat, self.server.quiet)

    def _stop(self) -> None:
        self.prober.close()
        self.quiet.close()
        if self.server.close() != 0:
            self.wrong.append("the server had to be killed, or did not end with 0")

    def run(self) -> None:
        """Everything."""
        try:
            self._wait(self.args.calm_seconds)
            self.calm = self._row("before", time.monotonic() - self.args.calm_seconds, self.args.warm_up)
            print(TITLE, _line(self.calm), sep="\n", flush=True)
            self._fill()
            self._start_of_memory()
            self._seen = ([], [])
            before = len(self.server.metrics())
            for number in range(1, self.args.passes + 1):
                for case in self.cases:
                    self.rows.append(self._case(case, number))
                    print(_line(self.rows[-1]), flush=True)
                self._settle(f"pass {number}", self.args.settle)
            self.every = self._judged("all", *self._seen)
            self._check_metrics(before)
        finally:
            self._stop()
        self._check_memory()

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(0.1)
            if self.server.process.poll() is not None:
                raise SystemExit(f"the server ended by itself:\n{self.server.log.read_text()[-4000:]}")

    def _settle(self, name: str, seconds: float) -> None:
        self._wait(seconds)
        self.memory[name] = held(self.server.process.pid)
        print(f"{name}: {self.memory[name]}", flush=True)

    def _fill(self) -> None:
        """Valid load, until a round of it adds nothing more: caches that are bounded by their number of entries, such
        as that of compiled matrix multiplications, are then full."""
        last = 0
        for _ in range(MOST_FILLS if self.args.fill_seconds else 0):
            for name in FILLING:
                self._attack(CASES[name], 0, self.args.fill_seconds)
                self._recover()
            now = resident(self.server.process.pid)
            if now <= last + AGAIN:
                return
            last = now

    def _start_of_memory(self) -> None:
        """Measures the memory at the start, once it is steady."""
        end, last = time.monotonic() + RECOVERY, 0
        while time.monotonic() < end and (now := resident(self.server.process.pid)) > last + AGAIN:
            last = now
            self._wait(STEADY)
        self._settle("start", 1.0)

    def _attack(self, case: frame.Case, number: int, seconds: float) -> tuple[frame.Tally, float, int]:
        """Runs a case: what became of it, when it began, and the most memory that was seen."""
        here, there = SPAWN.Pipe(duplex=False)
        args = (case.name, self.server.target, seconds, self.args.seed + number, there)
        attacker = SPAWN.Process(target=attack, args=args, daemon=True)
        attacker.start()
        there.close()
        tally, began, peak = frame.Tally(), time.monotonic(), 0
        try:
            here.recv()
            began = time.monotonic()
            patience = began + seconds + 3 * self.args.within
            while not here.poll(0.25) and time.monotonic() < patience:
                peak = max(peak, resident(self.server.process.pid))
            tally = here.recv() if here.poll() else tally
        except EOFError:
            tally.wrong.append("the attacker ended without a word")
        finally:
            attacker.kill()
            attacker.join()
        return tally, began, peak

    def _case(self, case: frame.Case, number: int) -> Row:
        logged = self.server.log.stat().st_size
        tally, began, peak = self._attack(case, number, self.args.seconds_per_case)
        ended = time.monotonic()
        recovered = self._recover()
        row = self._row(case.name, began, 0.0)
        row.recovery_s = time.monotonic() - ended
        row.requests, row.kinds, row.slowest_ms = tally.requests, dict(tally.kinds), tally.slowest * 1000
        row.peak_mib = max(peak, resident(self.server.process.pid)) / 2**20
        if row.peak_mib > self.memory["start"].resident / 2**20 + self.args.peak_mib:
            row.wrong.append(f"the server took {row.peak_mib:,.0f} MiB")
        row.wrong += tally.wrong
        if not tally.kinds:
            row.wrong.append("no request came to an end")
        grown = self.server.log.stat().st_size - logged
        if grown > LOG_PER_CASE + LOG_PER_REQUEST * (row.requests + row.observed):
            row.wrong.append(f"the log grew by {grown:,} bytes")
        if not recovered:
            row.wrong.append(f"{RECOVERY:g} s later the server was not as before, and was started anew")
            self._stop()
            self._start()
            self._wait(self.args.warm_up + 1)
        return row

    def _recover(self) -> bool:
        """Waits until both observers have had good answers for a while; whether that came to be."""
        end = time.monotonic() + RECOVERY
        since = time.monotonic()
        while time.monotonic() < end:
            if self.server.process.poll() is not None:
                return False
            seen = [observer.between(since, time.monotonic() + 1) for observer in (self.prober, self.quiet)]
            bad = [s.ended for samples in seen for s in samples if not s.fine or s.seconds > self._usual]
            since = max([since, *bad])
            if all(samples and samples[-1].ended - since > CALM for samples in seen):
                return True
            time.sleep(0.02)
        return False

    @property
    def _usual(self) -> float:
        return max(0.1, self.args.ratio * self.calm.p99_ms / 1000)

    def _row(self, name: str, start: float, skip: float) -> Row:
        """What the observers saw since ``start``."""
        end = time.monotonic()
        probes, asked = self.prober.between(start + skip, end), self.quiet.between(start + skip, end)
        for all_, some in zip(self._seen, (probes, asked), strict=True):
            all_ += some
        return self._judged(name, probes, asked)

    def _judged(self, name: str, probes: Sequence[Sample], asked: Sequence[Sample]) -> Row:
        row = Row(name)
        row.gap_ms = max((s.seconds for s in probes), default=math.inf) * 1000
        row.noise_ms = max((s.late for s in probes), default=0.0) * 1000
        row.p50_ms = percentile([s.seconds for s in asked], 0.5) * 1000
        row.p90_ms = percentile([s.seconds for s in asked], 0.9) * 1000
        row.p99_ms = percentile([s.seconds for s in asked], 0.99) * 1000
        row.first_ms = percentile([s.first for s in asked], 0.99) * 1000
        row.observed = len(probes) + len(asked)
        row.failed = sum(not s.fine for s in (*probes, *asked))
        share, then, now, most = 90, self.calm.p90_ms, row.p90_ms, 1.25 * self.args.ratio
        if name == "all":
            share, then, now, most = 99, self.calm.p99_ms, row.p99_ms, self.args.ratio
        row.ratio = now / then if then else 1.0
        slowest = max((s.seconds for s in asked), default=0.0) * 1000 / (self.calm.p99_ms or math.inf)
        if row.failed:
            row.wrong.append(f"{row.failed} answers to the observers failed")
        if row.gap_ms > self.args.gap * 1000:
            row.wrong.append(f"/health was silent for {row.gap_ms:.0f} ms")
        if row.ratio > most:
            row.wrong.append(f"the quiet client's p{share} is {row.ratio:.2f} times what it was")
        if slowest > self.args.slowest:
            row.wrong.append(f"the quiet client's slowest request took {slowest:.1f} times the p99 before")
        return row

    def _check_metrics(self, before: int) -> None:
        """What is left when nobody asks any more."""
        self.quiet.close()
        end = time.monotonic() + 30
        while (left := _left(text := self.server.metrics())) and time.monotonic() < end:
            time.sleep(0.2)
        self.wrong += left
        if len(text) > 2 * before + (1 << 16):
            self.wrong.append(f"/metrics grew from {before:,} to {len(text):,} bytes")
        for line in re.findall(r'^llmk_http_requests_total\{.*status="5(?!03).*$', text, re.MULTILINE):
            self.wrong.append(f"internal errors: {line}")
        if found := re.search(r"^llmk_engine_restarts_total.* ([1-9]\S*)$", text, re.MULTILINE):
            self.wrong.append(f"the engine was started again {found[1]} times")

    def _check_memory(self) -> None:
        held_then = [*self.memory.values()]
        if len(held_then) < 2:
            return
        start, first = held_then[:2]
        if first.pss > start.pss + max(self.args.slack_mib << 20, start.pss // 20):
            self.wrong.append(f"memory grew: {start} before, {first} after the first pass")
        for second in held_then[2:]:
            if second.pss > first.pss + AGAIN + first.pss // 100:
                self.wrong.append(f"memory went on growing: {first} after the first pass, {second} after another")
        if held_then[-1].files > start.files + 8:
            self.wrong.append(f"files stay open: {start.files} before, {held_then[-1].files} after")


def attack(name: str, target: Target, seconds: float, seed: int, parent: Connection) -> None:
    """Runs a case in this process, at the lowest priority: attackers have machines of their own."""
    os.nice(19)
    parent.send(frame.run(CASES[name], target, seconds, seed, lambda: parent.send("ready")))


def _left(metrics: str) -> list[str]:
    values = {name: re.search(rf"^llmk_{name}(?:\{{[^}}]*\}})? (\S+)$", metrics, re.MULTILINE) for name in GAUGES}
    return [f"{name} stays at {found[1]}" for name, found in values.items() if found and float(found[1])]


TITLE = (
    "| case | requests | gap ms | quiet p50 ms | p90 ms | p99 ms | ratio | first token p99 ms | slowest request s "
    "| recovery s | peak MiB | noise ms | |\n| --- |" + " --- |" * 12
)


def _line(row: Row) -> str:
    kinds = " ".join(f"{kind}×{count}" for kind, count in sorted(row.kinds.items()))
    told = "; ".join(row.wrong) or "ok"
    return (
        f"| {row.name} | {kinds} | {row.gap_ms:.0f} | {row.p50_ms:.0f} | {row.p90_ms:.0f} | {row.p99_ms:.0f} "
        f"| {row.ratio:.1f} | {row.first_ms:.0f} | {row.slowest_ms / 1000:.2f} | {row.recovery_s:.1f} "
        f"| {row.peak_mib:.0f} | {row.noise_ms:.0f} | {told[:400]} |"
    )


def _chosen(args: argparse.Namespace) -> list[frame.Case]:
    names = [name for name in CASES if any(fnmatch.fnmatch(name, only) for only in args.only)]
    if not names:
        raise SystemExit(f"no case is named like {' or '.join(args.only)}; --list names them all")
    if args.sample:
        names = sorted(random.Random(args.seed).sample(names, min(args.sample, len(names))), key=[*CASES].index)
    return [CASES[name] for name in names]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs it all; 1 where something is not as it must be."""
    args = _parse(arguments)
    if args.list:
        for case in ALL:
            print(f"{case.name:20} {case.what}")
        return 0
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))  # so that the server is ended, too
    with tempfile.TemporaryDirectory() as folder:
        siege = Siege(args, Path(folder))
        siege.run()
    print(_line(siege.every))
    wrong = [*siege.wrong, *(f"{row.name}: {what}" for row in (*siege.rows, siege.every) for what in row.wrong)]
    if args.json:
        told: dict[str, Any] = {"before": asdict(siege.calm), "cases": [asdict(row) for row in siege.rows]}
        told |= {"memory": {name: asdict(memory) for name, memory in siege.memory.items()}, "wrong": wrong}
        args.json.write_text(json.dumps(told, indent=1))
    for violation in wrong:
        print(f"WRONG: {violation}", file=sys.stderr)
    return 1 if wrong else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=["*"], help="names of cases, with wildcards")
    parser.add_argument("--sample", type=int, default=0, help="so many of them, drawn by --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--seconds-per-case", type=float, default=4.0)
    parser.add_argument("--calm-seconds", type=float, default=20.0, help="before the attacks, to compare with")
    parser.add_argument("--warm-up", type=float, default=3.0, help="seconds of these that count for nothing")
    parser.add_argument("--fill-seconds", type=float, default=4.0, help="of each valid load before the start; 0: none")
    parser.add_argument("--settle", type=float, default=60.0, help="seconds from the last attack to measuring memory")
    parser.add_argument("--within", type=float, default=35.0, help="seconds in which a request must end")
    parser.add_argument("--gap", type=float, default=0.25, help="seconds that /health may be silent")
    parser.add_argument("--ratio", type=float, default=2.0, help="by which the quiet client's latency may grow")
    parser.add_argument("--slowest", type=float, default=5.0, help="by which its slowest request may exceed the p99")
    parser.add_argument("--peak-mib", type=float, default=1024, help="by which the server may grow during a case")
    parser.add_argument("--slack-mib", type=int, default=32, help="by which it may be larger at the end, or 5%%")
    parser.add_argument("--keys", action="store_true", help="tell clients apart by API keys, not by their addresses")
    parser.add_argument("--json", type=Path, help="file for all numbers")
    parser.add_argument("--list", action="store_true", help="name the cases")
    parser.add_argument("serve", nargs="*", help="arguments of llmk serve, after --")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
