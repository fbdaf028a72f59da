"""Steps over caches of recurrent state, laid out as the engine does, but for what a kernel may not rely on."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from llmk.api import CacheStep

Step = Sequence[tuple[str, int]]
"""Requests, and how many of each one's tokens."""

CUTS: list[list[Step]] = [
    [[("a", 150)]],
    [[("a", 1)], [("a", 148)], [("a", 1)]],
    [[("a", 33), ("b", 1)], [("b", 7), ("a", 1)], [("b", 1), ("a", 115), ("c", 20)], [("c", 1), ("a", 1), ("b", 1)]],
    [[("a", 1), ("b", 1), ("c", 1)]] * 9 + [[("b", 65)]],
]


class Cached:
    """Caches for state tensors, strided in one pool that contains NaN wherever nothing was written; and the requests.

    The table entry of a block that is not needed names no block at all.
    """

    def __init__(self, block_size: int, *states: tuple[int, ...], requests: int = 3) -> None:
        self.block_size = block_size
        self.num_blocks = requests * -(-200 // block_size) + 2
        widths = [torch.Size(state).numel() for state in states]
        starts = [2 + sum(widths[:i]) + 3 * i for i in range(len(widths))]
        self.pool = torch.full((self.num_blocks, starts[-1] + widths[-1] + 1), float("nan"))
        self.caches = tuple(
            self.pool[:, start : start + width].view(self.num_blocks, *state)
            for start, width, state in zip(starts, widths, states, strict=True)
        )
        self.free = random.Random(0).sample(range(self.num_blocks), self.num_blocks)
        self.tables: dict[str, list[int]] = {}
        self.lengths: dict[str, int] = {}

    def step(self, work: Step, padding: int = 0, late: Mapping[str, int] | None = None) -> CacheStep:
        """The next tokens of some requests, then ``padding`` entries of one token each that are not requests. ``late``:
        how many accepted drafts their states lack."""
        rows, size = [], self.block_size
        for name, count in work:
            before = self.lengths.get(name, 0)
            self.lengths[name] = before + count
            table = self.tables.setdefault(name, [])
            while len(table) * size < before + count:
                table.append(self.free.pop())
            needed = max(before - (late or {}).get(name, 0) - 1, 0) // size
            rows.append([1 << 30] * needed + table[needed:])
        counts = [count for _, count in work]
        lengths = [self.lengths[name] for name, _ in work]
        widest = max(len(row) for row in rows)
        return CacheStep(
            query_start=torch.tensor([0, *accumulate(counts), *[sum(counts)] * padding], dtype=torch.int32),
            seq_lens=torch.tensor([*lengths, *[1] * padding], dtype=torch.int32),
            block_table=torch.tensor(
                [row + [1 << 30] * (widest - len(row)) for row in rows] + [[1 << 30] * widest] * padding,
                dtype=torch.int32,
            ),
            slot_mapping=torch.full((sum(counts) + padding,), -1),
            num_requests=len(work),
            num_tokens=sum(counts),
            max_query_len=max(counts),
            max_seq_len=max(lengths),
            block_size=size,
        )

    def written(self) -> set[int]:
        """All blocks that requests own."""
        return {block for table in self.tables.values() for block in table}


def run_steps(
    run: Callable[..., Tensor], steps: Sequence[Step], cached: Cached, inputs: dict[str, list[Tensor]]
) -> dict[str, Tensor]:
    """Every request's outputs of ``run(*inputs, *caches, step)``."""
    outputs: dict[str, list[Tensor]] = {}
    for work in steps:
        before = {name: cached.lengths.get(name, 0) for name, _ in work}
        own = [[x[before[name] : before[name] + n] for x in inputs[name]] for name, n in work]
        step = cached.step(work)
        rows = [torch.cat(parts) for parts in zip(*own, strict=True)]
        out = run(*rows, *cached.caches, step)
        for (name, _), part in zip(work, out.split([n for _, n in work]), strict=True):
            outputs.setdefault(name, []).append(part)
    return {name: torch.cat(parts) for name, parts in outputs.items()}


def totals(steps: Sequence[Step]) -> dict[str, int]:
    """All tokens of each request."""
    found: dict[str, int] = {}
    for work in steps:
        for name, count in work:
            found[name] = found.get(name, 0) + count
    return found


def error(found: Tensor, expected: Tensor) -> float:
    """Relative, root mean square."""
    return float((found.double() - expected).norm() / expected.norm()) if expected.numel() else 0.0
