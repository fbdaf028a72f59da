"""The suite of MoE kernels: prepare and run, compared with float32 GEMMs with the weights that the parameters
represent."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from inspect import Parameter, signature
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from llmk.api import KernelSpec, MoEKernel, MoEQuery, PluginError
from llmk.api.matching import match
from llmk.api.query import expanded_size, moe_options
from llmk.kernel.loader import load_object
from llmk.reference.activations import ACTIVATIONS, PLAIN_ACTIVATIONS
from llmk.reference.moe import SCORINGS, MoEExamples, fused_moe
from llmk_testing.bench import Bench
from llmk_testing.candidate import Asked, Candidate, agreeing, served_by
from llmk_testing.case import Case, Skip
from llmk_testing.queries import moe_queries
from llmk_testing.recording import check_recorded, is_portable
from llmk_testing.rows import counts
from llmk_testing.suites import kernel_costs
from llmk_testing.suites.moe_tokens import token_cases
from llmk_testing.suites.prepared import (
    check_caller,
    check_held,
    check_layers,
    check_prepare,
    first_of_each,
    largest,
    several,
    smallest,
)
from llmk_testing.tolerance import Right, check, check_same
from llmk_testing.watch import poisoned
from llmk_testing.weights import formats, forms, stored_experts

_ADVICE = (
    "for an activation, a scoring or facts that the core doesn't know, KernelSpec.examples names an"
    " llmk.reference.moe.MoEExamples, which has them"
)

_MANY, _MORE = 3001, 33_001
"""Tokens of a long prompt's chunk, and of several; with plain weights more than a signed integer of 16 bits counts."""
_EXPERTS = 320
_MOST = 0.5
"""Share of all experts' multiplications for 1 of 32, whose tokens may fill up tiles."""
_UNLIKE: tuple[Callable[[MoEQuery], Any], ...] = (
    lambda query: query.weight_format,
    lambda query: query.bias,
    lambda query: query.group_scoring,
    lambda query: query.gated,
    lambda query: query.scoring,
)
"""Properties of queries, for each value of which the contracts are tried."""

DEFAULTS = {
    name: parameter.default
    for name, parameter in signature(MoEKernel.__call__).parameters.items()
    if parameter.default is not Parameter.empty and name != "selection_bias"
}
"""Those of the contract's options that queries have."""


class Experts(Candidate[MoEQuery]):
    """A MoE kernel under test. ``own`` is what it supports but the core does not define."""

    def __init__(self, spec: KernelSpec, bench: Bench) -> None:
        self.own = _own(spec)
        wanted = moe_queries(formats(bench.registry), served_by(spec, bench), self.own)
        super().__init__(spec, bench, wanted, "" if spec.examples else _ADVICE)


class PreparedMoE:
    """A kernel with random prepared experts, and its inputs."""

    def __init__(self, candidate: Experts, asked: Asked[MoEQuery], form: str = "", number: int = 0) -> None:
        spec, bench, query = candidate.spec, candidate.bench, asked.query
        self.dtype, self.device, self._own = asked.dtype, bench.device, candidate.own
        self.random = bench.random("moe", asked.label, number)
        experts, hidden, inner = query.num_experts, query.hidden_size, query.intermediate_size
        gate_up = (self.draw(experts, expanded_size(query), hidden) / hidden**0.5).to(self.dtype)
        down = (self.draw(experts, hidden, inner) / inner**0.5).to(self.dtype)
        self.stored, self.meaning = stored_experts(
            bench.registry, query.weight_format, form, self.random, gate_up=gate_up, down=down
        )
        parameters = dict(self.stored.parameters)
        if query.bias:
            biases = {"gate_up_bias": self.draw(experts, expanded_size(query)), "down_bias": self.draw(experts, hidden)}
            rounded = {name: bias.to(self.dtype) for name, bias in biases.items()}
            parameters |= rounded
            self.meaning |= {name: bias.float() for name, bias in rounded.items()}
        self.parameters = {name: tensor.to(bench.device) for name, tensor in parameters.items()}
        self.kernel: Callable[..., Tensor] = candidate.load(spec.implementation)
        self.prepare: Callable[[dict[str, Tensor]], Any] = candidate.load(spec.prepare) if spec.prepare else dict
        self.weights = self.prepare({name: tensor.clone() for name, tensor in self.parameters.items()})
        self.ask(query)

    def ask(self, query: MoEQuery) -> None:
        """Goes on with the options of another query of the same experts."""
        self.query, self.options, own = query, moe_options(query), self._own
        self.meant = {
            "activation": own.activations.get(query.activation, query.activation),
            "scoring": own.scorings.get(query.scoring, query.scoring),
        }
        self.oracle = own.oracle if own.oracle and query.facts in own.facts else fused_moe

    def draw(self, *shape: int) -> Tensor:
        """Random numbers, float32 on the host."""
        return torch.randn(shape, generator=self.random)

    def inputs(self, count: int) -> tuple[Tensor, Tensor]:
        """Hidden states, and router logits without near ties, because the choice among equal scores is undefined."""
        x = self.draw(count, self.query.hidden_size).to(self.dtype)
        experts = self.query.num_experts
        order = torch.stack([torch.randperm(experts, generator=self.random) for _ in range(count)])
        return x, (order * (4 / experts) - 2 + 0.2 * self.draw(count, 1)).to(self.dtype)

    def __call__(self, x: Tensor, logits: Tensor, **more: Any) -> Tensor:
        return self.kernel(x.to(self.device), logits.to(self.device), self.weights, **self.options | more)

    def check(self, out: Tensor, x: Tensor, logits: Tensor, what: str, **more: Any) -> float:
        """Compares the result with the expected one, but for tokens all of whose scores are too small for float32."""
        options = self.options | self.meant | more
        right = self.oracle(x.cpu().float(), logits.cpu().float(), self.meaning, **options)
        undefined = (right.isnan().any(-1) & ~x.cpu().isnan().any(-1) & ~logits.cpu().isnan().any(-1)).nonzero()[:, 0]
        right[undefined] = 0
        return check(out.index_fill(0, undefined.to(out.device), 0), Right(right, self.dtype), what, self.stored.bound)


def cases(spec: KernelSpec, bench: Bench) -> Iterator[Case]:
    """The cases of one MoE kernel."""
    candidate = Experts(spec, bench)
    contracts = {
        "all tokens may choose one expert": _crowded,
        "ties are broken in any way, with top_k experts": _ties,
        "rows don't affect each other": _apart,
        "options that are left out are at their defaults": _left_out,
        "inputs stay as they are": _inputs,
        "router logits of any size": _far,
        "its tensors are the caller's": _caller,
        "parameters stay as they are when they are prepared": _prepared,
        "layers of one shape are apart": _layers,
    }
    some = several(candidate.served, _UNLIKE)
    yield from candidate.checks(_agrees, contracts, _recorded, _deterministic, some)
    # Which may change the choice.
    unlike = (*_UNLIKE, lambda query: tuple(query.facts.items()), lambda query: (query.num_groups, query.group_scoring))
    yield from candidate.each("experts are chosen with a selection bias", _biased, several(candidate.served, unlike))
    yield from candidate.each("takes many tokens", _many, smallest(candidate.served, _experts_size))
    yield from token_cases(candidate, PreparedMoE)
    firsts = first_of_each(candidate.served)
    yield from candidate.each(
        "a layer holds little more than its parameters", _held, largest(candidate.served, _experts_size)
    )
    yield from kernel_costs.moe_cases(candidate, PreparedMoE)
    yield from candidate.each("tokens pass through the experts that they chose", _sparse, firsts)
    yield from candidate.each("sums over many experts are those of float32", _summed, firsts[:1])
    whole = [asked for asked in candidate.served if not _sizes(asked.query) % 128]
    first = {asked.query.weight_format: asked for asked in reversed(whole)}
    for stored_as, asked in first.items():
        for form, _ in forms(stored_as, 1, 128, torch.Generator()):
            # The inputs of experts are in order, and their scales have a dimension for inputs.
            if not re.search("another order|one dimension", form):
                yield candidate.case(f"takes {form}: {asked.label}", partial(_form, candidate, asked, form))


def _experts_size(query: MoEQuery) -> int:
    return query.num_experts * query.hidden_size * query.intermediate_size


def _sizes(query: MoEQuery) -> int:
    return query.hidden_size | query.intermediate_size


def _own(spec: KernelSpec) -> MoEExamples:
    """What a spec's examples have that the core does not define. Raises PluginError if the examples have another
    type."""
    if not spec.examples:
        return MoEExamples()
    found = load_object(spec.examples, plugin=spec.id)
    if not isinstance(found, MoEExamples):
        hint = "KernelSpec.examples of a MoE kernel names an llmk.reference.moe.MoEExamples"
        raise PluginError(f"{spec.examples} is {found!r}, not the examples of a MoE kernel", hint=hint)
    known = {*ACTIVATIONS, *PLAIN_ACTIVATIONS}
    return replace(
        found,
        activations={name: activation for name, activation in found.activations.items() if name not in known},
        scorings={name: scoring for name, scoring in found.scorings.items() if name not in SCORINGS},
    )


def _agrees(candidate: Experts, asked: Asked[MoEQuery]) -> str:
    moe, errors = PreparedMoE(candidate, asked), []
    for count in counts(candidate.spec.bands, few=not candidate.bench.thorough, thorough=candidate.bench.thorough):
        x, logits = moe.inputs(count)
        with poisoned():
            out = moe(x, logits)
        errors.append(moe.check(out, x, logits, f"{count} tokens"))
    return agreeing(errors)


def _form(candidate: Experts, asked: Asked[MoEQuery], form: str) -> str:
    """One of the forms that the weight format leaves open."""
    moe, errors = PreparedMoE(candidate, asked, form), []
    for count in counts(candidate.spec.bands, few=True):
        x, logits = moe.inputs(count)
        errors.append(moe.check(moe(x, logits), x, logits, f"{count} tokens"))
    return agreeing(errors)


def _crowded(candidate: Experts, asked: Asked[MoEQuery]) -> str:
    """All tokens choose the same experts, first and last ones, so that few have all rows and most have none."""
    moe, errors = PreparedMoE(candidate, asked), []
    count = max(counts(candidate.spec.bands))
    for favourite in (0, asked.query.num_experts - 1):
        x, logits = moe.inputs(1)
        x, logits = moe.draw(count, x.shape[1]).to(x.dtype), logits.repeat(count, 1)
        logits[:, favourite] = 5.0
        out = moe(x, logits)
        errors.append(moe.check(out, x, logits, f"{count} tokens that all choose expert {favourite}"))
    return agreeing(errors)


def _biased(candidate: Experts, asked: Asked[MoEQuery]) -> str:
    """The bias affects the choice, but not the weights."""
    moe, errors = PreparedMoE(candidate, asked), []
    bias = torch.randperm(asked.query.num_experts, generator=moe.random) * 0.31 - 0.7
    for count in counts(candidate.spec.bands, few=True):
        x, logits = moe.inputs(count)
        for what, given in {"a selection bias": bias, "a selection bias far below all scores": bias - 8}.items():
            placed = given.to(moe.device, copy=True)
            out = moe(x, logits, selection_bias=placed)
            check_same(placed, given, "the selection bias, which is an input")
            errors.append(moe.check(out, x, logits, f"{count} tokens with {what}", selection_bias=given))
    return agreeing(errors)


def _left_out(candidate: Experts, asked: Asked[MoEQuery]) -> str:
    """Options with a default in the contract, which :class:`~llmk.api.MoEKernel` documents."""
    neutral = {name: value for name, value in DEFAULTS.items() if getattr(asked.query, name) == value}
    moe, errors = PreparedMoE(candidate, asked), []
    moe.options = {name: value for name, value in moe.options.items() if name not in neutral}
    for count in counts(candidate.spec.bands, few=True):
        x, logits = moe.inputs(count)
        errors.append(moe.check(moe(x, logits), x, logits, f"{count} tokens, without {', '.join(neutral)}"))
    return agreeing(errors)


def _ties(candidate: Experts, asked: Asked[MoEQuery]) -> str:
    """All experts are equal, so that only the number of chosen experts matters."""
    moe = _alike(candidate, asked)
    x, logits = moe.inputs(min(counts(candidate.spec.bands, few=True)))
    return agreeing([moe.check(moe(x, logits.zero_()), x, logits, "tokens with equal scores for all experts")])


def _apart(candidate: Experts, asked: Asked[MoEQuery]) -> None:
    """Padding may contain anything, which must not affect other rows."""
    moe = PreparedMoE(candidate, asked)
    for count in counts(candidate.spec.bands, few=True):
        if count > 1:
            x, logits = moe.inputs(count)
            x[count // 2] = logits[count // 2] = torch.nan
            out = moe(x, logits).cpu()
            others = [row for row in range(count) if row != count // 2]
            what = f"the other rows of {count}, of which row {count // 2} is NaN,"
            moe.check(out[others], x[others], logits[others], what)


def _inputs(candidate: Experts, asked: Asked[MoEQuery]) -> None:
    moe = PreparedMoE(candidate, asked)
    for count in counts(candidate.spec.bands, few=True):
        given = moe.inputs(count)
        x, logits = (tensor.to(moe.device, copy=True) for tensor in given)
        out = moe(x, logits)
        for name, after, before in zip(("x", "router_logits"), (x, logits), given, strict=True):
            check_same(after, before, f"{name}, which is an input")
        assert out.untyped_storage().data_ptr() != x.untyped_storage().data_ptr(), "the result lies in x's memory"
        other = moe.inputs(count)
        between = moe(*other)
        again = moe(x, logits)
        moe.check(out, *given, "a result after the kernel was called for other tokens")
        moe.check(between, *other, "the result for other tokens, after the kernel was called again")
        moe.check(again, *given, "the second call")


def _far(candidate: Experts, asked: Asked[MoEQuery]) -> str:
    """Whose exponentials no float32 holds. Sigmoids far above 0 would all be 1, and the choice among them undefined."""
    moe, errors = PreparedMoE(candidate, asked), []
    places = (
        {"far below 0": -100.0} if asked.query.scoring == "sigmoid" else {"far below 0": -190.0, "far above": 128.0}
    )
    for count in counts(candidate.spec.bands, few=True):
        x, logits = moe.inputs(count)
        order = logits.float().argsort(dim=-1).argsort(dim=-1)
        for what, place in places.items():
            far = (place + order * (60 / asked.query.num_experts)).to(logits.dtype)
            errors.append(moe.check(moe(x, far), x, far, f"{count} tokens, logits {what}"))
    return agreeing(errors)


def _count(candidate: Experts) -> int:
    return counts(candidate.spec.bands, few=True)[-1]


def _caller(candidate: Experts, asked: Asked[MoEQuery]) -> None:
    check_caller(PreparedMoE(candidate, asked), _count(candidate), candidate.bench.device)


def _prepared(candidate: Experts, asked: Asked[MoEQuery]) -> None:
    check_prepare(PreparedMoE(candidate, asked), _count(candidate))


def _layers(candidate: Experts, asked: Asked[MoEQuery]) -> None:
    check_layers(lambda number: PreparedMoE(candidate, asked, number=number), _count(candidate))


def _held(candidate: Experts, asked: Asked[MoEQuery]) -> str:
    return check_held(lambda number: PreparedMoE(candidate, asked, number=number), candidate.spec.bands)


def _many(candidate: Experts, asked: Asked[MoEQuery]) -> str:
    most = _MORE if asked.query.weight_format == "plain" else _MANY
    moe, count = PreparedMoE(candidate, asked), max(min(most, band.stop - 1) for band in candidate.spec.bands)
    x, logits = moe.inputs(count)
    return agreeing([moe.check(moe(x, logits), x, logits, f"{count} tokens")])


def _sparse(candidate: Experts, asked: Asked[MoEQuery]) -> str:
    """Counts the multiplications of torch's operators for 1 of 32 experts, whose tokens may fill up tiles."""
    count, query = 512, replace(asked.query, num_experts=32, top_k=1, num_groups=1, top_groups=1)
    if not match(candidate.spec, query) or max(band.stop for band in candidate.spec.bands) <= count:
        raise Skip(f"it does not serve {count} tokens with 1 of 32 experts")
    moe = PreparedMoE(candidate, replace(asked, query=query))
    x, logits = moe.inputs(count)
    with FlopCounterMode(display=False) as counter:
        out = moe(x, logits)
    moe.check(out, x, logits, f"{count} tokens")
    all_experts = 2 * count * 32 * query.hidden_size * (expanded_size(query) + query.intermediate_size)
    done = counter.get_total_flops() / all_experts
    assert done <= _MOST, f"1 of 32 experts takes {done:.0%} of all experts' multiplications"
    return f"{done:.0%} of the multiplications of all experts"


def _summed(candidate: Experts, asked: Asked[MoEQuery]) -> str:
    """All experts are equal and chosen, so that a token's sum has equal parts. In 16 bits it would stop growing."""
    query = replace(asked.query, num_experts=_EXPERTS, top_k=_EXPERTS, num_groups=1, top_groups=1)
    if not match(candidate.spec, query):
        raise Skip(f"it does not serve {_EXPERTS} of {_EXPERTS} experts")
    moe = _alike(candidate, replace(asked, query=query))
    x, logits = moe.inputs(min(counts(candidate.spec.bands, few=True)))
    return agreeing([moe.check(moe(x, logits.zero_()), x, logits, f"tokens of {_EXPERTS} equal experts")])


def _alike(candidate: Experts, asked: Asked[MoEQuery]) -> PreparedMoE:
    """A kernel whose experts all have the weights of one."""
    moe = PreparedMoE(candidate, replace(asked, query=replace(asked.query, num_experts=1)))
    count = asked.query.num_experts
    moe.ask(asked.query)
    moe.parameters = {name: tensor.repeat_interleave(count, 0) for name, tensor in moe.parameters.items()}
    moe.weights = moe.prepare(dict(moe.parameters))
    moe.meaning = {name: tensor.expand(count, *tensor.shape[1:]) for name, tensor in moe.meaning.items()}
    return moe


def _recorded(candidate: Experts, asked: Asked[MoEQuery]) -> str:
    """The replay has tokens that choose other experts."""
    moe = PreparedMoE(candidate, asked)
    inputs = [moe.inputs(counts(candidate.spec.bands, few=True)[-1]) for _ in range(2)]
    x, logits = (tensor.to(moe.device, copy=True) for tensor in inputs[0])

    def load(i: int) -> None:
        x.copy_(inputs[i][0])
        logits.copy_(inputs[i][1])

    def judge(i: int, out: Tensor) -> float:
        return moe.check(out, *inputs[i], "a replay for other tokens")

    return check_recorded(
        candidate.bench, lambda: moe(x, logits), load, judge, len(inputs), portable=is_portable(candidate.spec)
    )


def _deterministic(candidate: Experts, asked: Asked[MoEQuery]) -> None:
    """With any other tokens for the same experts."""
    moe = PreparedMoE(candidate, asked)
    x, logits = moe.inputs(40)
    whole = moe(x, logits)
    for count in (1, 2, 7, 39):
        rows = torch.randperm(40, generator=moe.random)[:count]
        out = moe(x[rows], logits[rows])
        check_same(out, whole[rows.to(out.device)], f"tokens {rows.tolist()} of 40, in a batch of {count} and of all")
