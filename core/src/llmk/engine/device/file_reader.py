"""Reads pieces of files into tensors, wherever these lie.

Several threads read at once, since one does not get out of a disk, or of the system's memory, what these can give. What
goes to another device is read into two pinned buffers per thread in turn: while one is on its way, the other is filled.
"""

from __future__ import annotations

import errno
import mmap
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
from llmk.config.cpus import usable
from llmk.engine.device.transfer import event, has_pinned_memory

CHUNK_BYTES = 8 << 20
"""What is best read at a time: enough to hide what a read costs, and little enough for all threads to have some."""

_AHEAD_BYTES = 256 << 20
"""What is to be on its way behind the part that is waited for."""

_WORTH_MAPPING = 1 << 20
"""Bytes of the smallest tensor that is mapped: each mapping has a cost of its own, and there may be 65,530."""

_POPULATE_READ = 22
"""MADV_POPULATE_READ of Linux 5.14, which Python's ``mmap`` does not name."""

NUM_THREADS = min(8, usable())

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Mapped:
    """Pages of a file from byte ``start`` on, as memory."""

    pages: mmap.mmap
    start: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """What belongs ``into`` a contiguous tensor: as many elements, of ``dtype``, from byte ``start`` of ``file`` on, in
    rows whose beginnings lie ``stride`` bytes apart.

    With ``mapped`` they are in memory that is the file's, so nothing is copied: reading makes it present. With
    ``decode``, ``rows`` whole rows are read and decoded, and of the result the part ``kept`` belongs there.
    """

    file: CheckpointFile
    start: int
    stride: int
    dtype: torch.dtype
    into: Tensor
    decode: DecodeRows | None = None
    rows: int = 0
    kept: tuple[slice, ...] = ()
    mapped: Mapped | None = None

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
        if chunk.mapped is not None:
            _make_present(chunk, chunk.mapped)
            return
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


def map_file(chunks: Iterable[Chunk], storage: Tensor) -> tuple[Tensor, Mapped] | None:
    """Maps the part of a file that ``chunks`` would fill the whole of ``storage`` with, where that part is large and
    just as it would be in memory. Returns a tensor for the place of ``storage``, and what it lies in.

    Other processes that map the file share its pages, and the system may drop them and read them again where memory is
    short. Writing to the tensor changes neither them nor the file. It is aligned to its elements only.
    """
    size = storage.numel() * storage.itemsize
    if storage.device.type != "cpu" or size < _WORTH_MAPPING:
        return None
    parts = sorted(chunks, key=lambda chunk: chunk.into.data_ptr())
    first = parts[0]
    if first.start % storage.itemsize or sum(each.num_bytes for each in parts) != size:
        return None
    if len(places := {_address_in_file(each, storage) for each in parts}) > 1 or None in places:
        return None
    start = first.start - first.start % mmap.ALLOCATIONGRANULARITY
    try:
        with first.file.open() as stream:
            length = first.start - start + size
            pages = mmap.mmap(stream.fileno(), length, access=mmap.ACCESS_COPY, offset=start)
    except (OSError, ValueError):  # a file system that maps no files, or a file that is shorter than it was
        return None
    values = torch.frombuffer(pages, dtype=storage.dtype, count=storage.numel(), offset=first.start - start)
    return values.view(storage.shape), Mapped(pages, start)


def _address_in_file(chunk: Chunk, storage: Tensor) -> tuple[CheckpointFile, int] | None:
    """The file, and the byte of it, at which ``storage`` would start if the file were in memory as the
    chunk is; ``None`` where that can't be, as it is cast or decoded, or its rows are parts of the file's."""
    if (
        chunk.decode is not None
        or chunk.dtype != storage.dtype
        or chunk.stride * chunk.into.shape[0] != chunk.num_bytes
    ):
        return None
    return chunk.file, chunk.start - (chunk.into.data_ptr() - storage.data_ptr())


def _make_present(chunk: Chunk, mapped: Mapped) -> None:
    """Has the system read a chunk's pages of a mapping, where it can be asked to; else their first use does."""
    end = chunk.start - mapped.start + chunk.num_bytes
    first = (chunk.start - mapped.start) // mmap.PAGESIZE * mmap.PAGESIZE
    try:
        mapped.pages.madvise(_POPULATE_READ, first, end - first)
    except OSError as error:
        if error.errno != errno.EINVAL:  # which is what a kernel before Linux 5.14 answers
            raise _unreadable(chunk, error) from error


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
        raise _unreadable(chunk, error) from error


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


def _unreadable(chunk: Chunk, error: Exception) -> CheckpointError:
    return CheckpointError(f"{chunk.file} can't be read: {error}", hint="download or copy the file again")
