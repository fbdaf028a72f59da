"""Ops over an attention backend: what they compute and store, against the parts in float32."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from llmk.api import AttentionQuery, KernelSpec, OpContract, OpQuery
from llmk.api.matching import match
from llmk.reference.op_examples import Draw, Facts, OpExamples
from llmk_testing.bench import Bench
from llmk_testing.binding import bind, oracle
from llmk_testing.candidate import Asked, Candidate, agreeing
from llmk_testing.case import Case
from llmk_testing.paged import OF_PADDING, Paged, Work, decode, history
from llmk_testing.queries import attention_queries
from llmk_testing.recording import check_recorded
from llmk_testing.tolerance import Right, bits, chained, check
from llmk_testing.trees import mapped_values, tensors
from llmk_testing.watch import poisoned

_ORDINARY = "8 heads over 2 of 64, blocks of 16"
_SITES = (
    _ORDINARY,
    "6 heads over 2 of 24, blocks of 4",
    "a window of 21",
    "a soft cap",
    "window, soft cap and sinks",
    "slopes",
    "values of 40, keys of 64",
    "a cache in float8_e4m3fn",
    "latent rows of 48 and 16",
)
"""Labels of queries."""
_LONGEST = 200
_MANY = 1217
"""Tokens of a prompt, more than any tile has."""


@dataclass(frozen=True, slots=True)
class Site:
    """An attention site, the backend that serves it, and the op's facts."""

    backend: KernelSpec
    query: Callable[..., AttentionQuery]
    facts: Facts


def cases(spec: KernelSpec, bench: Bench, contract: OpContract, examples: OpExamples) -> Iterator[Case]:
    """The cases of one such op, over every installed backend that it serves."""
    sites = dict(_sites(bench, examples))
    wanted = {label: partial(_query, spec.op, site) for label, site in sites.items()}
    candidate = Candidate(spec, bench, wanted)
    yield from candidate.honesty()
    placed = {asked.label: sites[asked.label.rpartition(", ")[0]] for asked in candidate.served}
    for asked in candidate.served:
        site = placed[asked.label]
        if not match(site.backend, site.query(platform=bench.facts, site="attention", dtype=asked.query.dtype)):
            continue  # an op may serve dtypes that the backend does not
        fused = partial(Fused, candidate, asked, site, contract, examples)
        yield candidate.case(f"agrees with the reference: {asked.label}", partial(_agrees, fused))
        if site is next(iter(placed.values())):
            yield candidate.case(f"agrees with the reference on many tokens: {asked.label}", partial(_many, fused))
        if spec.capture != "none" and site.backend.capture != "none":
            name = f"can be recorded and replayed: {asked.label}"
            yield candidate.case(name, partial(_recorded, bench, fused))


def _sites(bench: Bench, examples: OpExamples) -> Iterator[tuple[str, Site]]:
    """Every backend, with what is special about attention and concerns such ops; the heads' sizes are its own suite's
    concern. The first site comes with all facts that the op has there, others with the first."""
    for backend in (kernel.spec for kernel in bench.registry.kernels("attention")):
        for label, make in attention_queries().items():
            queries = [make(platform=bench.facts, site="attention", dtype=dtype) for dtype in bench.facts.dtypes]
            if label not in _SITES or not any(match(backend, query) for query in queries):
                continue
            found = examples.facts_at(queries[0])
            if not all(_says(facts, queries[0]) for facts in found):
                continue
            for facts in found if label == _ORDINARY else found[:1]:
                special = [f", {name} {value}" for name, value in facts.items() if found[0].get(name) != value]
                yield f"{label}{''.join(special)}, of {backend.id}", Site(backend, make, facts)


def _says(facts: Facts, site: AttentionQuery) -> bool:
    """Whether an op's facts say what differs at a site in what the op gets; an op whose facts don't is for others."""
    needed = {"attention_sinks": site.sinks, "alibi": site.alibi, "value_dim": site.value_dim is not None}
    return all(name in facts for name, is_needed in needed.items() if is_needed)


def _query(op: str, over: Site, **fields: Any) -> OpQuery:
    chosen: dict[str, Any] = {"attention": over.backend.id, "cache_layout": over.backend.layout}
    return OpQuery(op=op, facts=over.facts, **chosen, **fields)


class Fused:
    """The op, bound to a backend; its reference, bound to attention in float32."""

    def __init__(
        self,
        candidate: Candidate[OpQuery],
        asked: Asked[OpQuery],
        site: Site,
        contract: OpContract,
        examples: OpExamples,
        longest: int = 160,
    ) -> None:
        spec, bench, self.dtype = candidate.spec, candidate.bench, asked.dtype
        query = site.query(platform=bench.facts, dtype=asked.query.dtype, site="attention")
        backend = candidate.load(site.backend.implementation)(query, bench.device)
        self.random = partial(bench.random, "op", asked.label)
        self.paged = Paged(query, backend, bench.device, self.random(), requests=4, longest=longest)
        self._longest = max(longest, _LONGEST)
        self.device, self.facts, self.examples = bench.device, site.facts, examples
        self.by_row, self.wide = contract.positions(examples.by_row), contract.positions(examples.wide)
        given = {"attention.write": backend.write, "attention.run": backend.run}
        self.run = bind(bench.registry, spec, given)
        self._work: Work = ()
        self._numbers: dict[int, Any] = {}
        self._shared = "shared_kv" in site.facts  # another layer has written the keys and values
        kept: dict[str, Callable[..., Any]] = {"attention.write": self._keep, "attention.run": self._right}
        self.reference = bind(bench.registry, oracle(bench.registry, spec.op), kept)
        options = examples.options_at(Draw(self.random("options"), self.dtype), site.facts)
        self.options = {**options, **self.paged.scaled}
        if "attention_sinks" in site.facts and "attention.run" in contract.parts:
            self.options["sinks"] = self.paged.sinks
        if "alibi" in site.facts and "attention.run" in contract.parts:
            self.options["slopes"] = self.paged.slopes
        self.on_device = mapped_values(lambda tensor: tensor.to(bench.device), self.options)

    def arguments(self, work: Work, padding: int = 0) -> tuple[Any, ...]:
        """All but cache and metadata, on the host; the same for the same work, and numbers for any, as a replay keeps
        them. In padding the first argument of rows, the queries, is NaN; others are not, so that they show in a cache
        of NaN."""
        positions = torch.cat([torch.arange(start, stop) for _, start, stop in work])
        draw = Draw(self.random(list(work)), self.dtype, longest=self._longest, given=positions)
        made = list(self.examples.make(draw, self.facts, len(positions)))
        for place in (place for place, value in enumerate(made) if isinstance(value, float)):
            made[place] = self._numbers.setdefault(place, made[place])
        for place in self.by_row:
            rows = made[place]
            if rows is None:
                continue
            value = 0 if not rows.is_floating_point() else torch.nan if place == self.by_row[0] else OF_PADDING
            made[place] = torch.cat((rows, torch.full((padding, *rows.shape[1:]), value, dtype=rows.dtype)))
        return tuple(made)

    def right(self, work: Work) -> list[Tensor]:
        """By the parts, in float32; what is to be in the cache is kept."""
        self._work = work
        wide = [x.float() if isinstance(x, Tensor) and x.is_floating_point() else x for x in self.arguments(work)]
        return tensors(self.reference(*wide, None, None, **self.options))

    def _keep(self, key: Tensor, value: Tensor | None, cache: object, meta: object, **scaled: object) -> None:
        self.paged.keep(self._work, key, value)

    def _right(self, q: Tensor, cache: object, meta: object, **scaled: object) -> Tensor:
        return self.paged.right(self._work, q)

    def play(self, work: Work, padding: int = 0) -> Any:
        """As the engine does."""
        self.share(work)
        meta = self.paged.backend.prepare(self.paged.step(work, padding=padding))
        return self.call(self.placed(self.arguments(work, padding)), meta)

    def share(self, work: Work) -> None:
        """Writes what an op that writes no keys and values reads: those of another layer."""
        if self._shared:
            self.paged.write(work)

    def placed(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """On the device; a token's queries, keys and values as parts of one row."""
        moved = [x.to(self.device) if isinstance(x, Tensor) else x for x in arguments]
        given = [place for place in self.wide if moved[place] is not None]
        if given:
            parts = [moved[place].flatten(1) for place in given]
            split = torch.cat(parts, dim=1).split_with_sizes([part.shape[1] for part in parts], 1)
            for place, part in zip(given, split, strict=True):
                moved[place] = part.unflatten(1, moved[place].shape[1:])
        return tuple(moved)

    def call(self, arguments: tuple[Any, ...], meta: Any) -> Any:
        """The op."""
        return self.run(*arguments, self.paged.cache, meta, **self.on_device)

    def check(self, out: Any, work: Work, what: str) -> float:
        """Compares the result, and by the backend's own attention what was stored."""
        found, right = tensors(out), self.right(work)
        # What is rotated and rounded before it is stored may be rounded to a neighbour in a narrow cache.
        bound = chained(torch.float8_e4m3fn if self.paged.scaled else self.dtype)
        assert len(found) == len(right), f"{what}: {len(found)} tensors came, {len(right)} were expected"
        errors = [
            check(actual[: len(expected)], Right(expected, self.dtype), what, bound)
            for actual, expected in zip(found, right, strict=True)
        ]
        q, _, _ = self.paged.given(work)
        meta = self.paged.backend.prepare(self.paged.step(work))
        seen = self.paged.attend(q, meta)
        stored = Right(self.paged.right(work), self.dtype)
        return max(*errors, check(seen, stored, f"{what}: what attention sees in the cache", bound))


def _agrees(make: Callable[[], Fused]) -> str:
    """Prompts, decodes and both, padded too; padding is written nowhere."""
    fused, errors = make(), []
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


def _many(make: Callable[..., Fused]) -> str:
    """A long prompt, whose last tile is not full, and others behind it."""
    fused = make(longest=_MANY)
    work: Work = [(0, 0, _MANY), (1, 0, 130), (2, 0, 1)]
    return agreeing([fused.check(fused.play(work), work, f"a prompt of {_MANY} tokens, and others")])


def _recorded(bench: Bench, make: Callable[[], Fused]) -> str:
    """A decode step, replayed for the next one."""
    fused = make()
    prompts, works = history(20, 1, 60), [decode(20, 1, 60), decode(21, 2, 61)]
    fused.check(fused.play(prompts), prompts, "the prompts")
    # Four blocks' worth beyond, so that one width of table does for both.
    steps = [fused.paged.step(work, beyond=160 - work[2][2], on_host=False) for work in works]
    inputs = [fused.placed(fused.arguments(work)) for work in works]
    step = fused.paged.step(works[0], beyond=160 - works[0][2][2], on_host=False)
    given = fused.placed(fused.arguments(works[0]))
    for work in works:
        fused.share(work)

    def load(i: int) -> None:
        for name in ("query_start", "seq_lens", "block_table", "slot_mapping"):
            getattr(step, name).copy_(getattr(steps[i], name))
        for into, values in zip(given, inputs[i], strict=True):
            if isinstance(into, Tensor):
                into.copy_(values)

    def judge(i: int, out: Any) -> float:
        return fused.check(out, works[i], "a replay for the next step" if i else "a recorded step")

    return check_recorded(bench, lambda: fused.call(given, fused.paged.backend.prepare(step)), load, judge, 2)
