"""What a call costs, without a clock: the operators that it runs and the memory that it allocates."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from llmk.api import TokenBand
from llmk_testing.growth import bytes_kept
from llmk_testing.watch import num_tensors

MOST_CALLS = 0.5
"""Operators for each further row: a loop over tiles of rows has fewer, a loop over rows more."""
COPIES = 32
"""Bytes for each element of what a row needs, in sum: eight copies in float32."""
_FEW, _SPAN = 64, 16
"""Few rows, and the least difference to many."""
_KEPT_CALLS = (8, 300)
_TEXT_CALLS = ((100, 300), (4500, 10_000))
"""Numbers of calls: at first, and where something grew."""
_EACH = 24
"""Bytes for each call that don't count: what the interpreter and libraries fill."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Attributes:

    calls: operators of torch that compute or copy; views are not counted, and a kernel written natively is one. total:
    bytes of all memory that they allocate. peak: most of these bytes that are in use at once.
    """

    calls: int
    total: int
    peak: int


def cost_of(run: Callable[[], object]) -> Cost:
    """What ``run`` costs. Memory that code allocates by other means than torch's operators is not counted."""
    with _Meter() as meter:
        result = run()
        found = Cost(meter.calls, meter.total, meter.peak)
    del result
    return found


class _Meter(TorchDispatchMode):
    """Counts operators and the memory of their results. Operators that are made of others are counted as these."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls = self.total = self.peak = 0
        self._now = 0
        self._living: dict[weakref.ref[Any], int] = {}

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        with self:
            result = func.decompose(*args, **given)
        if result is not NotImplemented:
            return result
        before = [id(memory) for memory in _memory_of((args, given))]
        result = func(*args, **given)
        self.calls += not func.is_view
        for memory in _memory_of(result):
            if id(memory) not in before:
                self._add(memory)
        return result

    def _add(self, memory: Any) -> None:
        reference = weakref.ref(memory, self._gone)
        if reference not in self._living:
            size = memory.nbytes()
            self._living[reference] = size
            self.total += size
            self._now += size
            self.peak = max(self.peak, self._now)

    def _gone(self, reference: weakref.ref[Any]) -> None:
        self._now -= self._living.pop(reference, 0)


def _memory_of(values: object) -> Iterator[torch.UntypedStorage]:
    """The memory of all tensors in ``values``, but for those whose memory is a library's own."""
    for each in tree_leaves(values):
        if isinstance(each, Tensor) and each.layout is torch.strided:
            yield each.untyped_storage()


def rows_within(bands: Sequence[TokenBand], few: int = _FEW) -> tuple[int, int] | None:
    """Few and many rows of the band that has most, ``few`` and three times as many where it has these. Both are so many
    that a kernel takes its way for prompts. ``None``: no band has enough to show how costs grow."""
    band = max(bands, key=lambda each: each.stop - each.start)
    least = max(band.start, min(few, (band.stop - 1) // 3))
    most = min(3 * least, band.stop - 1)
    return (least, most) if most - least >= _SPAN else None


def check_calls(run: Callable[[int], object], rows: tuple[int, int], what: str, most: float = MOST_CALLS) -> str:
    """``run(rows)`` must run fewer than ``most`` operators for each further row. ``what``: rows, in the plural."""
    few, many = (cost_of(partial(run, count)).calls for count in rows)
    more = (many - few) / (rows[1] - rows[0])
    assert more < most, (
        f"{rows[0]} {what} take {few} operators and {rows[1]} take {many}, {more:.3g} for each further one: they are to"
        " be computed together"
    )
    return f"{few} operators for {rows[0]} {what}, {many} for {rows[1]}"


def check_bytes(run: Callable[[int], object], rows: tuple[int, int], what: str, each: float) -> str:
    """``run(rows)`` must allocate no more than ``each`` bytes for each further row, in sum."""
    few, many = (cost_of(partial(run, count)).total for count in rows)
    more = (many - few) / (rows[1] - rows[0])
    assert more <= each, (
        f"{rows[0]} {what} allocate {few:,} bytes and {rows[1]} allocate {many:,}, {more:,.0f} for each further one:"
        f" {each:,.0f} are enough for intermediate results"
    )
    return f"{more:,.0f} bytes for each of {what}"


def check_kept(act: Callable[[int], object], what: str) -> str:
    """Calls ``act`` with 0, 1, …, each of another shape: the number of tensors must not grow with it. A cache with a
    bound may fill, so where it grows at first, many more calls follow."""
    start = 0
    for calls in _KEPT_CALLS:
        found = [_tensors_after(act, range(start + calls * part, start + calls * (part + 1))) for part in range(2)]
        start += 2 * calls
        more = found[1] - found[0]
        if more < calls / 2:
            return f"{max(0, more)} tensors more after {calls} {what}"
    raise AssertionError(f"{more} tensors more are kept after {calls} further {what}, each of another shape")


def _tensors_after(act: Callable[[int], object], numbers: range) -> int:
    for number in numbers:
        act(number)
    return num_tensors()


def check_forgotten(act: Callable[[int], object], what: str) -> str:
    """Calls ``act`` with 0, 1, …, each with other texts: what Python holds must not grow with it. A cache with a bound
    may fill, so where it grows at first, many more calls follow."""
    for counts in _TEXT_CALLS:
        few, many = bytes_kept(act, counts)
        if many - few <= _EACH * (counts[1] - counts[0]):
            return f"{few:,} bytes after {counts[0]} {what}, {many:,} after {counts[1]}"
    raise AssertionError(f"it keeps {few:,} bytes after {counts[0]} {what}, and {many:,} after {counts[1]}")
