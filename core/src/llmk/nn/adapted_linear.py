"""Linear layers with low-rank adapters (LoRA, arXiv:2106.09685)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from llmk.nn.linear import Linear

if TYPE_CHECKING:
    from llmk.nn.build import Build
    from llmk.tree import AdapterRoom


class AdaptedLinear(Linear):
    """A linear layer to whose result the adapter of each token adds its own, as far as tokens have one
    (``Build.adapter_index``).

    Tensor-parallel ranks shard an adapter as they shard the layer: its second matrix by output features, or its first
    by input features, so that the all-reduce of the layer includes the adapters.

    Args:
        room: how many adapters there are, and of which rank at most.
        adapters_site: the site of the op that adds their results.

    Attributes:
        projections: names of the projections, and their output features.
        whole_names: further names of the whole layer.
    """

    def __init__(
        self,
        build: Build,
        prefix: str,
        in_features: int,
        sizes: Sequence[int],
        *,
        room: AdapterRoom,
        adapters_site: str,
        **options: Any,
    ) -> None:
        self._room = room
        self._add: Callable[..., Tensor] = build.kernel("op", adapters_site)
        super().__init__(build, prefix, in_features, sizes, **options)
        self.projections = dict(zip(self._prefixes, self._rows, strict=True))
        self.whole_names = self._whole
        kept = self._kept_rows or [[slice(0, count)] for count in self._rows]
        self._runs = [list(runs) for runs in kept]
        self._sizes = tuple(sum(run.stop - run.start for run in runs) for runs in self._runs)
        self._starts = (0, *accumulate(self._sizes))

    def _completed(self, run: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def with_adapters(x: Tensor, weight: Any, bias: Tensor | None) -> Tensor:
            y, index = run(x, weight, bias), self._build.adapter_index
            return y if index is None else self._add(y, x, index, self._a, self._b, self._scale, self._sizes)

        return with_adapters

    def allocate(self) -> None:
        """Makes room on the device, filled with zeros."""
        where: dict[str, Any] = {"dtype": self._build.dtype, "device": self._build.device}
        columns = self._kept_columns or slice(0, self.in_features)
        room, parts = self._room, len(self._rows)
        self._a = torch.zeros(room.count, parts, room.rank, columns.stop - columns.start, **where)
        self._b = torch.zeros(room.count, self._starts[-1], room.rank, **where)
        self._scale = torch.zeros(room.count, parts, dtype=torch.float32, device=self._build.device)

    def put(self, number: int, part: int, a: Tensor, b: Tensor, scale: float) -> None:
        """Stores the adapter ``number`` of the projection ``part``: ``a`` is ``[rank, in_features]``, ``b`` ``[rows,
        rank]``, of which this rank keeps its shares."""
        rank, columns = a.shape[0], self._kept_columns or slice(0, self.in_features)
        self._a[number, part, :rank] = a[:, columns]
        kept = torch.cat([b[run] for run in self._runs[part]])
        self._b[number, self._starts[part] : self._starts[part + 1], :rank] = kept
        self._scale[number, part] = scale
