"""How the engine uses one backend: for all layers of a query next to others, step after step, for many requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import partial
from typing import Any

import torch

from llmk.api import AttentionQuery, CacheStep
from llmk_testing.candidate import Asked, Candidate, agreeing
from llmk_testing.case import Skip
from llmk_testing.paged import Paged, Work, decode, history
from llmk_testing.watch import poisoned, tensors_kept

_MANY = 300
_ROUNDS = 8
_BLOCKS, _MOST_BYTES = 70_000, 300 << 20
"""Blocks of a cache whose ids take more than 16 bits, and the largest such cache."""
_OTHER_SCALES = (2.0, 0.5)
"""K and V scales of a second layer's fp8 cache."""
_FAR = 2**31 + 2**28
"""Elements between the first block of a cache and its last one, at least: more than 32 bits count."""
_BEHIND = 1300
"""Tokens before a window: more than a tile of keys."""

_OLD = (3.0, 200.0, float("inf"))
"""What free slots hold."""

Given = Callable[..., Paged]
"""Makes requests for a backend of the candidate: ``given(candidate, asked, **options)``."""


def cases(paged: Given) -> dict[str, Callable[..., str | None]]:
    """By name, what holds of a backend and a query."""

    def layers_share_metadata(candidate: Candidate[AttentionQuery], asked: Asked[AttentionQuery]) -> str:
        """Layers have caches, sinks, slopes and scales of their own, on the same blocks; what one returns stays when
        others run. A later layer may attend over the cache of an earlier one, without writing to it."""
        layers = [paged(candidate, asked, requests=3, longest=64)]
        random = candidate.bench.random("attention", asked.label, "another layer")
        layers.append(
            Paged(asked.query, layers[0].backend, candidate.bench.device, random, requests=3, longest=64),
        )
        layers[1].tables, layers[1].poison = layers[0].tables, layers[0].poison
        layers[1].rescale(_OTHER_SCALES)
        steps = [history(20, 5, 33), decode(20, 5, 33), decode(21, 6, 34), [(0, 22, 30), (2, 35, 36)]]
        outs = []
        for work in steps:
            meta = layers[0].backend.prepare(layers[0].step(work))
            outs += [(layer, layer.run(work, meta), work) for layer in layers]
            outs.append((layers[0], layers[0].attend(layers[0].given(work)[0], meta), work))
        which = "layers that share a step's metadata, after all of them ran"
        return agreeing([layer.check(out, work, which) for layer, out, work in outs])

    def instances_are_apart(candidate: Candidate[AttentionQuery], asked: Asked[AttentionQuery]) -> str:
        """Of queries that differ in what no tensor's shape shows."""
        every = [asked, *_alike(candidate, asked)]
        apart = [paged(candidate, one, requests=3, longest=64) for one in every]
        errors = []
        for work in (history(40, 5, 33), decode(40, 5, 33), [(0, 41, 50), (2, 34, 35)]):
            metas = [one.backend.prepare(one.step(work)) for one in apart]
            outs = [one.run(work, meta) for one, meta in zip(apart, metas, strict=True)]
            errors += [one.check(out, work, "of several instances") for one, out in zip(apart, outs, strict=True)]
        return f"{len(every)} instances"

    def many_requests(candidate: Candidate[AttentionQuery], asked: Asked[AttentionQuery]) -> str:
        lengths = [1 + request * 7 % 11 for request in range(_MANY)]
        every = paged(candidate, asked, requests=_MANY, longest=max(lengths) + 1)
        errors = []
        for work in (history(*lengths), decode(*lengths)):
            with poisoned():
                out = every.play(work)
            errors.append(every.check(out, work, f"of {_MANY} requests"))
        return agreeing(errors)

    def keeps_nothing(candidate: Candidate[AttentionQuery], asked: Asked[AttentionQuery]) -> str:
        one, work = paged(candidate, asked, requests=2, longest=64), decode(20, 33)
        one.play(history(20, 33))
        kept = tensors_kept(lambda: one.play(work), _ROUNDS)
        assert kept < _ROUNDS, f"{kept} tensors are kept after {_ROUNDS} steps of equal shapes"
        return f"{kept} tensors"

    return {
        "layers share metadata": layers_share_metadata,
        "instances are apart": instances_are_apart,
        "takes many requests at once": many_requests,
        "takes caches that hold old numbers": partial(_takes_used_caches, paged),
        "keeps nothing of a step": keeps_nothing,
    }


def _takes_used_caches(paged: Given, candidate: Candidate[AttentionQuery], asked: Asked[AttentionQuery]) -> str:
    """What is free holds numbers of others, large ones too, where other cases have NaN."""
    errors = []
    for number in _OLD:
        one = paged(candidate, asked, requests=3, longest=64)
        one.fill(number)
        steps: list[Work] = [history(20, 5, 33), decode(20, 5, 33), [(0, 21, 30), (2, 34, 35)]]
        what = f"in a cache that held {number:g}"
        errors += [one.check(one.play(work, padding=1), work, what) for work in steps]
    return agreeing(errors)


def leaves_what_is_behind(paged: Given, candidate: Candidate[AttentionQuery], asked: Asked[AttentionQuery]) -> str:
    """Table entries far before a window name no block at all."""
    longest = (asked.query.sliding_window or 0) + _BEHIND
    one = paged(candidate, asked, requests=2, longest=longest + 40)
    for start in range(0, longest, 256):
        one.write([(request, start, min(start + 256, longest)) for request in range(2)])
    steps: list[Work] = [decode(longest, longest), [(0, longest + 1, longest + 12), (1, longest + 1, longest + 2)]]
    return agreeing([one.check(one.play(work), work, "behind a long text") for work in steps])


def reads_large_ids(paged: Given, candidate: Candidate[AttentionQuery], asked: Asked[AttentionQuery]) -> str:
    """Blocks are spread over a cache of more than 65,536."""
    layout = paged(candidate, asked, requests=1, longest=1).backend.cache_layout(_BLOCKS)
    elements = torch.Size(layout.shape).numel()
    if elements * getattr(torch, layout.dtype).itemsize > _MOST_BYTES:
        return f"a cache of {_BLOCKS:,} blocks is too large to be tried"
    one = paged(candidate, asked, requests=3, longest=64, blocks=_BLOCKS)
    steps = [history(20, 5, 33), decode(20, 5, 33), [(0, 21, 30), (2, 34, 35)]]
    return agreeing([one.check(one.play(work), work, f"in a cache of {_BLOCKS:,} blocks") for work in steps])


def reads_far_blocks(paged: Given, candidate: Candidate[AttentionQuery], asked: Asked[AttentionQuery]) -> str:
    """As in a pool that many layers share, where the blocks of one lie far apart."""
    layout = paged(candidate, asked, requests=1, longest=1).backend.cache_layout(1)
    size, elements = asked.query.block_size, torch.Size(layout.shape).numel()
    blocks = 2 * -(-40 // size) + 2
    try:
        one = paged(candidate, asked, requests=2, longest=40, stride=-(-_FAR // (elements * (blocks - 3))))
    except (RuntimeError, MemoryError):
        raise Skip(f"a cache of {_FAR:,} elements is too large for this machine") from None
    steps = [history(20, 33), decode(20, 33), [(0, 21, 30), (1, 34, 36)]]
    return agreeing([one.check(one.play(work), work, f"in a cache of {_FAR:,} elements") for work in steps])


def _alike(candidate: Candidate[AttentionQuery], asked: Asked[AttentionQuery]) -> Iterator[Asked[AttentionQuery]]:
    """Queries that the candidate serves, too, with the same shapes."""
    query = asked.query
    changes: list[dict[str, Any]] = [{"scale": 2 * query.scale}]
    if query.sliding_window is not None:
        changes.append({"sliding_window": query.sliding_window + 3})
    if query.softcap is not None:
        changes.append({"softcap": 2 * query.softcap})
    for change in changes:
        other = replace(query, **change)
        if candidate.serves(other):
            yield Asked(f"{asked.label}, {change}", other)


class _Watched(CacheStep):
    """A step that notes which of its attributes are read."""

    __slots__ = ("seen",)
    seen: set[str]

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("host_"):
            object.__getattribute__(self, "seen").add(name)
        return object.__getattribute__(self, name)


def reads_host_lengths(paged: Given, candidate: Candidate[AttentionQuery], asked: Asked[AttentionQuery]) -> str:
    """A backend that says so, and doesn't, makes drafts wait for nothing."""
    one = paged(candidate, asked, requests=2, longest=40)
    step = one.step(history(20, 33))
    watched = _Watched.__new__(_Watched)
    watched.seen = set()
    for field in fields(CacheStep):
        object.__setattr__(watched, field.name, getattr(step, field.name))
    one.backend.prepare(watched)
    assert watched.seen, "host_lengths is declared, and prepare reads neither host_query_lens nor host_seq_lens"
    return ", ".join(sorted(watched.seen))
