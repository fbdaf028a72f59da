"""Numbers and magnitudes of tokens and of experts, as models have them, that experts are tried with."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from llmk.api import MoEQuery
from llmk_testing.candidate import Asked, Candidate, agreeing
from llmk_testing.case import Case, Skip
from llmk_testing.rows import counts, none_or_more
from llmk_testing.suites.prepared import first_of_each
from llmk_testing.watch import poisoned

_MODELS: tuple[tuple[int, int, dict[str, Any]], ...] = (
    (16, 1, {}),
    (32, 4, {}),
    (60, 4, {}),
    (64, 6, {}),
    (96, 10, {}),
    (128, 8, {}),
    (160, 6, {"num_groups": 8, "top_groups": 3}),
    (256, 8, {"num_groups": 8, "top_groups": 4, "group_scoring": "top2_sum", "scoring": "sigmoid", "scaling": 2.5}),
    (384, 8, {"scoring": "sigmoid", "scaling": 2.827}),
    (512, 10, {}),
)
"""Experts, how many of them a token has, and options, as in well-known models: kernels that choose have code of its own
for powers of two, for a warp's width, and for up to 8 of them."""
_APART, _RANKED = 0.15, 40
"""How far the logits of the first experts of a token are apart; further ones are far below them."""
_LARGE = 1e4
_SCALED = 2.5
"""Factor of the experts' sums, also of one expert's."""


class Moe(Protocol):
    """What :class:`~llmk_testing.suites.moe.PreparedMoE` has."""

    dtype: torch.dtype
    random: torch.Generator
    device: torch.device

    def ask(self, query: MoEQuery) -> None:
        """Goes on with the options of another query of the same experts."""
        ...

    def inputs(self, count: int) -> tuple[Tensor, Tensor]:
        """Hidden states and router logits."""
        ...

    def draw(self, *shape: int) -> Tensor:
        """Random numbers."""
        ...

    def __call__(self, x: Tensor, logits: Tensor, **more: Any) -> Tensor:
        """The kernel's result."""
        ...

    def check(self, out: Tensor, x: Tensor, logits: Tensor, what: str, **more: Any) -> float:
        """Compares it."""
        ...


def token_cases(candidate: Candidate[MoEQuery], make: Callable[[Any, Asked[MoEQuery]], Moe]) -> Iterator[Case]:
    """The cases of one kernel."""

    def models(candidate: Candidate[MoEQuery], asked: Asked[MoEQuery]) -> str:
        return _models(candidate, make, asked)

    def each(candidate: Candidate[MoEQuery], asked: Asked[MoEQuery]) -> str:
        return _each_number(make(candidate, asked), none_or_more(candidate.spec.bands))

    def magnitudes(candidate: Candidate[MoEQuery], asked: Asked[MoEQuery]) -> str:
        return _magnitudes(make(candidate, asked), counts(candidate.spec.bands, few=True))

    firsts = first_of_each(candidate.served)
    yield from candidate.each("takes any number of tokens", each, firsts)
    yield from candidate.each("chooses among as many experts as models have", models, firsts[:1])
    wide = [asked for asked in candidate.served if asked.dtype != torch.float16]
    yield from candidate.each("tokens of any magnitude are computed", magnitudes, _several(wide))


def _several(served: Sequence[Asked[MoEQuery]]) -> list[Asked[MoEQuery]]:
    """The first query of each weight format, of each activation, and with biases."""
    found: dict[object, Asked[MoEQuery]] = {}
    for asked in served:
        for kind in (asked.query.weight_format, (asked.query.activation, asked.query.gated), asked.query.bias):
            found.setdefault(kind, asked)
    return list({asked.label: asked for asked in found.values()}.values())


def _each_number(moe: Moe, numbers: Sequence[int]) -> str:
    """None, as of a rank that has no requests; and kernels have other code for a few tokens, and for whole tiles."""
    if not numbers:
        raise Skip("its bands have none of them")
    x, logits = moe.inputs(numbers[-1])
    errors = []
    for count in numbers:
        with poisoned():
            out = moe(x[:count], logits[:count])
        errors.append(moe.check(out, x[:count], logits[:count], f"{count} tokens"))
    return agreeing(errors)


def _models(candidate: Candidate[MoEQuery], make: Callable[[Any, Asked[MoEQuery]], Moe], asked: Asked[MoEQuery]) -> str:
    """With and without a selection bias, and with each way to score and to weigh that is served, scaled."""
    errors, tried = [], []
    ways = [*itertools.product(dict.fromkeys(asked.query.scoring for asked in candidate.served), (True, False))]
    for experts, top_k, options in _MODELS:
        plain = replace(asked.query, num_experts=experts, top_k=top_k, num_groups=1, top_groups=1)
        query = next((one for one in (replace(plain, **options), plain) if candidate.serves(one)), None)
        if query is None:
            continue
        query = next((one for one in (replace(query, dtype="float32"), query) if candidate.serves(one)), query)
        moe = make(candidate, replace(asked, query=query))
        bias = torch.randperm(experts, generator=moe.random) / experts - 0.5
        for count in counts(candidate.spec.bands, few=True):
            x, logits = moe.inputs(count)[0], _ranked(moe, count, experts)
            for what, more in {"": {}, ", with a selection bias": {"selection_bias": bias}}.items():
                placed = {name: tensor.to(moe.device) for name, tensor in more.items()}
                out = moe(x, logits, **placed)
                errors.append(moe.check(out, x, logits, f"{count} tokens, {top_k} of {experts} experts{what}", **more))
            tied = _tied(moe, count, experts, top_k)
            errors.append(
                moe.check(moe(x, tied), x, tied, f"{count} tokens, {top_k} of {experts} equally good experts")
            )
        numbers = counts(candidate.spec.bands, few=True)
        for place, (scoring, renormalize) in enumerate(ways):
            other = replace(query, scoring=scoring, renormalize=renormalize, scaling=_SCALED)
            other = other if candidate.serves(other) else replace(other, scaling=1.0)
            if candidate.serves(other):
                moe.ask(other)
                count = numbers[-(place % 2)]
                x, logits = moe.inputs(count)[0], _ranked(moe, count, experts)
                what = f"{count} tokens, {top_k} of {experts} experts, {scoring}, times {other.scaling:g}"
                with poisoned():
                    out = moe(x, logits)
                errors.append(moe.check(out, x, logits, what))
        tried.append(f"{top_k} of {experts}")
    if not tried:
        raise Skip("it serves none of these numbers of experts")
    return f"{', '.join(tried)}; {agreeing(errors)}"


def _ranked(moe: Moe, count: int, experts: int) -> Tensor:
    """Router logits, of which the first ones of each token are far enough apart for any dtype."""
    rank = torch.stack([torch.randperm(experts, generator=moe.random) for _ in range(count)])
    return torch.where(rank < _RANKED, 3 - _APART * rank, -4 - rank / experts).to(moe.dtype)


def _tied(moe: Moe, count: int, experts: int, top_k: int) -> Tensor:
    """Router logits, of which the greatest are equal, and as many as are chosen."""
    rank = torch.stack([torch.randperm(experts, generator=moe.random) for _ in range(count)])
    return torch.where(rank < top_k, 3.0, -4 - rank / experts).to(moe.dtype)


def _magnitudes(moe: Moe, numbers: Sequence[int]) -> str:
    """Tokens of each magnitude, next to much larger and smaller ones, and to zeros; then all of one, as those of a step
    that warms up are zeros. A single token's sum may be small by chance, next to what its terms are rounded to."""
    errors, factors = [], torch.tensor([1.0, _LARGE, 0.0, 1 / _LARGE])
    for count in numbers:
        x, logits = moe.inputs(count)
        x = (x.float() * factors.repeat(count)[:count, None]).to(moe.dtype)
        out = moe(x, logits)
        for first in range(min(count, len(factors))):
            some = slice(first, None, len(factors))
            what = f"tokens {first}, {first + len(factors)}, … of {count}, times {factors[first]:g}"
            errors.append(moe.check(out[some], x[some], logits[some], what))
        for factor in factors.tolist():
            x = (moe.inputs(count)[0].float() * factor).to(moe.dtype)
            errors.append(moe.check(moe(x, logits), x, logits, f"{count} tokens, all times {factor:g}"))
    return agreeing(errors)
