"""Tables that have a row for each position of a request."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class PositionTable:
    """A table on ``device`` that has a row for each of ``longest`` positions; ``make`` returns those of a range.

    In host memory, rows are made as far as :meth:`reach` says, ``at_once`` or more at a time: few requests are as long
    as they may be, and a page that was never written takes no memory. Otherwise, or where ``at_once`` is 0, all rows
    are made now.

    Attributes:
        tensor: ``[longest, *]``. It stays the same as it is filled.
        filled: how many rows were made. The others have any values.
    """

    def __init__(self, make: Callable[[range], Tensor], longest: int, device: torch.device, at_once: int = 0) -> None:
        self._make = make
        self._at_once = min(longest, at_once if device.type == "cpu" and at_once else longest)
        first = make(range(self._at_once))
        self.filled = len(first)
        self.tensor = first.to(device)
        if self.filled < longest:
            self.tensor = first.new_empty(longest, *first.shape[1:])
            self.tensor[: self.filled] = first

    @property
    def is_full(self) -> bool:
        """Whether all rows were made."""
        return self.filled == len(self.tensor)

    def reach(self, length: int) -> None:
        """Makes the rows that a request of ``length`` tokens reads."""
        if length <= self.filled:
            return
        wanted = range(self.filled, min(len(self.tensor), -(-length // self._at_once) * self._at_once))
        self.tensor[wanted.start : wanted.stop] = self._make(wanted)
        self.filled = wanted.stop
