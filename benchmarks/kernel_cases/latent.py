"""Latent attention (MLA): decode and prefill over the cache, and the whole op with its projections."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kernel_cases.attention import BLOCK, BOUND, ROTATED_BYTES, Steps, keep_best, random_steps
from kernel_cases.harness import Bench, Case, Named
from llmk.api import AttentionQuery, PlatformFacts
from llmk.reference.attention.contiguous import attend_plain
from llmk.reference.composites import make_latent_attention, make_norm_rope_write_latent
from llmk.reference.linear import per_head_matmul
from llmk.reference.norms import rms_norm
from llmk.reference.rope.rotation import rope_interleaved
from llmk_triton.common.targets import DecodeConfig, Tile
from llmk_triton.latent.backend import LatentAttention, latent_attention

DECODE = ((1, 128), (1, 384), (1, 1024), (1, 4096), (8, 384), (64, 128), (64, 384), (64, 1024), (64, 4096), (256, 1100))
PREFILL = ((1, 512, 512), (1, 2048, 2048), (16, 2048, 2048), (1, 512, 8192), (4, 2048, 8192), (16, 5, 2048))
"""Requests, queries, tokens."""
SWEPT_TILES = (
    (16, 4, 3),
    (16, 4, 5),
    (32, 4, 2),
    (32, 4, 3),
    (32, 4, 4),
    (32, 8, 3),
    (64, 4, 2),
    (64, 8, 2),
    (64, 8, 3),
)
"""Keys, warps, stages."""
SWEPT_PROGRAMS, SWEPT_PARTS = (1, 2, 3), (32, 64, 128, 256)
"""Programs per multiprocessor, and keys that a program takes at least."""
SWEPT_PREFILL = (
    (32, 32, 4, 3),
    (32, 32, 8, 3),
    (64, 32, 8, 2),
    (64, 32, 8, 3),
    (64, 64, 8, 2),
    (64, 16, 8, 4),
    (64, 32, 4, 3),
)
"""Rows, keys, warps, stages."""


@dataclass(frozen=True, slots=True)
class LatentShape:
    """Sizes of a model's latent attention: heads, elements of a latent vector, of the shared key, of a head's own key
    and value."""

    name: str
    heads: int
    latent: int = 512
    rope: int = 64
    key: int = 128
    value: int = 128
    dtype: torch.dtype = torch.bfloat16

    @property
    def query(self) -> AttentionQuery:
        """The attention site."""
        dtype = str(self.dtype).removeprefix("torch.")
        return AttentionQuery(
            platform=PlatformFacts(name="this", arch="any", device_type="any", features=frozenset({"triton"})),
            site="attention",
            dtype=dtype,
            cache_dtype=dtype,
            num_heads=self.heads,
            num_kv_heads=1,
            head_dim=self.latent + self.rope,
            latent_dim=self.latent,
            block_size=BLOCK,
            scale=(self.key + self.rope) ** -0.5,
        )


SHAPES = (LatentShape("V2-Lite", 16), LatentShape("V3", 128), LatentShape("V3 of 8 ranks", 16))
TINY = (LatentShape("tiny", 4, 48, 16, 32, 24, torch.float32),)


def cases(device: torch.device, *, tiny: bool) -> Iterator[Named]:
    """Decode, within bounds that are far above true lengths, prefill, and both."""
    for shape in TINY if tiny else SHAPES[:2]:
        for requests, length in ((2, 80),) if tiny else DECODE:
            name = f"latent decode {shape.name} {requests}x{length}"
            yield name, partial(_attend, shape, requests, 1, length, device, bound=BOUND)
            yield f"{name} whole", partial(_whole, shape, requests, 1, length, device, bound=BOUND)
        for requests, queries, length in ((2, 9, 40),) if tiny else PREFILL:
            name = f"latent prefill {shape.name} {requests}x{queries} of {length}"
            yield name, partial(_attend, shape, requests, queries, length, device)
            yield f"{name} whole", partial(_whole, shape, requests, queries, length, device)
    if not tiny:
        mixed = [512] + [1] * 32
        yield "latent mixed V2-Lite 512 + 32x1", partial(_attend, SHAPES[0], 33, mixed, 1024, device)
        yield "latent mixed V2-Lite 512 + 32x1 whole", partial(_whole, SHAPES[0], 33, mixed, 1024, device)
        yield "latent 100 times alike", partial(_repeated, SHAPES[0], device)


def expected(backend: LatentAttention, steps: Steps) -> Tensor:
    """Float32 attention of the first step, request by request."""
    query, step, out = backend.query, steps.index[0], []
    starts, lengths = step.query_start.tolist(), step.seq_lens.tolist()
    for i, length in enumerate(lengths):
        q = steps.q[starts[i] : starts[i + 1]]
        blocks = step.block_table[i, : -(-length // BLOCK)].long()
        rows = steps.cache[blocks].flatten(0, 1)[None, :length, None].float()
        position = torch.arange(length - q.shape[0], length, device=q.device)[:, None]
        allowed = torch.arange(length, device=q.device) <= position
        out.append(attend_plain(q[None].float(), rows, rows, allowed[None], query.scale)[0])
    return torch.cat(out)[..., : query.latent_dim]


class _Made:
    """A backend with random steps, and what they must move and compute at least."""

    def __init__(
        self,
        shape: LatentShape,
        requests: int,
        queries: int | Sequence[int],
        length: int,
        device: torch.device,
        bound: int,
        changes: dict[str, Any],
    ) -> None:
        self.backend = LatentAttention(shape.query, device)
        for name, value in changes.items():
            setattr(self.backend, name, value)
        self.bytes = shape.dtype.itemsize * (shape.latent + shape.rope) * requests * length
        self.sets = max(1, min(32, ROTATED_BYTES // self.bytes))
        self.steps = random_steps(self.backend, requests, queries, length, self.sets, device, bound=bound)
        counts = [queries] * requests if isinstance(queries, int) else queries
        if not bound:
            # As in steps that are not captured, where keys and values of prompts may be projected.
            for step in self.steps.index:
                step.host_query_lens, step.host_seq_lens = counts, step.seq_lens.tolist()
        self.meta = [self.backend.prepare(step) for step in self.steps.index]
        self.pairs = shape.heads * sum(c * (length - c) + c * (c + 1) // 2 for c in counts)
        self.tokens = sum(counts)


def _attend(
    shape: LatentShape,
    requests: int,
    queries: int | Sequence[int],
    length: int,
    device: torch.device,
    *,
    bound: int = 0,
    **changes: Any,
) -> Case:
    """Attention alone, with absorbed queries."""
    made = _Made(shape, requests, queries, length, device, bound, changes)
    steps, run = made.steps, made.backend.run
    return Case(
        lambda i: run(steps.q, steps.cache, made.meta[i]),
        lambda: expected(made.backend, steps),
        made.bytes + 2 * steps.q.nbytes,
        2 * (2 * shape.latent + shape.rope) * made.pairs,
        made.sets,
    )


def _whole(
    shape: LatentShape,
    requests: int,
    queries: int | Sequence[int],
    length: int,
    device: torch.device,
    *,
    bound: int = 0,
    **changes: Any,
) -> Case:
    """The op, against its parts. Its floor is that of keys and values as the model defines them, where these are the
    less to compute: projected from latent vectors once, not absorbed."""
    made = _Made(shape, requests, queries, length, device, bound, changes)
    steps, backend = made.steps, made.backend

    def random(*size: int, scale: float = 1.0) -> Tensor:
        return (scale * torch.randn(*size, device=device)).to(shape.dtype)

    angles = 6.28 * torch.rand(BOUND, shape.rope // 2, device=device)
    given = (
        *(random(made.tokens, shape.heads, shape.key + shape.rope), random(made.tokens, shape.latent + shape.rope)),
        *(random(shape.latent), 1e-6, random(shape.heads, shape.key, shape.latent, scale=shape.key**-0.5)),
        *(random(shape.heads, shape.latent, shape.value, scale=shape.latent**-0.5),),
        *(torch.randint(0, BOUND, (made.tokens,), device=device), torch.cat((angles.cos(), angles.sin()), dim=1)),
    )
    plain: dict[str, Any] = {
        "rms_norm": rms_norm,
        "rope_interleaved": rope_interleaved,
        "attention.write": backend.write,
    }
    parts = {"norm_rope_write_latent": make_norm_rope_write_latent(plain), "per_head_matmul": per_head_matmul}
    reference = make_latent_attention({**parts, "attention.run": lambda q, cache, meta: _right(made, q)})
    weights = shape.heads * shape.latent * (shape.key + shape.value)
    rows = requests * length
    absorbed = 2 * (2 * shape.latent + shape.rope) * made.pairs + 2 * made.tokens * weights
    projected = 2 * (shape.key + shape.rope + shape.value) * made.pairs + 2 * rows * weights
    return Case(
        lambda i: latent_attention(*given, steps.cache, made.meta[i]),
        lambda: reference(*given, steps.cache, made.meta[0]),
        made.bytes + shape.dtype.itemsize * weights + given[0].nbytes + given[1].nbytes,
        min(absorbed, projected),
        made.sets,
        tolerance=2e-2,
    )


def _right(made: _Made, q: Tensor) -> Tensor:
    return expected(made.backend, Steps(made.steps.cache, q, made.steps.index)).to(q.dtype)


def _repeated(shape: LatentShape, device: torch.device) -> Case:
    """Splits merge in one order whoever is last, so a result that changes tells of a race."""
    made = _Made(shape, 3, [1, 7, 1], 8192, device, 0, {})
    steps, run = made.steps, made.backend.run
    first = run(steps.q, steps.cache, made.meta[0])

    def repeat(i: int) -> Tensor:
        return torch.stack([run(steps.q, steps.cache, made.meta[0]) for _ in range(100)]) - first

    return Case(repeat, lambda: torch.zeros(100, *first.shape, device=device), 0, tolerance=0)


def sweep(bench: Bench, only: re.Pattern[str]) -> None:
    """Times decode over tiles, programs per multiprocessor and parts, then prefill over tiles; prints the best few of
    each case whose name has ``only``."""
    for shape in SHAPES[:2]:
        rows = LatentAttention(shape.query, bench.device).few.tile.rows
        for requests, length in DECODE:
            name = f"latent decode {shape.name} {requests}x{length}"
            if not only.search(name):
                continue
            configs: list[dict[str, Any]] = [{}]
            for keys, warps, stages in SWEPT_TILES:
                for programs in SWEPT_PROGRAMS:
                    for least in SWEPT_PARTS if requests <= 8 else SWEPT_PARTS[-1:]:
                        way = DecodeConfig(Tile(rows, keys, warps, stages), programs, least)
                        configs.append({"few": way, "many": way})
            made = [_attend(shape, requests, 1, length, bench.device, bound=BOUND, **config) for config in configs]
            named = [(str(config), case.run) for config, case in zip(configs, made, strict=True)]
            keep_best(bench, name, named, made[0].sets)
        for requests, queries, length in PREFILL[1:3]:
            name = f"latent prefill {shape.name} {requests}x{queries} of {length}"
            if only.search(name):
                tiles = [{}, *({"prefill_tile": Tile(*tile)} for tile in SWEPT_PREFILL)]
                made = [_attend(shape, requests, queries, length, bench.device, **tile) for tile in tiles]
                keep_best(bench, name, [(str(tile), case.run) for tile, case in zip(tiles, made, strict=True)])
