"""Paged attention against the textbook formula in float64, computed token by token and head by head."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from llmk.api import AttentionQuery, CacheStep, PlatformFacts, match
from llmk.reference.attention.contiguous import attend_fused, attend_plain
from llmk.reference.attention.paged import AttentionMeta, ReferenceAttention
from llmk.reference.attention.row_invariant import InvariantAttention
from llmk.reference.specs import llmk_attention_backends, supports_attention

FACTS = PlatformFacts(name="test", arch="any", device_type="cpu")
DEVICE = torch.device("cpu")
BACKENDS = [ReferenceAttention, InvariantAttention]
BOUND = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.2e-2}


def query(**changes: Any) -> AttentionQuery:
    facts: dict[str, Any] = {
        "num_heads": 6,
        "num_kv_heads": 2,
        "head_dim": 24,
        "block_size": 4,
        "cache_dtype": "float32",
        "dtype": "float32",
        "scale": 0.21,
    }
    return AttentionQuery(platform=FACTS, site="attention", **{**facts, **changes})


def error(out: Tensor, expected: Tensor) -> float:
    return float((out.double() - expected).norm() / expected.norm())


@dataclass
class Request:
    """``length`` tokens, the last ``queries`` of which are this step's."""

    length: int
    queries: int


class Step:
    """Random requests with blocks in random order, in a cache that contains NaN wherever nothing was written.

    ``gap`` elements that are not the cache's follow each of its blocks; latent vectors are stored as keys alone.
    """

    def __init__(self, spec: AttentionQuery, requests: list[Request], seed: int = 0, gap: int = 0) -> None:
        self.spec, self.requests, self.gap = spec, requests, gap
        dtype = getattr(torch, spec.dtype)
        random = torch.Generator().manual_seed(seed)
        total = sum(r.queries for r in requests)
        self.q = torch.randn(total, spec.num_heads, spec.head_dim, generator=random).to(dtype)
        planes, width = 2 if spec.latent_dim is None else 1, max(spec.head_dim, spec.value_dim or 0)
        self.kv = [
            torch.randn(planes, r.length, spec.num_kv_heads, width, generator=random).to(dtype) for r in requests
        ]
        self.sinks = torch.randn(spec.num_heads, generator=random) if spec.sinks else None
        self.slopes = torch.rand(spec.num_heads, generator=random) if spec.alibi else None
        blocks = [-(-r.length // spec.block_size) for r in requests]
        self.num_blocks = sum(blocks) + 5
        order = torch.randperm(self.num_blocks, generator=random).to(torch.int32)
        self.table = torch.full((len(requests), max(blocks)), 2**30, dtype=torch.int32)
        for row, (start, count) in enumerate(zip(itertools.accumulate(blocks, initial=0), blocks, strict=False)):
            self.table[row, :count] = order[start : start + count]

    def slots(self, row: int, start: int, stop: int) -> Tensor:
        positions = torch.arange(start, stop)
        size = self.spec.block_size
        return self.table[row, positions // size].long() * size + positions % size

    def index(self) -> CacheStep:
        lengths = torch.tensor([r.length for r in self.requests], dtype=torch.int32)
        counts = torch.tensor([0] + [r.queries for r in self.requests], dtype=torch.int32)
        slots = [self.slots(i, r.length - r.queries, r.length) for i, r in enumerate(self.requests)]
        return CacheStep(
            query_start=counts.cumsum(0, dtype=torch.int32),
            seq_lens=lengths,
            block_table=self.table,
            slot_mapping=torch.cat(slots),
            num_requests=len(self.requests),
            num_tokens=int(counts.sum()),
            max_query_len=int(counts.max()),
            max_seq_len=int(lengths.max()),
            block_size=self.spec.block_size,
        )

    def new_kv(self) -> list[Tensor]:
        news = [kv[:, r.length - r.queries :] for kv, r in zip(self.kv, self.requests, strict=True)]
        return self.parts(torch.cat(news, dim=1))

    def parts(self, kv: Tensor) -> list[Tensor]:
        """Keys and values, each of its width; latent vectors are one part."""
        widths = (self.spec.head_dim, self.spec.value_dim or self.spec.head_dim)
        return [plane[..., :width] for plane, width in zip(kv, widths, strict=False)]

    def run(self, kind: type[ReferenceAttention] = ReferenceAttention) -> Tensor:
        backend = kind(self.spec, DEVICE)
        cache, meta = self.written(backend)
        return backend.run(self.q, cache, meta, self.sinks, slopes=self.slopes)

    def written(
        self, backend: ReferenceAttention, scales: tuple[float, float] = (1.0, 1.0)
    ) -> tuple[Tensor, AttentionMeta]:
        """The cache once the step's keys and values are written, earlier ones placed by this test's own indexing."""
        cache = self.empty(backend)
        size = self.spec.block_size
        for row, (request, kv) in enumerate(zip(self.requests, self.kv, strict=True)):
            for position, slot in enumerate(self.slots(row, 0, request.length - request.queries).tolist()):
                parts = self.parts(kv[:, position])
                stored = torch.stack(parts) if self.spec.value_dim is None else torch.cat(parts, dim=-1)[None]
                cache[slot // size, :, slot % size] = stored.to(cache.dtype)
        meta = backend.prepare(self.index())
        key, *value = self.new_kv()
        if scales == (1.0, 1.0):
            backend.write(key, value[0] if value else None, cache, meta)
        else:
            backend.write(key * scales[0], value[0] * scales[1] if value else None, cache, meta, scales)
        return cache, meta

    def empty(self, backend: ReferenceAttention) -> Tensor:
        """The cache before anything is written, at some distance from the start of its pool."""
        layout = backend.cache_layout(self.num_blocks)
        page = torch.Size(layout.shape[1:]).numel()
        pool = torch.full((1 + self.num_blocks, page + self.gap), float("nan"), dtype=getattr(torch, layout.dtype))
        return pool[1:, :page].view(layout.shape)

    def expected(self) -> Tensor:
        spec, out, row = self.spec, [], 0
        for request, kv in zip(self.requests, self.kv, strict=True):
            for position in range(request.length - request.queries, request.length):
                first = 0 if spec.sliding_window is None else max(0, position - spec.sliding_window + 1)
                k, *rest = (part.double() for part in self.parts(kv[:, first : position + 1]))
                v = rest[0] if rest else k[..., : spec.latent_dim]
                out.append(torch.stack([self.one(self.q[row, h].double(), k, v, h) for h in range(spec.num_heads)]))
                row += 1
        return torch.stack(out)

    def one(self, q: Tensor, k: Tensor, v: Tensor, head: int) -> Tensor:
        spec = self.spec
        kv_head = head // (spec.num_heads // spec.num_kv_heads)
        logits = (k[:, kv_head] * q).sum(-1) * spec.scale
        if spec.softcap is not None:
            logits = spec.softcap * (logits / spec.softcap).tanh()
        if self.slopes is not None:
            logits = logits + self.slopes[head].double() * torch.arange(1 - len(logits), 1)
        weights = logits.exp()
        total = weights.sum()
        if self.sinks is not None:
            total = total + self.sinks[head].double().exp()
        return (weights[:, None] * v[:, kv_head]).sum(0) / total


DECODE = [Request(n, 1) for n in (1, 3, 4, 5, 8, 33)]
PREFILL = [Request(n, n) for n in (1, 4, 7, 16, 29)]
CHUNKED = [Request(9, 4), Request(8, 4), Request(31, 7), Request(6, 5)]
MIXED = [Request(17, 1), Request(21, 21), Request(4, 1), Request(19, 6), Request(16, 1), Request(40, 1)]
STEPS = {"decode": DECODE, "one": [Request(37, 1)], "prefill": PREFILL, "chunked": CHUNKED, "mixed": MIXED}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"sliding_window": 6},
    "softcap": {"softcap": 1.5},
    "sinks": {"sinks": True},
    "all": {"sliding_window": 5, "softcap": 1.5, "sinks": True},
    "slopes": {"alibi": True},
    "slopes, all": {"alibi": True, "sliding_window": 5, "softcap": 1.5, "sinks": True},
    "latent": {"latent_dim": 17, "num_kv_heads": 1},
    "narrow values": {"value_dim": 17},
    "wide values": {"value_dim": 40, "sliding_window": 5},
    "narrow values, all": {"value_dim": 8, "sliding_window": 5, "softcap": 1.5, "sinks": True},
    "latent all": {"latent_dim": 8, "num_kv_heads": 1, "sliding_window": 5, "softcap": 1.5, "sinks": True},
}
GAPS = {"together": 0, "a token apart": 2 * 24, "in odd places": 20, "in very odd places": 7}
"""Elements between blocks; a token of the key and value heads below has 48, one of latent vectors 24."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("dtype", BOUND, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_matches_the_formula(backend: type[ReferenceAttention], step: str, kind: str, dtype: torch.dtype) -> None:
    name = str(dtype).removeprefix("torch.")
    case = Step(query(dtype=name, cache_dtype=name, **KINDS[kind]), STEPS[step])
    out = case.run(backend)
    assert out.dtype == dtype
    assert out.shape == (*case.q.shape[:2], case.spec.latent_dim or case.spec.value_dim or case.spec.head_dim)
    assert error(out, case.expected()) < BOUND[dtype]


@pytest.mark.parametrize("kind", ["plain", "all", "latent", "latent all", "narrow values"])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("gap", GAPS)
def test_blocks_may_be_strided_in_a_pool(gap: str, step: str, kind: str) -> None:
    """The same bit for bit, and what lies between the blocks stays as it is."""
    together = Step(query(**KINDS[kind]), STEPS[step])
    apart = Step(query(**KINDS[kind]), STEPS[step], gap=GAPS[gap])
    backend = ReferenceAttention(apart.spec, DEVICE)
    cache, meta = apart.written(backend)
    assert cache.is_contiguous() == (gap == "together")
    assert torch.equal(backend.run(apart.q, cache, meta, apart.sinks, slopes=apart.slopes), together.run())
    written = cache.isfinite().sum()
    assert written == sum(r.length for r in apart.requests) * cache.shape[1] * cache.shape[3:].numel()
    pool = torch.as_strided(cache, (cache.untyped_storage().nbytes() // cache.element_size(),), (1,), 0)
    assert pool.isfinite().sum() == written


def test_one_backend_serves_layers_that_lie_differently_in_memory() -> None:
    backend = ReferenceAttention(query(), DEVICE)
    for gap in (7, 0, 48, 20):
        case = Step(query(), MIXED, gap=gap)
        assert error(backend.run(case.q, *case.written(backend)), case.expected()) < BOUND[torch.float32]


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "latent_dim", "block_size"),
    [
        (1, 1, 8, None, 1),
        (8, 8, 16, None, 16),
        (7, 1, 40, None, 5),
        (4, 2, 128, None, 32),
        (1, 1, 9, 1, 3),
        (16, 1, 576, 512, 16),
        (5, 1, 40, 40, 1),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_any_number_of_heads_and_size_of_block(
    heads: int, kv_heads: int, head_dim: int, latent_dim: int | None, block_size: int, dtype: torch.dtype
) -> None:
    name = str(dtype).removeprefix("torch.")
    spec = query(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        latent_dim=latent_dim,
        block_size=block_size,
        dtype=name,
        cache_dtype=name,
        scale=head_dim**-0.5,
    )
    case = Step(spec, MIXED, gap=head_dim * kv_heads)
    assert error(case.run(), case.expected()) < BOUND[dtype]


@pytest.mark.parametrize("length", [15, 16, 17, 31, 32, 33])
def test_lengths_at_the_borders_of_blocks(length: int) -> None:
    case = Step(query(block_size=16), [Request(length, 1), Request(length, length), Request(length, 3)])
    assert error(case.run(), case.expected()) < BOUND[torch.float32]


def test_decoding_requests_of_very_different_length() -> None:
    """They fall into several groups; results come back in the requests' own order."""
    case = Step(query(block_size=16), [Request(n, 1) for n in (700, 3, 690, 150, 20, 310)])
    backend = ReferenceAttention(case.spec, DEVICE)
    assert len(backend.prepare(case.index()).groups) > 1
    assert error(case.run(), case.expected()) < BOUND[torch.float32]


def test_groups_are_bounded_in_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReferenceAttention, "gather_elements", 2 * 2 * 24 * 40)
    case = Step(query(), [Request(n, 1) for n in (20, 19, 18, 17, 90)])
    backend = ReferenceAttention(case.spec, DEVICE)
    assert [group.requests for group in backend.prepare(case.index()).groups] == [1, 2, 2]
    assert error(case.run(), case.expected()) < BOUND[torch.float32]


def test_long_plain_prefill_is_chunked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmk.reference.attention.contiguous.SCORES_AT_ONCE", 6 * 29 * 4)
    case = Step(query(softcap=2.0), [Request(29, 29)])
    assert error(case.run(), case.expected()) < BOUND[torch.float32]


def test_cache_may_be_wider_than_the_engine() -> None:
    case = Step(query(dtype="bfloat16", cache_dtype="float32"), MIXED)
    assert error(case.run(), case.expected()) < BOUND[torch.bfloat16]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("gap", [0, 7])
@pytest.mark.parametrize("backend", BACKENDS)
def test_an_fp8_cache_holds_what_its_scales_multiply(
    backend: type[ReferenceAttention], gap: int, step: str, kind: str
) -> None:
    case, scales = Step(query(cache_dtype="float8_e4m3fn", **KINDS[kind]), STEPS[step], gap=gap), (0.3, 3.0)
    case.kv = [kv.to(torch.float8_e4m3fn).float() for kv in case.kv]
    attention = backend(case.spec, DEVICE)
    out = attention.run(case.q, *case.written(attention, scales), case.sinks, scales, case.slopes)
    case.kv = [kv * torch.tensor(scales[: len(kv)])[:, None, None, None] for kv in case.kv]
    assert error(out, case.expected()) < BOUND[torch.float32]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("cache_dtype", "limit"), [("int8", 127), ("int4", 7)])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_cache_of_integers_with_a_scale_per_token_and_head(
    backend: type[ReferenceAttention], cache_dtype: str, limit: int, kind: str
) -> None:
    """All tokens are written in the step, so that what is stored is the backend's."""
    case = Step(query(cache_dtype=cache_dtype, **KINDS[kind]), [Request(9, 9), Request(1, 1), Request(5, 5)])
    case.kv[1][:] = 0
    attention = backend(case.spec, DEVICE)
    cache = torch.full(attention.cache_layout(case.num_blocks).shape, 255, dtype=torch.uint8)
    meta, (key, *value) = attention.prepare(case.index()), case.new_kv()
    attention.write(key, value[0] if value else None, cache, meta)
    out = attention.run(case.q, cache, meta, case.sinks, slopes=case.slopes)
    for kv in case.kv:
        for part in case.parts(kv):
            scale = part.abs().amax(-1, keepdim=True).clamp(min=1e-30) / limit
            part.copy_((part / scale).round() * scale)
    assert error(out, case.expected()) < BOUND[torch.float32]


def test_an_fp8_cache_holds_no_more_than_fp8_does() -> None:
    case = Step(query(cache_dtype="float8_e4m3fn"), [Request(3, 3)])
    case.kv = [torch.full_like(case.kv[0], 1e6)]
    attention = ReferenceAttention(case.spec, DEVICE)
    out = attention.run(case.q, *case.written(attention, (2.0, 0.5)), scales=(2.0, 0.5))
    torch.testing.assert_close(out, torch.full_like(out, 448 * 0.5))


@pytest.mark.parametrize("backend", BACKENDS)
def test_blocks_behind_the_window_are_not_read(backend: type[ReferenceAttention]) -> None:
    case = Step(query(sliding_window=10), [Request(400, 3), Request(290, 1)])
    attention = backend(case.spec, DEVICE)
    cache, _ = case.written(attention)
    (empty,) = cache.isnan().all(dim=(1, 2, 3, 4)).nonzero()[0].tolist()
    case.table[0, : (400 - 3 - 9) // 4] = case.table[1, : (290 - 1 - 9) // 4] = empty
    out = attention.run(case.q, cache, attention.prepare(case.index()))
    assert error(out, case.expected()) < BOUND[torch.float32]


def test_writes_only_where_a_slot_is_given() -> None:
    case = Step(query(), [Request(6, 6)])
    backend = ReferenceAttention(case.spec, DEVICE)
    step = case.index()
    step.slot_mapping = torch.cat([step.slot_mapping, torch.tensor([-1, -1])])
    step.slot_mapping[2] = -1
    cache = torch.full(backend.cache_layout(case.num_blocks).shape, float("nan"))
    key, value = torch.randn(2, 8, 2, 24)
    backend.write(key, value, cache, backend.prepare(step))
    by_slot = cache.transpose(0, 1).flatten(1, 2)
    for token in (0, 1, 3, 4, 5):
        slot = int(step.slot_mapping[token])
        assert torch.equal(by_slot[:, slot], torch.stack((key[token], value[token])))
    assert int(by_slot.isfinite().all(dim=(0, 2, 3)).sum()) == 5


def test_a_step_that_writes_nothing() -> None:
    case = Step(query(), [Request(5, 1)])
    backend = ReferenceAttention(case.spec, DEVICE)
    step = case.index()
    step.slot_mapping = torch.full_like(step.slot_mapping, -1)
    cache = torch.full(backend.cache_layout(case.num_blocks).shape, 7.0)
    key, value = torch.randn(2, 1, 2, 24)
    backend.write(key, value, cache, backend.prepare(step))
    assert bool((cache == 7.0).all())


@pytest.mark.parametrize("padding", [0, 3])
def test_lengths_that_the_host_knows_are_not_read_from_the_device(padding: int) -> None:
    case = Step(query(), MIXED)
    backend = ReferenceAttention(case.spec, DEVICE)
    cache, written = case.written(backend)
    step = case.index()
    step.host_query_lens = [request.queries for request in MIXED]
    step.host_seq_lens = [request.length for request in MIXED]
    step.slot_mapping = torch.cat([step.slot_mapping, torch.full((padding,), -1)])
    step.num_tokens += padding
    step.query_start, step.seq_lens = step.query_start.to("meta"), step.seq_lens.to("meta")
    meta = backend.prepare(step)
    assert torch.equal(meta.key_rows, written.key_rows)
    key, value = torch.nn.functional.pad(torch.stack(case.new_kv()), (0, 0, 0, 0, 0, padding), value=float("nan"))
    backend.write(key, value, cache, meta)
    out = backend.run(torch.nn.functional.pad(case.q, (0, 0, 0, 0, 0, padding)), cache, meta)
    assert error(out[: len(case.q)], case.expected()) < BOUND[torch.float32]
    assert bool((out[len(case.q) :] == 0).all())


@pytest.mark.parametrize("kind", ["plain", "latent"])
def test_padding_rows_come_back_as_zeros(kind: str) -> None:
    case = Step(query(**KINDS[kind]), MIXED)
    backend = ReferenceAttention(case.spec, DEVICE)
    cache, _ = case.written(backend)
    step = case.index()
    tokens, requests = step.num_tokens, step.num_requests
    step.query_start = torch.cat([step.query_start, step.query_start[-1:].expand(3)])
    step.seq_lens = torch.cat([step.seq_lens, torch.zeros(3, dtype=torch.int32)])
    step.block_table = torch.cat([step.block_table, torch.zeros(3, step.block_table.shape[1], dtype=torch.int32)])
    step.slot_mapping = torch.cat([step.slot_mapping, torch.full((5,), -1)])
    assert (step.num_tokens, step.num_requests) == (tokens, requests)
    padded = torch.cat([case.q, torch.full((5, *case.q.shape[1:]), float("nan"))])
    out = backend.run(padded, cache, backend.prepare(step))
    assert error(out[:tokens], case.expected()) < BOUND[torch.float32]
    assert bool((out[tokens:] == 0).all())


@pytest.mark.parametrize("kind", KINDS)
def test_alone_or_in_a_batch(kind: str) -> None:
    spec = query(**KINDS[kind])
    together = Step(spec, MIXED)
    out = together.run()
    rows = torch.tensor([r.queries for r in MIXED]).cumsum(0).tolist()
    for index, (request, stop) in enumerate(zip(MIXED, rows, strict=True)):
        alone = Step(spec, [request])
        alone.kv, alone.sinks, alone.slopes = [together.kv[index]], together.sinks, together.slopes
        alone.q = together.q[stop - request.queries : stop]
        assert error(alone.run(), out[stop - request.queries : stop].double()) < BOUND[torch.float32]


@pytest.mark.parametrize("chunk", [1, 3, 8])
def test_prefill_in_chunks_gives_the_rows_of_one_prefill(chunk: int) -> None:
    whole = Step(query(), [Request(22, 22)])
    expected = whole.run()
    for start in range(0, 22, chunk):
        stop = min(start + chunk, 22)
        part = Step(query(), [Request(stop, stop - start)])
        part.kv, part.q = [whole.kv[0][:, :stop]], whole.q[start:stop]
        assert error(part.run(), expected[start:stop].double()) < BOUND[torch.float32]


class Run:
    """One request's keys, values and queries, computed in one step or several, with others or alone."""

    def __init__(self, length: int, spec: AttentionQuery, seed: int) -> None:
        case = Step(spec, [Request(length, length)], seed)
        self.spec, self.length, self.kv, self.q, self.sinks = spec, length, case.kv[0], case.q, case.sinks
        self.slopes = case.slopes

    def attended(self, kind: type[ReferenceAttention], cuts: list[int], others: list[int], seed: int) -> Tensor:
        """Results by chunks that end at ``cuts``, each with other requests with the given numbers of tokens in the
        cache."""
        parts, random = [], torch.Generator().manual_seed(seed)
        for start, stop in itertools.pairwise([0, *cuts, self.length]):
            requests = [Request(n, int(torch.randint(1, n + 1, (1,), generator=random))) for n in others]
            place = int(torch.randint(0, len(others) + 1, (1,), generator=random))
            requests.insert(place, Request(stop, stop - start))
            case = Step(self.spec, requests, seed + stop)
            case.kv[place], case.sinks, case.slopes = self.kv[:, :stop], self.sinks, self.slopes
            first = sum(r.queries for r in requests[:place])
            case.q[first : first + stop - start] = self.q[start:stop]
            parts.append(case.run(kind)[first : first + stop - start])
        return torch.cat(parts)


LONG = {**KINDS, "window of blocks": {"sliding_window": 300}, "one head": {"num_heads": 1, "num_kv_heads": 1}}


@pytest.mark.slow
@pytest.mark.parametrize("kind", LONG)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("threads", [1, 2], indirect=True)
def test_invariant_attention_is_bit_identical(kind: str, dtype: str, threads: int) -> None:
    """For any chunking of the prompt, with any other requests; 600 tokens are several blocks of keys."""
    run = Run(600, query(dtype=dtype, cache_dtype=dtype, **LONG[kind]), seed=1)
    expected = run.attended(InvariantAttention, [], [], 0)
    for seed, cuts in enumerate(([1, 2, 3, 4, 255, 256, 257, 599], [33, 300], [511, 513], [64, 128, 570])):
        assert torch.equal(run.attended(InvariantAttention, cuts, [5, 300, 17, 40][: seed + 1], seed), expected)


def test_plain_attention_is_not() -> None:
    run = Run(600, query(), seed=1)
    expected = run.attended(ReferenceAttention, [], [], 0)
    assert not torch.equal(run.attended(ReferenceAttention, [1, 2, 33, 300], [], 0), expected)


def test_invariant_attention_chunks_large_score_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(300, query(), seed=2)
    expected = run.attended(InvariantAttention, [], [], 0)
    monkeypatch.setattr("llmk.reference.attention.row_invariant.SCORES_AT_ONCE", 6 * 600 * 7)
    assert torch.equal(run.attended(InvariantAttention, [], [], 0), expected)


@pytest.mark.parametrize("dtype", BOUND, ids=str)
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2), (5, 1)])
@pytest.mark.parametrize("queries", [1, 9])
def test_the_fused_path_matches_the_plain_one(queries: int, heads: int, kv_heads: int, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    q = torch.randn(3, queries, heads, 32).to(dtype)
    k, v = torch.randn(2, 3, 9, kv_heads, 32).to(dtype)
    allowed = torch.rand(3, queries, 9) < 0.5
    allowed[..., 0] = True
    causal = torch.ones(1, queries, 9, dtype=torch.bool).tril()
    assert (
        error(attend_fused(q, k, v, allowed, False, 0.3), attend_plain(q, k, v, allowed, 0.3).double()) < BOUND[dtype]
    )
    assert error(attend_fused(q, k, v, None, False, 0.3), attend_plain(q, k, v, None, 0.3).double()) < BOUND[dtype]
    if queries == 9:
        out = attend_fused(q, k, v, None, True, 0.3)
        assert error(out, attend_plain(q, k, v, causal, 0.3).double()) < BOUND[dtype]


def test_refusals_have_reasons() -> None:
    assert supports_attention(query())
    verdict = supports_attention(query(cache_dtype="uint8", num_heads=5))
    assert [reason.code for reason in verdict.reasons] == ["cache_dtype", "num_kv_heads"]
    for spec in llmk_attention_backends():
        (reason,) = match(spec, query(causal=False)).reasons
        assert (reason.code, reason.wanted) == ("not_understood", "causal = False")
