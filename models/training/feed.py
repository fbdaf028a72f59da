"""Turns an endless stream of samples into packed training rows, in worker processes.

A row holds exactly ``row_tokens`` tokens of whole documents. Rows go into a pool; when the workers are slower
than the device, old rows are used again.
"""

import multiprocessing
import queue
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np

from corpus import Sample, samples
from rendering import Encoder

MAX_DOCUMENT = 2048
"""Longest document kept, in tokens."""
MEAN_DOCUMENT = 48
"""A row holds at most one document for each so many tokens."""
PROMPT_WEIGHT = 0.1
"""Loss weight of a prompt token; a reply token has 1."""


@dataclass(frozen=True)
class Row:
    """One packed row: ``tokens`` uint16 [T], ``weights`` float16 [T], ``lengths`` int32 [documents]."""

    tokens: np.ndarray
    weights: np.ndarray
    lengths: np.ndarray


def encode(encoder: Encoder, sample: Sample) -> tuple[list[int], list[float]]:
    """Token ids of a whole document, and the loss weight of each id as a target."""
    prompt, reply = encoder.ids(sample)
    return prompt + reply, [PROMPT_WEIGHT] * len(prompt) + [1.0] * len(reply)


def rows(folder: Path, seed: int, row_tokens: int) -> Iterator[Row]:
    """Endless packed rows of the training split, the same for the same seed."""
    encoder = Encoder(folder)
    tokens: list[int] = []
    weights: list[float] = []
    lengths: list[int] = []
    for sample in samples(seed, "train"):
        ids, loss = encode(encoder, sample)
        if len(ids) > MAX_DOCUMENT:
            continue
        if len(tokens) + len(ids) > row_tokens or len(lengths) + 2 > row_tokens // MEAN_DOCUMENT:
            rest = row_tokens - len(tokens)
            lengths += [MAX_DOCUMENT] * (rest // MAX_DOCUMENT) + [rest % MAX_DOCUMENT] * (rest % MAX_DOCUMENT > 0)
            yield Row(
                np.array(tokens + [encoder.pad] * rest, dtype=np.uint16),
                np.array(weights + [0.0] * rest, dtype=np.float16),
                np.array(lengths, dtype=np.int32),
            )
            tokens, weights, lengths = [], [], []
        tokens += ids
        weights += loss
        lengths.append(len(ids))


def _work(folder: Path, seed: int, row_tokens: int, out: "multiprocessing.Queue[Row]") -> None:
    for row in rows(folder, seed, row_tokens):
        out.put(row)


class Feed:
    """A growing pool of rows filled by ``workers`` processes."""

    def __init__(self, folder: Path, seed: int, row_tokens: int, workers: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._queue: multiprocessing.Queue[Row] = context.Queue(maxsize=4 * workers)
        self._random = random.Random(seed)
        self._fresh: queue.SimpleQueue[Row] = queue.SimpleQueue()
        self.pool: list[Row] = []
        self._workers = [
            context.Process(target=_work, args=(folder, worker, row_tokens, self._queue), daemon=True)
            for worker in range(seed * workers, (seed + 1) * workers)
        ]
        for worker in self._workers:
            worker.start()
        threading.Thread(target=self._collect, daemon=True).start()

    def _collect(self) -> None:
        for _ in count():
            try:
                self._fresh.put(self._queue.get())
            except (EOFError, OSError):
                return

    def next(self) -> Row:
        """A new row where one is ready (always, for the first), else one seen before."""
        while not self.pool or not self._fresh.empty():
            row = self._fresh.get()
            self.pool.append(row)
            return row
        return self._random.choice(self.pool)

    def close(self) -> None:
        """End the worker processes."""
        for worker in self._workers:
            worker.terminate()
