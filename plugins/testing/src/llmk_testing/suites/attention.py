"""The suite of attention backends: write and run, compared with float32 attention over contiguous keys and values."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from llmk.api import AttentionQuery, CacheStep, KernelSpec
from llmk.api.cache import SCALED_BITS
from llmk_testing.bench import Bench
from llmk_testing.candidate import Asked, Candidate, agreeing, served_by
from llmk_testing.case import Case
from llmk_testing.paged import Paged, Work, decode, history
from llmk_testing.queries import attention_queries
from llmk_testing.recording import check_recorded
from llmk_testing.suites import (
    attention_alike,
    attention_context,
    attention_numbers,
    attention_steps,
    kernel_costs,
)
from llmk_testing.tolerance import bits, check_same
from llmk_testing.trees import mapped
from llmk_testing.watch import poisoned

_LONG = 257
_LONGEST, _AT_ONCE = 33001, 1024
"""Tokens of the longest sequence, and how many of them are written at once."""
_INDEX = ("query_start", "seq_lens", "block_table", "slot_mapping")
_HOST_COST_FACTOR = 5.0
_PADDED: tuple[tuple[Work, int], ...] = (
    (history(17, 1, 33), 1),
    (decode(17, 1, 33), 3),
    ([(0, 18, 19), (2, 34, 35)], 4),
    ([(0, 19, 20), (1, 2, 3), (2, 35, 36)], 3),
    ([(0, 20, 21), (1, 3, 10), (2, 36, 37)], 2),
    ([(0, 21, 28), (2, 37, 38)], 3),
    ([(0, 28, 30), (1, 10, 17), (2, 38, 39)], 1),
)
"""Steps with how many requests and tokens of padding they have: 6 or 11 rows, but for the first."""


def cases(spec: KernelSpec, bench: Bench) -> Iterator[Case]:
    """The cases of one attention backend."""
    candidate = Candidate(spec, bench, attention_queries(served_by(spec, bench)))
    contracts: dict[str, Callable[..., str | None]] = {
        "states the cache as it is": _layout,
        "writes its slots and no others": _writes,
        "leaves padding alone": _padding,
        "metadata stays valid after the next step is prepared": _metadata,
        "requests share blocks": _shares,
        "takes caches strided along blocks": _strided,
        "larger upper bounds don't change results": _bounds,
        "inputs stay as they are": _inputs,
        "host_cost_us matches the cost of prepare": _host_cost,
        **attention_steps.cases(_paged),
        **attention_alike.cases(_paged),
        **attention_numbers.cases(_paged),
        **kernel_costs.attention_cases(_paged),
    }
    if spec.host_lengths:
        contracts["reads the host's lengths, as it declares"] = partial(attention_steps.reads_host_lengths, _paged)
    else:
        contracts["takes steps whose lengths are on the device alone"] = _on_device
    yield from candidate.checks(_agrees, contracts, _recorded, _deterministic, _typical(candidate.served))
    for asked in (asked for asked in _typical(candidate.served) if asked.query.sliding_window):
        behind = partial(attention_steps.leaves_what_is_behind, _paged, candidate, asked)
        yield candidate.case(f"reads nothing that a window left behind: {asked.label}", behind)
    for asked in attention_alike.with_each_option(candidate.served):
        longer = partial(attention_alike.takes_many_tiles, _paged, candidate, asked)
        yield candidate.case(f"attends over many tiles of keys: {asked.label}", longer)
    narrow = sorted(_typical(candidate.served), key=lambda asked: asked.query.num_kv_heads * asked.query.head_dim)
    for asked in narrow[:2]:
        yield candidate.case(f"reads long sequences: {asked.label}", partial(_long, candidate, asked))
    for asked in attention_context.least(candidate):
        of_least: dict[str, Callable[..., str | None]] = {**attention_context.CASES}
        of_least["reads blocks of large numbers"] = partial(attention_steps.reads_large_ids, _paged)
        of_least["reads blocks that lie far apart"] = partial(attention_steps.reads_far_blocks, _paged)
        of_least["takes prompts of many tiles in one step"] = partial(attention_alike.takes_long_prompts, _paged)
        for name, run in of_least.items():
            yield candidate.case(f"{name}: {asked.label}", partial(run, candidate, asked))


def _typical(served: list[Asked[AttentionQuery]]) -> list[Asked[AttentionQuery]]:
    """The first query in each dtype, and the first with a window, with a cache of each fp8, with vectors that have
    scales, with latent vectors, and with values of another width than keys."""
    kinds: tuple[Callable[[AttentionQuery], bool], ...] = (
        lambda query: True,
        lambda query: (query.sliding_window or 0) > 1,
        lambda query: query.cache_dtype == "float8_e4m3fn",
        lambda query: query.cache_dtype == "float8_e5m2",
        lambda query: query.cache_dtype in SCALED_BITS,
        lambda query: query.latent_dim is not None,
        lambda query: query.value_dim is not None,
    )
    found = [next((asked for asked in served if kind(asked.query)), None) for kind in kinds]
    found += [asked for asked in served[1:] if _same_but_for_the_dtype(asked.query, served[0].query)]
    return list({asked.label: asked for asked in found if asked is not None}.values())


def _same_but_for_the_dtype(one: AttentionQuery, other: AttentionQuery) -> bool:
    return replace(one, dtype=other.dtype, cache_dtype=other.cache_dtype) == other


def _paged(candidate: Candidate[AttentionQuery], asked: Asked[AttentionQuery], **options: Any) -> Paged:
    backend = candidate.load(candidate.spec.implementation)(asked.query, candidate.bench.device)
    random = candidate.bench.random("attention", asked.label)
    return Paged(asked.query, backend, candidate.bench.device, random, **options)


def _agrees(candidate: Candidate[AttentionQuery], asked: Asked[AttentionQuery]) -> str:
    """Prefill, chunked prefill and decode, alone and mixed in one step, with lengths around the edges of blocks and
    tiles, and longer than the window."""
    size, longest = asked.query.block_size, max(_LONG, (asked.query.sliding_window or 0) + 43)
    steps: list[Work] = [
        history(1, size + 1, 129, max(1, size - 1), size),
        [(2, 129, 130), (5, 0, 127), (0, 1, 2), (1, size + 1, size + 8)],
        [(5, 127, 256), (3, max(1, size - 1), max(1, size - 1) + 1), (4, size, size + 1), (0, 2, 3)],
        [(5, 256, longest), (0, 3, 4), (2, 130, 131), (1, size + 8, size + 9)],
        [(5, longest, longest + 1)],
    ]
    paged = _paged(candidate, asked, requests=6, longest=longest + 43)
    with poisoned():
        outs = [paged.play(work) for work in steps]
    return agreeing([paged.check(out, work, "attention") for out, work in zip(outs, steps, strict=True)])


def _layout(candidate: Candidate[AttentionQuery], asked: Asked[AttentionQuery]) -> None:
    backend, query = _paged(candidate, asked, requests=1, longest=1).backend, asked.query
    small, large = backend.cache_layout(3), backend.cache_layout(7)
    assert small.name == candidate.spec.layout, f"the layout is {small.name!r}, the spec says {candidate.spec.layout!r}"
    dtypes = ("int8", "uint8") if query.cache_dtype in SCALED_BITS else (query.cache_dtype,)
    assert small.dtype in dtypes, f"the layout is in {small.dtype}, the query says {query.cache_dtype}"
    for layout, blocks in ((small, 3), (large, 7)):
        found = layout.shape[layout.block_dim]
        assert found == blocks, f"dimension {layout.block_dim} of {layout.shape} is to count {blocks} blocks"
    rest = [layout.shape[: layout.block_dim] + layout.shape[layout.block_dim + 1 :] for layout in (small, large)]
    assert rest[0] == rest[1], f"a block's shape depends on how many there are: {small.shape} and {large.shape}"


def _writes(candidate: Candidate[AttentionQuery], asked: Asked[AttentionQuery]) -> None:
    """Compares the bits of the cache before and after."""
    size, paged = asked.query.block_size, _paged(candidate, asked, requests=3, longest=64, stride=2)
    for work, padding in ((history(size + 1, 1, 2 * size), 0), (decode(size + 1, 1, 2 * size), 2)):
        _, key, value = paged.given(work, padding=padding)
        before = paged.cache.clone()
        paged.backend.write(
            key, value, paged.cache, paged.backend.prepare(paged.step(work, padding=padding)), **paged.scaled
        )
        dim = paged.backend.cache_layout(1).block_dim
        changed = (bits(paged.cache) != bits(before)).movedim(dim, 0).flatten(1).sum(1)
        slots = torch.cat([paged.slots(*tokens) for tokens in work]) // size
        written = torch.bincount(slots, minlength=changed.shape[0])
        limit = written * (before.numel() // before.shape[dim] // size)
        bad = (changed > limit).nonzero().flatten().tolist()
        whose = {paged.nobodys: " (the last one)", paged.poison: ""}
        assert not bad, (
            f"a write of {written.tolist()[bad[0]]} tokens to block {bad[0]}{whose.get(bad[0], '')} of"
            f" {changed.shape[0]} changed {int(changed[bad[0]])} elements, {int(limit[bad[0]])} at most are theirs"
        )
        missing = ((written > 0) & (changed == 0)).nonzero().flatten().tolist()
        assert not missing, f"block {missing[0]} has slots of the step, and nothing was written to it"


def _padding(candidate: Candidate[AttentionQuery], asked: Asked[AttentionQuery]) -> str:
    """Requests without tokens and tokens without requests come last, more or fewer of them in steps of one size."""
    paged = _paged(candidate, asked, requests=3, longest=64)
    errors = []
    for work, padding in _PADDED:
        out = _leaving_last(paged, partial(paged.play, work, padding=padding))
        errors.append(paged.check(out, work, f"with {padding} requests and tokens of padding"))
    return agreeing(errors)


def _leaving_last(paged: Paged, play: Callable[[], Tensor]) -> Tensor:
    """The result of a step, which leaves the cache's last block as it was, which slot -1 would be of."""
    dim = paged.backend.cache_layout(1).block_dim
    before = bits(paged.cache.select(dim, -1)).clone()
    with poisoned():
        out = play()
    assert torch.equal(bits(paged.cache.select(dim, -1)), before), "slot -1 was written to the cache's last block"
    return out


def _on_device(candidate: Candidate[AttentionQuery], asked: Asked[AttentionQuery]) -> str:
    """As steps in flight have them, with and without padding."""
    paged, errors = _paged(candidate, asked, requests=3, longest=64), []
    steps = [history(17, 1, 33), decode(17, 1, 33), [(0, 18, 19), (1, 2, 9), (2, 34, 35)]]
    for work, padding in zip(steps, (0, 3, 2), strict=True):
        out = _leaving_last(paged, partial(paged.play, work, padding=padding, on_host=False))
        errors.append(paged.check(out, work, f"without host lengths, with {padding} of padding"))
    return agreeing(errors)


def _long(candidate: Candidate[AttentionQuery], asked: Asked[AttentionQuery]) -> str:
    """Positions beyond 32,768, in one token and in the last tokens of a prompt."""
    paged, errors = _paged(candidate, asked, requests=1, longest=_LONGEST + 8), []
    for start in range(0, _LONGEST, _AT_ONCE):
        paged.write([(0, start, min(start + _AT_ONCE, _LONGEST))])
    for start, stop in ((_LONGEST, _LONGEST + 1), (_LONGEST + 1, _LONGEST + 4)):
        work = [(0, start, stop)]
        errors.append(paged.check(paged.play(work), work, "after a long text"))
    return agreeing(errors)


def _metadata(candidate: Candidate[AttentionQuery], asked: Asked[AttentionQuery]) -> None:
    paged = _paged(candidate, asked, requests=3, longest=64)
    paged.check(paged.play(history(20, 5, 33)), history(20, 5, 33), "the prompts")
    first, second = decode(20, 5, 33), [(2, 34, 41), (1, 6, 7)]
    metas = [paged.backend.prepare(paged.step(work)) for work in (first, second)]
    outs = [paged.run(first, metas[0]), paged.run(second, metas[1])]
    paged.check(outs[0], first, "the first of two steps that were prepared before either ran")
    paged.check(outs[1], second, "the second of two steps that were prepared before either ran")
    q, _, _ = paged.given(first)
    paged.check(paged.attend(q, metas[0]), first, "a step after another one has run")


def _shares(candidate: Candidate[AttentionQuery], asked: Asked[AttentionQuery]) -> str:
    """Requests read a prefix that another request computed, and write after it; one of the step has another."""
    size = asked.query.block_size
    blocks = -(-24 // size)
    prefix = blocks * size
    paged = _paged(candidate, asked, requests=4, longest=prefix + 24, shared=blocks, sharing=3)
    steps: list[Work] = [
        [(0, 0, prefix + 2), (3, 0, prefix)],
        [(1, prefix, prefix + 9), (2, prefix, prefix + 1), (3, prefix, prefix + 4), (0, prefix + 2, prefix + 3)],
        [(r, n, n + 1) for r, n in enumerate((prefix + 3, prefix + 9, prefix + 1, prefix + 4))],
    ]
    errors = []
    for work in steps:
        errors.append(paged.check(paged.play(work), work, "requests that share their first blocks"))
        for kept in paged.kept:
            kept[:3, :prefix] = kept[:1, :prefix]
    return agreeing(errors)


def _strided(candidate: Candidate[AttentionQuery], asked: Asked[AttentionQuery]) -> str:
    paged = _paged(candidate, asked, requests=3, longest=64, stride=3)
    steps = [history(20, 5, 33), decode(20, 5, 33), [(0, 21, 30), (2, 34, 35)]]
    what = "over a cache whose block stride is 3 times the block size"
    return agreeing([paged.check(paged.play(work), work, what) for work in steps])


def _bounds(candidate: Candidate[AttentionQuery], asked: Asked[AttentionQuery]) -> str:
    paged = _paged(candidate, asked, requests=3, longest=64)
    steps = [history(20, 5, 33), decode(20, 5, 33), [(0, 21, 30), (2, 34, 35)]]
    what, errors = "with upper bounds far above the true lengths", []
    for work in steps:
        step = paged.step(work, beyond=1000)
        step = replace(step, max_query_len=step.max_query_len + 7)
        errors.append(paged.check(paged.run(work, paged.backend.prepare(step)), work, what))
    return agreeing(errors)


def _inputs(candidate: Candidate[AttentionQuery], asked: Asked[AttentionQuery]) -> None:
    """Of steps with padding, whose slots other layers read after this one."""
    for work, padding in ((history(20, 5, 33), 2), (decode(20, 5, 33), 3)):
        paged = _paged(candidate, asked, requests=3, longest=64)
        step = paged.step(work, padding=padding)
        index = {name: getattr(step, name) for name in _INDEX}
        values = paged.given(work, padding=padding)
        given = {name: x for name, x in zip(("query", "key", "value"), values, strict=True) if x is not None}
        before = {name: tensor.clone() for name, tensor in (index | given).items()}
        lengths = [*step.host_query_lens], [*step.host_seq_lens]
        meta = paged.backend.prepare(step)
        paged.backend.write(given["key"], given.get("value"), paged.cache, meta, **paged.scaled)
        cache = paged.cache.clone()
        out = paged.attend(given["query"], meta)
        for name, tensor in (index | given).items():
            check_same(tensor, before[name], f"{name}, which is an input")
        assert lengths == ([*step.host_query_lens], [*step.host_seq_lens]), "the host's lengths are inputs"
        check_same(paged.cache, cache, "the cache, which run only reads")
        storage = out.untyped_storage().data_ptr()
        aliased = [name for name, x in given.items() if x.untyped_storage().data_ptr() == storage]
        assert not aliased, f"the result lies in the memory of {aliased[0]}"


def _deterministic(candidate: Candidate[AttentionQuery], asked: Asked[AttentionQuery]) -> None:
    """Alone, with other requests in another order, in one chunk or in several."""
    paged = _paged(candidate, asked, requests=4, longest=200)
    prompts, steps = history(150, 33, 5, 90), decode(150, 33, 5, 90)
    prompted, decoded = paged.play(prompts), paged.play(steps)
    for request, row in ((0, 0), (2, 2), (3, 3)):
        alone = paged.play([steps[request]])
        check_same(alone[0], decoded[row], f"a decode after {prompts[request][2]} tokens, alone and with three others")
    reordered = paged.play([(1, 26, 33), steps[3], steps[0], (2, 0, 5)])
    check_same(reordered[7], decoded[3], "a decode after 90 tokens, with prompts and with decodes")
    check_same(reordered[8], decoded[0], "a decode after 150 tokens, with prompts and with decodes")
    check_same(reordered[:7], prompted[150 + 26 : 150 + 33], "the last 7 tokens of a prompt, alone and with the rest")
    for first, last in ((0, 149), (149, 150), (63, 130)):
        chunk = paged.play([(0, first, last)])
        check_same(chunk, prompted[first:last], f"tokens {first}-{last - 1} of a prompt, as a chunk and with the rest")


def _recorded(candidate: Candidate[AttentionQuery], asked: Asked[AttentionQuery]) -> str:
    """Captures prepare and run in a graph; replays it for fewer and shorter requests, with padding."""
    paged = _paged(candidate, asked, requests=4, longest=96)
    prompts = history(40, 20, 33, 65)
    paged.check(paged.play(prompts), prompts, "the prompts")
    remark = _replayed(candidate, paged, [(decode(40, 20, 33, 65), 1), ([(3, 20, 21), (0, 7, 8)], 1)])
    if candidate.spec.capture == "full":
        _replayed(candidate, paged, [([(0, 40, 47), (1, 21, 22), (2, 30, 34)], 7), ([(3, 60, 66), (2, 9, 13)], 7)])
    return remark


def _replayed(candidate: Candidate[AttentionQuery], paged: Paged, works: list[tuple[Work, int]]) -> str:
    """Replays steps with the most tokens of any request; the first one is captured."""
    longest = max(stop for work, _ in works for _, _, stop in work)
    tokens = max(sum(stop - start for _, start, stop in work) for work, _ in works)
    requests, queries = max(len(work) for work, _ in works), works[0][1]
    steps = [_pad(paged, work, requests, tokens, queries, longest) for work, _ in works]
    given = [paged.given(work, padding=tokens - sum(b - a for _, a, b in work)) for work, _ in works]
    step, (q, key, value) = replace(steps[0]), mapped(torch.clone, given[0])
    for name in _INDEX:
        setattr(step, name, getattr(step, name).clone())

    def run() -> Tensor:
        meta = paged.backend.prepare(step)
        paged.backend.write(key, value, paged.cache, meta, **paged.scaled)
        return paged.attend(q, meta)

    def load(i: int) -> None:
        for name in _INDEX:
            getattr(step, name).copy_(getattr(steps[i], name))
        for into, rows in zip((q, key, value), given[i], strict=True):
            if into is not None and rows is not None:
                into.copy_(rows)

    def judge(i: int, out: Tensor) -> float:
        return paged.check(out, works[i][0], "a step that was recorded" if i == 0 else "a replay for another step")

    return check_recorded(candidate.bench, run, load, judge, len(works))


def _pad(paged: Paged, work: Work, requests: int, tokens: int, queries: int, longest: int) -> CacheStep:
    """The step of ``work``, padded to this number of requests and tokens, with bounds that hold for all steps."""
    step = paged.step(work, on_host=False)
    more, width = requests - len(work), -(-longest // paged.query.block_size)
    table = torch.full((requests, width), paged.poison, dtype=torch.int32, device=paged.device)
    table[: len(work), : step.block_table.shape[1]] = step.block_table
    return replace(
        step,
        query_start=torch.cat([step.query_start, step.query_start[-1:].expand(more)]),
        seq_lens=F.pad(step.seq_lens, (0, more)),
        block_table=table,
        slot_mapping=F.pad(step.slot_mapping, (0, tokens - step.num_tokens), value=-1),
        num_requests=requests,
        num_tokens=tokens,
        max_query_len=queries,
        max_seq_len=longest,
    )


def _host_cost(candidate: Candidate[AttentionQuery], asked: Asked[AttentionQuery]) -> str:
    """Only reported, not checked, because other load of the machine affects it."""
    paged = _paged(candidate, asked, requests=4, longest=96)
    step = paged.step(decode(40, 20, 33, 65))
    paged.backend.prepare(step)
    times = []
    for _ in range(5):
        candidate.bench.platform.device.synchronize()
        start = time.perf_counter()
        paged.backend.prepare(step)
        times.append(1e6 * (time.perf_counter() - start))
    declared, found = candidate.spec.host_cost_us, min(times)
    honest = found <= _HOST_COST_FACTOR * max(declared, 10.0)
    return f"{found:.0f} us, {declared:g} declared" + ("" if honest else ": understated")
