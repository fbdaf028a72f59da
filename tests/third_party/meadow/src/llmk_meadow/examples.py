"""Examples for the conformance kit. Those of the route are in ``chat_examples``."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from llmk.api import ReplicaState, RoutedRequest, Router, RouterContext, StatLoggerContext, StatsSnapshot
from llmk_testing.model_sources import SourceExample, toy_checkpoint
from llmk_testing.router_examples import RouterExamples
from llmk_testing.stat_examples import Runs, StatExamples


def encoded(key: str, replica: str) -> bytes:
    """A key and a replica, apart."""
    return f"{key}\0{replica}".encode("utf-8", "surrogatepass")


class PlainRing(Router):
    """By filters, one after the other."""

    def __init__(self, context: RouterContext) -> None:
        self._max_load = context.max_load
        self._given: list[tuple[str, int]] = []
        self._mean = 0.0

    def choose(self, request: RoutedRequest, replicas: Sequence[ReplicaState]) -> ReplicaState:
        """Even loads, even work, rank."""
        names = [one.id for one in replicas]
        given = {name: work for name, work in self._given if name in names}
        start = sum(given.values()) // len(given) if given else 0
        given = {name: given.get(name, start) for name in names}
        size = request.num_prompt_tokens + request.expected_tokens
        self._mean = self._mean + (size - self._mean) / 16 if self._mean else float(size)
        most = self._max_load * sum(one.load for one in replicas)
        left = [one for one in replicas if one.load * len(replicas) <= most]
        left = left or sorted(replicas, key=lambda one: one.load)[:1]
        least = min(given[one.id] for one in left)
        left = [one for one in left if given[one.id] - least <= 4 * self._mean]
        key = f"session {request.session}" if request.session else ""
        if not key and len(request.blocks):
            key = f"block {request.blocks[0]}"
        if key:
            ranks = {one.id: hashlib.blake2b(encoded(key, one.id), digest_size=8).digest() for one in left}
            chosen = sorted(left, key=lambda one: ranks[one.id])[-1]
        else:
            chosen = sorted(left, key=lambda one: (given[one.id], one.load))[0]
        given[chosen.id] += chosen.new_tokens(request)
        self._given = list(given.items())
        return chosen


RING = RouterExamples(oracle=PlainRing)

PATHS: list[dict[str, Any]] = [{}, {"order": 1, "share": 0.0}, {"order": 7, "share": 0.9}]
LOOPS: list[dict[str, Any]] = [{}, {"longest": 1, "proof": 1}, {"longest": 16, "proof": 5}]
CHOICES: list[dict[str, Any]] = [
    {"kind": "choice", "text": json.dumps(texts), "matches": texts, "fails": fails}
    for texts, fails in (
        (["yes", "no"], ["", "ye", "yesno"]),
        (["a", "ab", "abc", ""], ["b", "abcd"]),
        (["grün", "größer", "日本"], ["gr", "gro", "日"]),
    )
]


def plain_ledger(context: StatLoggerContext, runs: Runs) -> dict[str, bytes]:
    """All lines once more, then dealt out to files."""
    options = context.options
    files: list[bytes] = [b""]
    for run in runs:
        before: dict[str, float] = {}
        for snapshot in run:
            line = plain_line(context.model_name, snapshot, before)
            if files[0] and len(files[0]) + len(line) > options["ledger_bytes"]:
                files.insert(0, b"")
            files[0] += line
    kept = files[: options["ledger_files"]]
    return {options["ledger"] + (f".{number}" if number else ""): data for number, data in enumerate(kept)}


def plain_line(model: str, snapshot: StatsSnapshot, before: dict[str, float]) -> bytes:
    """One line; ``before`` are the counters of those before it."""
    found: dict[str, dict[str, Any]] = {"gauge": {}, "counter": {}}
    for stat in snapshot.stats:
        labels = ",".join(f"{name}={json.dumps(stat.labels[name])}" for name in sorted(stat.labels))
        series = stat.name + (f"{{{labels}}}" if labels else "")
        value = stat.value
        if stat.kind == "counter":
            value -= before.get(series, 0.0) if before.get(series, 0.0) <= value else 0.0
            before[series] = stat.value
        found[stat.kind][series] = str(value) if value != value or abs(value) == float("inf") else value
    line = {"time": snapshot.time, "model": model, "gauges": found["gauge"], "grown": found["counter"]}
    return json.dumps(line).encode() + b"\n"


LEDGER = StatExamples(
    (
        {},
        {"ledger": "small.jsonl", "ledger_bytes": 900, "ledger_files": 2},
        {"ledger": "one.jsonl", "ledger_bytes": 2000, "ledger_files": 1},
        {"ledger": "more.jsonl", "ledger_bytes": 2500, "ledger_files": 4},
    ),
    plain_ledger,
)
NICELY: dict[str, Any] = {"command": ["nice", "-n", "1"]}


@contextmanager
def barn(folder: Path) -> Iterator[SourceExample]:
    """A barn with two versions of one model."""
    models = {version: toy_checkpoint(elements) for version, elements in (("1.0", 30_000), ("2.0", 40_000))}
    entries: dict[str, dict[str, str]] = {}

    def put(version: str, checkpoint: Mapping[str, bytes]) -> Path:
        path = folder / f"toy-{version}.tar"
        with tarfile.open(path, "w") as tar:
            for name, data in checkpoint.items():
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        entries[version] = {"version": version, "file": path.name, "sha256": digest}
        (folder / "index.json").write_text(json.dumps({"toy": list(entries.values())}))
        return path

    for version, checkpoint in models.items():
        path = put(version, checkpoint)
    named = {f"barn:toy@{version}": files for version, files in models.items()} | {"barn:toy": models["2.0"]}

    def damage() -> None:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)

    def publish(name: str, files: Mapping[str, bytes]) -> None:
        if name.partition("@")[2] in entries:
            raise ValueError("a version is published once")
        put(name.partition("@")[2] or f"{len(entries) + 1}.0", files)

    def away() -> None:
        folder.rename(folder.with_name("unmounted"))

    yield SourceExample("barn:toy", "barn:tow", {"barn": str(folder)}, named, damage, publish, away)
