"""Recurrent layers in steps of any layout: arguments, and the reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from llmk.api import CacheStep, DraftTails
from llmk.reference.recurrent.causal_conv import causal_conv
from llmk.reference.recurrent.delta_rule import gated_delta_rule
from llmk.reference.recurrent.gated_norm import gated_rms_norm
from llmk.reference.recurrent.mixers import make_gated_delta_net, make_lightning_attention, make_state_space_mixer
from llmk.reference.recurrent.state_space_scan import state_space_scan

_PARTS = {"causal_conv": causal_conv, "gated_rms_norm": gated_rms_norm}
REFERENCES: dict[str, Callable[..., Tensor]] = {
    "scan": make_state_space_mixer({**_PARTS, "state_space_scan": state_space_scan}),
    "lightning": make_lightning_attention({"state_space_scan": state_space_scan}),
    **dict.fromkeys(("delta", "kimi"), make_gated_delta_net({**_PARTS, "gated_delta_rule": gated_delta_rule})),
}
EPS = 1e-5


class Layer:
    """A layer with random weights: of sizes ``(heads, head_dim, groups, state_size)``, or ``(heads, key_heads, key_dim,
    value_dim)``; of a ``"lightning"`` layer ``(heads, head_dim)``. In a ``"kimi"`` layer, each element of a key decays
    by itself, down to ``bound`` if there is one."""

    def __init__(
        self,
        kind: str,
        sizes: Sequence[int],
        dtype: torch.dtype,
        *,
        kernel: int = 4,
        bias: bool = True,
        gating: str = "",
        bound: float | None = None,
        kept: torch.dtype = torch.float32,
        seed: int = 0,
    ) -> None:
        self.kind, self.sizes, self.dtype, self.kernel, self.kept = kind, tuple(sizes), dtype, kernel, kept
        self.random = torch.Generator().manual_seed(seed)
        heads = sizes[0]
        if kind == "scan":
            _, head_dim, groups, size = sizes
            self.channels, self.state = heads * head_dim + 2 * groups * size, (heads, head_dim, size)
            self.widths: tuple[int, ...] = (self.channels, heads)
        elif kind == "lightning":
            self.channels, self.state, self.widths = 0, (heads, sizes[1], sizes[1]), (heads * sizes[1],) * 3
        else:
            _, key_heads, key_dim, value_dim = sizes
            self.channels, self.state = 2 * key_heads * key_dim + heads * value_dim, (heads, value_dim, key_dim)
            self.widths = (self.channels, heads * (key_dim if kind == "kimi" else 1), heads)
        self.conv = self.floats(self.channels, kernel), self.floats(self.channels) if bias else None
        self.decay = -0.1 - torch.rand(heads, generator=self.random)
        self.d, self.dt_bias = self.reals(heads), self.reals(*([heads, sizes[2]] if kind == "kimi" else [heads]))
        self.options: dict[str, Any] = {"gating": gating} if gating else {}
        if kind == "kimi":
            self.options = {"gate_activation": "sigmoid", "decay_bound": bound}
        norm = self.floats(heads * sizes[1] if kind == "scan" else sizes[-1])
        self.norm = None if gating == "gate_only" else norm

    def reals(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.random)

    def floats(self, *shape: int) -> Tensor:
        return self.reals(*shape).to(self.dtype)

    def arguments(self, step: CacheStep, caches: tuple[Tensor, ...]) -> tuple[Any, ...]:
        """All arguments of the op, with random inputs."""
        heads, tokens = self.sizes[0], step.num_tokens
        if self.kind == "scan":
            projected = self.floats(tokens, heads * self.sizes[1] + self.channels + heads)
            scanned = self.decay, self.d, self.dt_bias, (0.01, None)
            return projected, *self.conv, *scanned, self.norm, EPS, caches, step
        if self.kind == "lightning":
            q, k, v = self.floats(tokens, heads, 3 * self.sizes[1]).chunk(3, 2)
            return q, k, v, self.decay, caches, step
        _, key_heads, key_dim, value_dim = self.sizes
        shared_by = heads // key_heads
        parts = [key_dim] * 2 + [shared_by * value_dim] * 2
        q, k, v, gate = self.floats(tokens, key_heads, sum(parts)).split_with_sizes(parts, 2)
        v, gate = (x.unflatten(2, (shared_by, value_dim)) for x in (v, gate))
        a, b = self.floats(tokens, key_heads, 2, shared_by).unbind(2)
        if self.kind == "kimi":
            a = self.floats(tokens, key_heads, shared_by, key_dim)
        return q, k, v, gate, a, b, self.conv[0], self.decay, self.dt_bias, self.norm, EPS, caches, step

    def rows(self, inputs: Sequence[Any], first: int, stop: int) -> list[Any]:
        """Arguments with some of the tokens alone."""
        count = {"scan": 1, "lightning": 3}.get(self.kind, 6)
        return [*(x[first:stop] for x in inputs[:count]), *inputs[count:]]

    def caches(self, num_blocks: int, written: Sequence[int], tails: DraftTails | None, most: int) -> tuple[Any, ...]:
        """Caches, strided in one pool, and tails of drafts; NaN wherever nothing was written."""
        kept: list[tuple[tuple[int, ...], torch.dtype]] = [(self.state, self.kept)]
        if self.channels:
            kept = [((self.kernel - 1, self.channels), self.dtype), *kept]
        found = []
        for shape, dtype in kept:
            size = torch.Size(shape).numel()
            pool = torch.full((num_blocks, size + 16), torch.nan, dtype=dtype)[:, :size].unflatten(1, shape)
            pool[list(written)] = self.reals(len(written), *shape).to(dtype)
            found.append(pool)
        if tails is not None:
            found += [self.floats(len(tails.slots) + 1, most, width) for width in self.widths]
        return tuple(found)


def make_step(
    work: Sequence[tuple[int, int]], block_size: int, *, padding: int = 0, drafts: int = 0, late: Sequence[int] = ()
) -> tuple[CacheStep, list[int], int]:
    """A step of requests with tokens before it and in it; the blocks of the states that it reads, and how many blocks
    there are. Table entries of blocks that are not needed name one that no one may read or write."""
    counts = [count + drafts for _, count in work]
    ends = [before + count for (before, _), count in zip(work, counts, strict=True)]
    late = late or [0] * len(work)
    settled = [before - missing for (before, _), missing in zip(work, late, strict=True)]
    widest = max(-(-end // block_size) for end in ends)
    order = torch.randperm(widest * len(work) + 1, generator=torch.Generator().manual_seed(1))
    table, poison = order[:-1].view(len(work), widest).clone(), int(order[-1])
    written = [int(table[i, (before - 1) // block_size]) for i, before in enumerate(settled) if before]
    for i, (before, end) in enumerate(zip(settled, ends, strict=True)):
        table[i, : max(before - 1, 0) // block_size] = poison
        table[i, -(-end // block_size) :] = poison
    starts = [0, *accumulate(counts)]
    columns = list(range(len(work)))[::-1], list(late), [drafts] * len(work)
    step = CacheStep(
        query_start=torch.tensor([*starts, *[starts[-1]] * padding], dtype=torch.int32),
        seq_lens=torch.tensor([*ends, *[0] * padding], dtype=torch.int32),
        block_table=torch.cat((table, torch.full((padding, widest), poison))).to(torch.int32),
        slot_mapping=torch.full((starts[-1] + padding,), -1),
        num_requests=len(work) + padding,
        num_tokens=starts[-1] + padding,
        max_query_len=max(counts),
        max_seq_len=max(ends),
        block_size=block_size,
        tails=DraftTails(*map(torch.tensor, columns)) if drafts else None,
    )
    return step, written, order.numel()


def error(actual: Tensor, expected: Tensor) -> float:
    """Relative, in the 2-norm; what was not written must be the same."""
    assert torch.equal(actual.isnan(), expected.isnan())
    found, wanted = actual.double().nan_to_num(), expected.double().nan_to_num()
    return float((found - wanted).norm() / wanted.norm().clamp(min=1e-30))
