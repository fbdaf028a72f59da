"""Reads pieces of files into tensors, wherever these lie.

Several threads read at once, since one does not get out of a disk, or of the system's memory, what these can give. What
goes to another device is read into two pinned buffers per thread in turn: while one is on its way, the other is filled.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import BinaryIO, Self, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from numpy.lib.stride_tricks import as_strided
from torch import Tensor

from llmk.api import CheckpointError, CheckpointFile, DecodeRows
from llmk.engine.device.transfer import event, has_pinned_memory

CHUNK_BYTES = 8 << 20
"""What is best read at a time: enough to hide what a read costs, and little enough for all threads to have some."""

_AHEAD_BYTES = 256 << 20
"""What is to be on its way behind the part that is waited for."""

NUM_THREADS = min(8, os.cpu_count() or 1)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Chunk:
    """What belongs ``into`` a contiguous tensor: as many elements, of ``dtype``, from byte ``start`` of ``file`` on, in
    rows whose beginnings lie ``stride`` bytes apart.

    With ``decode``, ``rows`` whole rows are read and decoded, and of the result the part ``kept`` belongs there.
    """

    file: CheckpointFile
    start: int
    stride: int
    dtype: torch.dtype
    into: Tensor
    decode: DecodeRows | None = None
    rows: int = 0
    kept: tuple[slice, ...] = ()

    @property
    def num_bytes(self) -> int:
        """Bytes to be read."""
        return self.rows * self.stride if self.decode else self.into.numel() * self.dtype.itemsize


class FileReader:
    """Reads chunks; a context, at whose end its threads are gone."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(NUM_THREADS, "llmk-read")
        self._buffers = _Buffers()
        self._streams = _Streams()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._streams.close()

    def read(self, parts: Iterable[tuple[T, Iterable[Chunk]]]) -> Iterator[T]:
        """Yields each part, in order, as soon as what is issued to its device from now on finds its chunks there.

        Raises:
            CheckpointError: where a file can't be read, or is shorter than it was.
        """
        ahead = 0
        arriving: deque[tuple[T, int, list[Future[None]]]] = deque()
        for part, chunks in parts:
            issued = list(chunks)
            size = sum(chunk.num_bytes for chunk in issued)
            arriving.append((part, size, [self._pool.submit(self._read, chunk) for chunk in issued]))
            ahead += size
            while ahead - arriving[0][1] > _AHEAD_BYTES:
                ahead -= arriving[0][1]
                yield _arrived(*arriving.popleft())
        while arriving:
            yield _arrived(*arriving.popleft())

    def _read(self, chunk: Chunk) -> None:
        into, device = chunk.into, chunk.into.device
        if chunk.decode is not None:
            stored = torch.empty((chunk.rows, chunk.stride), dtype=torch.uint8)
            _fill(chunk, stored, self._streams)
            into.copy_(chunk.decode(stored)[chunk.kept])
            return
        if device.type == "cpu" and chunk.dtype == into.dtype:
            _fill(chunk, into, self._streams)
            return
        pinned = has_pinned_memory(device)
        if pinned:
            torch.accelerator.set_device_index(device)  # a thread starts on the first one
        buffer, sent = self._buffers.both.popleft()
        if sent is not None:
            sent.synchronize()
        if buffer.numel() < chunk.num_bytes:
            buffer = torch.empty(max(chunk.num_bytes, CHUNK_BYTES), dtype=torch.uint8, pin_memory=pinned)
        values = buffer[: chunk.num_bytes].view(chunk.dtype).view(into.shape)
        _fill(chunk, values, self._streams)
        if chunk.dtype != into.dtype:
            values = values.to(device, non_blocking=pinned)  # which casts faster, and in its turn
        into.copy_(values, non_blocking=pinned)
        self._buffers.both.append((buffer, event(device)))


class _Buffers(threading.local):
    """A thread's two buffers, the one that is to be used next first, and what must come before it may be."""

    def __init__(self) -> None:
        self.both: deque[tuple[Tensor, torch.Event | None]] = deque([(torch.empty(0, dtype=torch.uint8), None)] * 2)


class _Streams:
    """Files, each opened once: some checkpoints have a hundred thousand tensors."""

    def __init__(self) -> None:
        self._opened: dict[CheckpointFile, BinaryIO] = {}
        self._lock = threading.Lock()

    def of(self, file: CheckpointFile) -> BinaryIO:
        """The file, from which threads read at places of their own."""
        with self._lock:
            if file not in self._opened:
                self._opened[file] = file.open()
            return self._opened[file]

    def close(self) -> None:
        for stream in self._opened.values():
            stream.close()


def _fill(chunk: Chunk, into: Tensor, streams: _Streams) -> None:
    """Reads a chunk into the memory of ``into``, a contiguous tensor on the host."""
    rows: npt.NDArray[np.uint8] = into.view(-1).view(torch.uint8).view(into.shape[0], -1).numpy()
    try:
        if rows.shape[1] == chunk.stride:
            _read(streams.of(chunk.file), chunk.start, memoryview(rows).cast("B"))  # type: ignore[arg-type]
        else:
            length = chunk.stride * (rows.shape[0] - 1) + rows.shape[1]
            found = np.memmap(streams.of(chunk.file), np.uint8, "r", chunk.start, (length,))
            np.copyto(rows, as_strided(found, rows.shape, (chunk.stride, 1)))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{chunk.file} can't be read: {error}", hint="download or copy the file again") from error


def _read(stream: BinaryIO, at: int, left: memoryview) -> None:
    while left:
        count = os.preadv(stream.fileno(), [left], at)
        if not count:
            raise OSError(f"it ends {len(left):,} bytes early")
        left, at = left[count:], at + count


def _arrived(part: T, size: int, chunks: Iterable[Future[None]]) -> T:
    for chunk in chunks:
        chunk.result()
    return part
