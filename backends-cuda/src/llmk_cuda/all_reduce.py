"""The sum of a tensor over GPUs of one host, by kernels of our own where they are faster than NCCL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
import triton
from torch import Tensor

from llmk.api import Verdict, no
from llmk_cuda.peer_kernels import add_rms_norm_kernel, one_shot_kernel, two_shot_kernel
from llmk_cuda.peer_memory import PeerMemory

T = TypeVar("T")

_WORD = 4
"""Bytes of what the kernels count in."""
_MOST_ROWS = 512
"""Of the kernel with the norm, which has a program for each."""
_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


class Most(NamedTuple):
    """Up to how many bytes each kernel is faster than the one after it, and than NCCL."""

    one_shot: int
    two_shot: int


MOST = {
    2: Most(2 << 20, 64 << 20),
    4: Most(256 << 10, 8 << 20),
    8: Most(128 << 10, 8 << 20),
}
"""By the number of ranks, or the next greater one. Two were measured on H100s, by ``python benchmarks/all_reduce.py
--ranks 2``; for more, these are estimates from the bytes that go over NVLink."""


class Tiles(NamedTuple):
    """How the kernels divide a message: words that a program sums at a time, its warps, and how many programs of the
    kernel with two shots there are at most, which are to run at a time.

    With two words per thread, the kernel with one shot reads, sends and receives a word by the same thread."""

    one_shot: int = 512
    one_shot_warps: int = 8
    two_shot: int = 4096
    two_shot_warps: int = 16
    programs: int = 128


TILES = Tiles()


@dataclass(frozen=True, slots=True)
class Layout:
    """What each of ``size`` ranks has in its memory; sizes in words, or numbers, of the kernels' areas."""

    size: int
    most: Most
    tiles: Tiles

    @property
    def one_shot_words(self) -> int:
        """Of a message."""
        return _up(self.most.one_shot // _WORD, self.tiles.one_shot)

    @property
    def two_shot_words(self) -> int:
        """Of a message, in parts of whole tiles."""
        return _up(self.most.two_shot // _WORD, self.size * self.tiles.two_shot)

    @property
    def norm_at(self) -> int:
        """Bytes before the area of the kernel with the norm, which has as many words as that with one shot."""
        return 2 * self.size * self.one_shot_words * 8

    @property
    def two_shot_at(self) -> int:
        """Bytes before the area of the kernel with two shots."""
        return 2 * self.norm_at

    @property
    def num_bytes(self) -> int:
        """Of all areas."""
        return self.two_shot_at + 2 * (self.two_shot_words + self.tiles.programs * self.size) * _WORD


class PeerAllReduce:
    """Follows :class:`llmk.api.AllReduce`.

    Args:
        rank: of this process.
        addresses: of each rank's memory, which :class:`Layout` describes, zeros at first.
        most: up to which size each kernel is used.
        device: of this process.
        pdl: whether the device starts kernels before the one before has ended.
    """

    def __init__(
        self,
        rank: int,
        addresses: Sequence[int],
        most: Most,
        device: torch.device,
        tiles: Tiles = TILES,
        *,
        pdl: bool = False,
    ) -> None:
        layout = Layout(len(addresses), most, tiles)
        self._rank, self._size, self._most, self._tiles = rank, len(addresses), most, tiles
        self._words = layout.one_shot_words, layout.two_shot_words
        self._areas, self._norm_areas, self._two_shot_areas = (
            tuple(address + start for address in addresses) for start in (0, layout.norm_at, layout.two_shot_at)
        )
        self._options: dict[str, Any] = {"PDL": True, "launch_pdl": True} if pdl else {"PDL": False}
        programs = layout.one_shot_words // tiles.one_shot, tiles.programs
        self._counts = [torch.zeros(count, dtype=torch.int32, device=device) for count in (*programs, _MOST_ROWS)]
        self._row = 0
        """Words of a row of the kernel with the norm, once it is known. Rows of other sizes would stand in the places
        of other programs."""

    def __str__(self) -> str:
        return f"through peer memory for up to {max(self._most) >> 10} KiB"

    def takes(self, num_bytes: int, dtype: torch.dtype) -> bool:
        """Up to the measured size, if it divides by 16."""
        return dtype in _DTYPES and 0 < num_bytes <= max(self._most) and num_bytes % 16 == 0

    def __call__(self, x: Tensor) -> Tensor:
        x = x.contiguous()
        if x.data_ptr() % 16:
            x = x.clone()
        words = x.numel() * x.element_size() // _WORD
        if words * _WORD <= self._most.one_shot:
            self._one_shot(x, words)
        else:
            self._two_shot(x, words)
        return x

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor] | None:
        """For up to as many bytes as one shot is faster for, and rows of one size."""
        rows, size = x.shape
        row, rest = divmod(size * x.element_size(), 16)
        row *= 16 // _WORD
        if rest or not 0 < rows <= _MOST_ROWS or self._row not in (0, row) or rows * row * _WORD > self._most.one_shot:
            return None
        tensors = x, residual, weight
        if x.dtype not in _DTYPES or any(each.dtype != x.dtype or not each.is_contiguous() for each in tensors):
            return None
        self._row = row
        out, total = torch.empty_like(x), torch.empty_like(x)
        block = triton.next_power_of_2(row)
        given = (*tensors, out, total, self._norm_areas, self._counts[2], eps, row, self._rank, self._size)
        warps = min(max(block // 128, 1), 16)
        add_rms_norm_kernel[(rows,)](*given, self._words[0], block, num_warps=warps, **self._options)
        return out, total

    def _one_shot(self, x: Tensor, words: int) -> None:
        tiles = self._tiles
        given = (x, self._areas, self._counts[0], words // 4, self._rank, self._size, self._words[0])
        grid = (triton.cdiv(words, tiles.one_shot),)
        one_shot_kernel[grid](*given, tiles.one_shot, num_warps=tiles.one_shot_warps, **self._options)

    def _two_shot(self, x: Tensor, words: int) -> None:
        tiles = self._tiles
        count = triton.cdiv(words, self._size * tiles.two_shot)
        given = (x, self._two_shot_areas, self._counts[1], words // 4, count, self._rank, self._size, self._words[1])
        grid = (min(count, tiles.programs),)
        two_shot_kernel[grid](*given, tiles.programs, tiles.two_shot, num_warps=tiles.two_shot_warps, **self._options)


def offer(group: Any, device: torch.device, most: Most | None = None, tiles: Tiles = TILES) -> PeerAllReduce | Verdict:
    """What sums over the ranks of a process group, all of which call it; or why nothing does."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    most = most or next((most for ranks, most in MOST.items() if ranks >= size), None)
    if most is None:
        return no("peer_memory", wanted=f"at most {max(MOST)} ranks", found=size)
    try:
        memory = PeerMemory()
        places = _on_all(memory.place, group)
        _on_all(partial(memory.check, places), group)
        handles = _on_all(partial(memory.allocate, Layout(size, most, tiles).num_bytes), group)
        addresses = _on_all(partial(memory.map, handles, rank), group)[rank]
    except RuntimeError as error:
        return no("peer_memory", found=error)
    pdl = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
    return PeerAllReduce(rank, addresses, most, device, tiles, pdl=pdl)


def _up(words: int, unit: int) -> int:
    """A multiple of ``unit``."""
    return -(-words // unit) * unit


def _on_all(run: Callable[[], T], group: Any) -> list[T]:
    """What all ranks return. Raises RuntimeError, on all of them, with the errors of those that fail."""
    result, error = None, ""
    try:
        result = run()
    except (OSError, RuntimeError) as caught:
        error = str(caught)
    everyone: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, (result, error), group=group)
    if errors := sorted({error for _, error in everyone if error}):
        raise RuntimeError("; ".join(errors))
    return [result for result, _ in everyone]
