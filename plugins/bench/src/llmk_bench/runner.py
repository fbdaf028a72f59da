"""Runs a load from processes of their own, so that nothing of this one delays it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import multiprocessing
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from llmk.api import LlmkError
from llmk_bench.client import Client
from llmk_bench.load import Load
from llmk_bench.prompts import Conversation
from llmk_bench.sample import Sample
from llmk_bench.target import Target

BUSY = 0.7
"""Share of a processor from which a client's own work is likely to show in what it measures."""


class Outcome(msgspec.Struct):
    """``samples`` of all requests, and the largest share of a processor that a client took (``busy``)."""

    samples: list[Sample]
    busy: float


def run(target: Target, load: Load, conversations: list[Conversation], processes: int = 1) -> Outcome:
    """Sends ``conversations`` from so many processes; returns what became of them, in the order in which they were
    due. Raises LlmkError where a client ends before its time."""
    due = load.arrivals()
    if len(conversations) > len(due):  # the long prompt comes with the one after it
        at = next(index for index, talk in enumerate(conversations) if talk.special)
        due.insert(at, due[min(at, len(due) - 1)])
    jobs = list(zip(due, conversations, strict=True))
    processes = max(1, min(processes, load.concurrency or len(jobs), len(jobs)))
    samples, busy = list[Sample](), 0.0
    with _clients(processes) as pipes:
        for number, pipe in enumerate(pipes):
            share = load.concurrency // processes + (number < load.concurrency % processes)
            own = msgspec.structs.replace(load, concurrency=share)
            pipe.send((target, own, jobs[number::processes], number))
        for pipe in pipes:
            _receive(pipe)
        start = time.monotonic() + 0.05
        for pipe in pipes:
            pipe.send(start)
        for pipe in pipes:
            found, took = _receive(pipe)
            samples += found
            busy = max(busy, took)
    return Outcome(sorted(samples, key=lambda sample: sample.due), round(busy, 3))


@contextlib.contextmanager
def _clients(count: int) -> Iterator[list[Connection[Any, Any]]]:
    context = multiprocessing.get_context("spawn")
    ends = [context.Pipe() for _ in range(count)]
    processes = [context.Process(target=_client, args=(theirs,), daemon=True) for _, theirs in ends]
    try:
        for process in processes:
            process.start()
        for _, theirs in ends:
            theirs.close()
        yield [ours for ours, _ in ends]
    finally:
        for process in processes:
            process.terminate()
            process.join()


def _receive(pipe: Connection[Any, Any]) -> Any:
    try:
        found = pipe.recv()
    except EOFError:
        raise LlmkError("a client of the benchmark ended; its error is above") from None
    if isinstance(found, LlmkError):
        raise found
    return found


def _client(pipe: Connection[Any, Any]) -> None:
    """The main function of a client's process."""
    with contextlib.suppress(KeyboardInterrupt):
        target, load, jobs, number = pipe.recv()
        pipe.send(None)
        start = pipe.recv()
        gc.collect()
        gc.disable()  # a collection of many samples would take as long as a token
        used, at = time.process_time(), time.monotonic()
        try:
            client = Client(target, load, start, number)
            asyncio.run(client.run(jobs))
        except LlmkError as error:
            pipe.send(error)
            return
        seconds = time.monotonic() - at
        pipe.send((client.samples, (time.process_time() - used) / max(seconds, 1e-9) if seconds else math.nan))
