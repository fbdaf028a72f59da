"""Ops over an attention backend: norms, rotation, write and attention in one, against the parts in float32."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from llmk.api import AttentionQuery, KernelSpec, OpQuery
from llmk.api.matching import match
from llmk.reference.inputs import angles
from llmk_testing.bench import Bench
from llmk_testing.binding import bind, oracle
from llmk_testing.candidate import Asked, Candidate, agreeing
from llmk_testing.case import Case
from llmk_testing.paged import Paged, Work, decode, history
from llmk_testing.queries import attention_queries
from llmk_testing.recording import check_recorded
from llmk_testing.tolerance import Right, bits, chained, check
from llmk_testing.watch import poisoned

_ROPE_KV = ("qk_norm_rope_write_kv", "qk_norm_plus_one_rope_write_kv")
_ROPE_ATTENTION = ("qk_norm_rope_attention", "qk_norm_plus_one_rope_attention")
_LATENT = ("norm_rope_write_latent", "latent_attention")
OPS = (*_ROPE_KV, *_ROPE_ATTENTION, *_LATENT)
_WHOLE = (*_ROPE_ATTENTION, "latent_attention")
_ORDINARY = "8 heads over 2 of 64, blocks of 16"
_SITES = ("6 heads over 2 of 24, blocks of 4", "a window of 21", "a soft cap", "a cache in float8_e4m3fn")
_LATENT_SITES = ("latent rows of 48 and 16",)
"""Labels of queries."""
_EPS = 1e-6
_KEY_DIM, _VALUE_DIM = 32, 24
"""Of latent attention's heads, before they are absorbed."""


@dataclass(frozen=True, slots=True)
class Site:
    """An attention site: the backend that serves it, and whether queries and keys are normed."""

    backend: KernelSpec
    query: Callable[..., AttentionQuery]
    qk_norm: bool = True


def cases(spec: KernelSpec, bench: Bench) -> Iterator[Case]:
    """The cases of one such op, over every installed backend that it serves."""
    sites = dict(_sites(spec.op, bench))
    wanted = {label: partial(_query, spec.op, site) for label, site in sites.items()}
    candidate = Candidate(spec, bench, wanted)
    yield from candidate.honesty()
    for asked in candidate.served:
        site = sites[asked.label.rpartition(", ")[0]]
        yield candidate.case(f"agrees with the reference: {asked.label}", partial(_agrees, candidate, asked, site))
        if spec.capture != "none" and site.backend.capture != "none":
            name = f"can be recorded and replayed: {asked.label}"
            yield candidate.case(name, partial(_recorded, candidate, asked, site))


def _sites(op: str, bench: Bench) -> Iterator[tuple[str, Site]]:
    """Every backend, with what is special about attention and concerns such ops; the heads' sizes are its own suite's
    concern."""
    for backend in (kernel.spec for kernel in bench.registry.kernels("attention")):
        for label, make in attention_queries().items():
            queries = [make(platform=bench.facts, site="attention", dtype=dtype) for dtype in bench.facts.dtypes]
            if _concerns(op, label) and any(match(backend, query) for query in queries):
                yield f"{label}, of {backend.id}", Site(backend, make)
                if label == _ORDINARY:
                    yield f"{label} without norms, of {backend.id}", Site(backend, make, qk_norm=False)


def _concerns(op: str, label: str) -> bool:
    return label in (_LATENT_SITES if op in _LATENT else (_ORDINARY, *_SITES))


def _query(op: str, over: Site, *, platform: Any, dtype: str, **fields: Any) -> OpQuery:
    attention = over.query(platform=platform, dtype=dtype, site="attention")
    sizes = ("num_heads", "num_kv_heads", "head_dim")
    facts: dict[str, Any] = {name: getattr(attention, name) for name in sizes}
    facts |= {"rotary_dim": _rotary(attention), "qk_norm": over.qk_norm}
    if attention.latent_dim is not None:
        facts = {
            "num_heads": attention.num_heads,
            "kv_lora_rank": attention.latent_dim,
            "qk_nope_head_dim": _KEY_DIM,
            "qk_rope_head_dim": _rotary(attention),
            "v_head_dim": _VALUE_DIM,
        }
    chosen: dict[str, Any] = {"attention": over.backend.id, "cache_layout": over.backend.layout}
    return OpQuery(op=op, facts=facts, platform=platform, dtype=dtype, **chosen, **fields)


def _rotary(query: AttentionQuery) -> int:
    """What of a head is rotated: all of the smallest, of others a half."""
    if query.latent_dim is not None:
        return query.head_dim - query.latent_dim
    return query.head_dim if query.head_dim < 64 else query.head_dim // 2


class Fused:
    """The op, bound to a backend; its reference, bound to attention in float32."""

    def __init__(self, candidate: Candidate[OpQuery], asked: Asked[OpQuery], site: Site) -> None:
        spec, bench, self.dtype = candidate.spec, candidate.bench, asked.dtype
        query = site.query(platform=bench.facts, dtype=asked.query.dtype, site="attention")
        backend = candidate.load(site.backend.implementation)(query, bench.device)
        self.random = bench.random("op", asked.label)
        self.paged = Paged(query, backend, bench.device, self.random, requests=4, longest=160)
        self.query, self.device, self.whole = query, bench.device, spec.op in _WHOLE
        given = {"attention.write": backend.write, "attention.run": backend.run}
        self.run = bind(bench.registry, spec, given)
        self._work: Work = ()
        kept: dict[str, Callable[..., Any]] = {"attention.write": self._keep, "attention.run": self._right}
        self.reference = bind(bench.registry, oracle(bench.registry, spec.op), kept)
        self.angles = angles(200, _rotary(query))
        self.constants = self._constants(site.qk_norm)

    def _draw(self, *shape: int, scale: float = 1.0) -> Tensor:
        return (torch.randn(shape, generator=self.random) * scale).to(self.dtype)

    def _constants(self, qk_norm: bool) -> Mapping[str, Any]:
        """Weights, in the order of the op's arguments behind a token's own."""
        query = self.query
        if query.latent_dim is None:
            weights = [self._draw(query.head_dim) if qk_norm else None for _ in range(2)]
            return {"q_weight": weights[0], "k_weight": weights[1], "eps": _EPS}
        norm = {"weight": self._draw(query.latent_dim), "eps": _EPS}
        if not self.whole:
            return norm
        up = self._draw(query.num_heads, _KEY_DIM, query.latent_dim, scale=_KEY_DIM**-0.5)
        down = self._draw(query.num_heads, query.latent_dim, _VALUE_DIM, scale=query.latent_dim**-0.5)
        return norm | {"k_up": up, "v_up": down}

    def tokens(self, work: Work, padding: int = 0) -> tuple[Tensor, ...]:
        """A step's own rows, on the host: queries, keys and values, or queries and latent rows."""
        rows = self.paged.own_rows(work, padding)
        if self.query.latent_dim is None:
            return rows.split_with_sizes(self.paged.sizes, 1)
        q, latent = rows.split_with_sizes(self.paged.sizes, 1)
        wanted = _rotary(self.query) + (_KEY_DIM if self.whole else 0)
        # Queries before they are absorbed are narrower than rows of the cache.
        return q[..., :wanted], latent[:, 0]

    def arguments(self, work: Work, padding: int = 0) -> tuple[Any, ...]:
        """All but cache and metadata, on the host."""
        positions = torch.cat([torch.arange(start, stop) for _, start, stop in work] + [torch.zeros(padding)])
        return *self.tokens(work, padding), *self.constants.values(), positions.to(torch.int64), self.angles

    def right(self, work: Work) -> Tensor:
        """By the parts, in float32; what is to be in the cache is kept."""
        self._work = work
        wide = [x.float() if isinstance(x, Tensor) and x.is_floating_point() else x for x in self.arguments(work)]
        out: Tensor = self.reference(*wide, None, None, **self.paged.scaled)
        return out

    def _keep(self, key: Tensor, value: Tensor | None, cache: object, meta: object, **scaled: object) -> None:
        self.paged.keep(self._work, key, value)

    def _right(self, q: Tensor, cache: object, meta: object, **scaled: object) -> Tensor:
        return self.paged.right(self._work, q)

    def play(self, work: Work, padding: int = 0) -> Tensor:
        """As the engine does."""
        meta = self.paged.backend.prepare(self.paged.step(work, padding=padding))
        return self.call(self.placed(self.arguments(work, padding)), meta)

    def placed(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """On the device; a token's queries, keys and values as parts of one row."""
        moved = [x.to(self.device) if isinstance(x, Tensor) else x for x in arguments]
        if self.query.latent_dim is None:
            moved[:3] = torch.cat(moved[:3], dim=1).split_with_sizes(self.paged.sizes, 1)
        return tuple(moved)

    def call(self, arguments: tuple[Any, ...], meta: Any) -> Tensor:
        """The op."""
        out: Tensor = self.run(*arguments, self.paged.cache, meta, **self.paged.scaled)
        return out

    def check(self, out: Tensor, work: Work, what: str) -> float:
        """Compares the result, and by the backend's own attention what was stored."""
        right = self.right(work)
        tokens = right.shape[0]
        # What is rotated and rounded before it is stored may be rounded to a neighbour in a narrow cache.
        bound = chained(torch.float8_e4m3fn if self.paged.scaled else self.dtype)
        error = check(out[:tokens], Right(right, self.dtype), what, bound)
        q, _, _ = self.paged.given(work)
        meta = self.paged.backend.prepare(self.paged.step(work))
        seen = self.paged.backend.run(q, self.paged.cache, meta, None, **self.paged.scaled)
        stored = Right(self.paged.right(work), self.dtype)
        return max(error, check(seen, stored, f"{what}: what attention sees in the cache", bound))


def _agrees(candidate: Candidate[OpQuery], asked: Asked[OpQuery], site: Site) -> str:
    """Prompts, decodes and both, padded too; padding is written nowhere."""
    fused, errors = Fused(candidate, asked, site), []
    steps: list[tuple[Work, int]] = [
        (history(20, 1, 129), 0),
        (decode(20, 1, 129), 2),
        ([(2, 130, 139), (3, 0, 17), (0, 21, 22)], 1),
    ]
    for work, padding in steps:
        dim = fused.paged.backend.cache_layout(1).block_dim
        before = bits(fused.paged.cache.select(dim, -1))
        with poisoned():
            out = fused.play(work, padding)
        assert torch.equal(bits(fused.paged.cache.select(dim, -1)), before), "a token of slot -1 was written"
        errors.append(fused.check(out, work, f"a step of {len(work)} requests and {padding} of padding"))
    return agreeing(errors)


def _recorded(candidate: Candidate[OpQuery], asked: Asked[OpQuery], site: Site) -> str:
    """A decode step, replayed for the next one."""
    fused = Fused(candidate, asked, site)
    prompts, works = history(20, 1, 60), [decode(20, 1, 60), decode(21, 2, 61)]
    fused.check(fused.play(prompts), prompts, "the prompts")
    # Four blocks' worth beyond, so that one width of table does for both.
    steps = [fused.paged.step(work, beyond=160 - work[2][2], on_host=False) for work in works]
    inputs = [fused.placed(fused.arguments(work)) for work in works]
    step = fused.paged.step(works[0], beyond=160 - works[0][2][2], on_host=False)
    given = fused.placed(fused.arguments(works[0]))

    def load(i: int) -> None:
        for name in ("query_start", "seq_lens", "block_table", "slot_mapping"):
            getattr(step, name).copy_(getattr(steps[i], name))
        for into, values in zip(given, inputs[i], strict=True):
            if isinstance(into, Tensor):
                into.copy_(values)

    def judge(i: int, out: Tensor) -> float:
        return fused.check(out, works[i], "a replay for the next step" if i else "a recorded step")

    return check_recorded(candidate.bench, lambda: fused.call(given, fused.paged.backend.prepare(step)), load, judge, 2)
