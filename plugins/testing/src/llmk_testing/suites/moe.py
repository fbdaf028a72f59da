"""Mixtures of experts: prepared, then run, against float32 products with what the parameters mean."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from llmk.api import KernelSpec, MoEQuery, PluginError
from llmk.api.matching import match
from llmk.kernel.loader import load_object
from llmk.reference.activations import ACTIVATIONS
from llmk.reference.moe import Activation, MoEExamples, fused_moe
from llmk_testing.bench import Bench
from llmk_testing.candidate import Asked, Candidate, agreeing, dtypes_of
from llmk_testing.case import Case
from llmk_testing.queries import moe_queries
from llmk_testing.recording import check_recorded
from llmk_testing.rows import counts
from llmk_testing.tolerance import Right, check, check_same
from llmk_testing.watch import poisoned
from llmk_testing.weights import formats, stored_experts

_ROUTING = ("top_k", "renormalize", "activation", "scoring", "scaling", "num_groups", "top_groups", "group_scoring")


_ADVICE = (
    "for an activation that the core doesn't know, KernelSpec.examples names an llmk.reference.moe.MoEExamples,"
    " which has it"
)


class Experts(Candidate[MoEQuery]):
    """A kernel of experts, asked with what it declares. ``activations`` are those that it has and the core doesn't."""

    def __init__(self, spec: KernelSpec, bench: Bench) -> None:
        self.activations = _own_activations(spec)

        def serves(make: Callable[..., MoEQuery]) -> bool:
            common: dict[str, Any] = {"platform": bench.facts, "site": spec.kind}
            return any(match(spec, make(dtype=dtype, **common)) for dtype in dtypes_of(spec, bench))

        wanted = moe_queries(formats(bench.registry), serves, self.activations)
        super().__init__(spec, bench, wanted, "" if self.activations else _ADVICE)


class Mixture:
    """A kernel with random experts, which it prepared, and inputs."""

    def __init__(self, candidate: Experts, asked: Asked[MoEQuery]) -> None:
        spec, bench, query = candidate.spec, candidate.bench, asked.query
        self.query, self.dtype, self.device = query, asked.dtype, bench.device
        self.random = bench.random("moe", asked.label)
        experts, hidden, inner = query.num_experts, query.hidden_size, query.intermediate_size
        gate_up = (self.draw(experts, 2 * inner, hidden) / hidden**0.5).to(self.dtype)
        down = (self.draw(experts, hidden, inner) / inner**0.5).to(self.dtype)
        self.stored, self.meaning = stored_experts(bench.registry, query.weight_format, gate_up=gate_up, down=down)
        parameters = dict(self.stored.parameters)
        if query.bias:
            biases = {"gate_up_bias": self.draw(experts, 2 * inner), "down_bias": self.draw(experts, hidden)}
            rounded = {name: bias.to(self.dtype) for name, bias in biases.items()}
            parameters |= rounded
            self.meaning |= {name: bias.float() for name, bias in rounded.items()}
        self.parameters = parameters
        on_device = {name: tensor.to(bench.device) for name, tensor in parameters.items()}
        self.kernel: Callable[..., Tensor] = candidate.load(spec.implementation)
        self.weights = candidate.load(spec.prepare)(on_device) if spec.prepare else on_device
        self.options = {name: getattr(query, name) for name in _ROUTING}
        self.activation = candidate.activations.get(query.activation, query.activation)

    def draw(self, *shape: int) -> Tensor:
        """Random numbers, float32 on the host."""
        return torch.randn(shape, generator=self.random)

    def inputs(self, count: int) -> tuple[Tensor, Tensor]:
        """Hidden states, and logits of which no two of a token are equal or nearly so: of ties in the scores, which is
        taken is nobody's promise."""
        x = self.draw(count, self.query.hidden_size).to(self.dtype)
        experts = self.query.num_experts
        order = torch.stack([torch.randperm(experts, generator=self.random) for _ in range(count)])
        return x, (order * (4 / experts) - 2 + 0.2 * self.draw(count, 1)).to(self.dtype)

    def __call__(self, x: Tensor, logits: Tensor, **more: Any) -> Tensor:
        return self.kernel(x.to(self.device), logits.to(self.device), self.weights, **self.options | more)

    def check(self, out: Tensor, x: Tensor, logits: Tensor, what: str, **more: Any) -> float:
        """Compares."""
        options = self.options | {"activation": self.activation} | more
        right = fused_moe(x.cpu().float(), logits.cpu().float(), self.meaning, **options)
        return check(out, Right(right, self.dtype), what, self.stored.bound)


def cases(spec: KernelSpec, bench: Bench) -> Iterator[Case]:
    """The cases of one kernel of experts."""
    candidate = Experts(spec, bench)
    contracts = {
        "all tokens may choose one expert": _crowded,
        "experts are chosen with a selection bias": _biased,
        "of equal scores any are taken, as many as asked for": _ties,
        "a row's result depends on that row": _apart,
        "inputs stay as they are": _inputs,
    }
    yield from candidate.checks(_agrees, contracts, _recorded, _deterministic)


def _own_activations(spec: KernelSpec) -> Mapping[str, Activation]:
    """Those that a spec's examples have and the core doesn't. Raises PluginError where there is something else."""
    if not spec.examples:
        return {}
    found = load_object(spec.examples, plugin=spec.id)
    if not isinstance(found, MoEExamples):
        hint = "KernelSpec.examples of a MoE kernel names an llmk.reference.moe.MoEExamples"
        raise PluginError(f"{spec.examples} is {found!r}, not the examples of a MoE kernel", hint=hint)
    return {name: activation for name, activation in found.activations.items() if name not in ACTIVATIONS}


def _agrees(candidate: Experts, asked: Asked[MoEQuery]) -> str:
    mixture, errors = Mixture(candidate, asked), []
    for count in counts(candidate.spec.bands, few=not candidate.bench.thorough, thorough=candidate.bench.thorough):
        x, logits = mixture.inputs(count)
        with poisoned():
            out = mixture(x, logits)
        errors.append(mixture.check(out, x, logits, f"{count} tokens"))
    return agreeing(errors)


def _crowded(candidate: Experts, asked: Asked[MoEQuery]) -> str:
    """The same experts for all tokens, first and last ones, so that one has many rows and most have none."""
    mixture, errors = Mixture(candidate, asked), []
    count = max(counts(candidate.spec.bands))
    for favourite in (0, asked.query.num_experts - 1):
        x, logits = mixture.inputs(1)
        x, logits = mixture.draw(count, x.shape[1]).to(x.dtype), logits.repeat(count, 1)
        logits[:, favourite] = 5.0
        out = mixture(x, logits)
        errors.append(mixture.check(out, x, logits, f"{count} tokens that all choose expert {favourite}"))
    return agreeing(errors)


def _biased(candidate: Experts, asked: Asked[MoEQuery]) -> str:
    """The bias chooses and doesn't weigh."""
    mixture, errors = Mixture(candidate, asked), []
    bias = torch.randperm(asked.query.num_experts, generator=mixture.random) * 0.31 - 0.7
    for count in counts(candidate.spec.bands, few=True):
        x, logits = mixture.inputs(count)
        out = mixture(x, logits, selection_bias=bias.to(mixture.device))
        errors.append(mixture.check(out, x, logits, f"{count} tokens with a selection bias", selection_bias=bias))
    return agreeing(errors)


def _ties(candidate: Experts, asked: Asked[MoEQuery]) -> str:
    """All experts are the same one, so that it makes no difference which are taken, but for how many."""
    mixture = Mixture(candidate, asked)
    alike = {name: tensor[:1].expand_as(tensor).contiguous() for name, tensor in mixture.parameters.items()}
    alike = {name: tensor.to(mixture.device) for name, tensor in alike.items()}
    mixture.weights = candidate.load(candidate.spec.prepare)(alike) if candidate.spec.prepare else alike
    mixture.meaning = {name: tensor[:1].expand_as(tensor) for name, tensor in mixture.meaning.items()}
    x, logits = mixture.inputs(min(counts(candidate.spec.bands, few=True)))
    logits = torch.zeros_like(logits)
    return agreeing([mixture.check(mixture(x, logits), x, logits, "tokens that like all experts equally")])


def _apart(candidate: Experts, asked: Asked[MoEQuery]) -> None:
    """What padding holds may be anything, and stays in its row."""
    mixture = Mixture(candidate, asked)
    for count in counts(candidate.spec.bands, few=True):
        if count > 1:
            x, logits = mixture.inputs(count)
            x[count // 2] = logits[count // 2] = torch.nan
            out = mixture(x, logits).cpu()
            others = [row for row in range(count) if row != count // 2]
            what = f"the other rows of {count}, of which row {count // 2} is NaN,"
            mixture.check(out[others], x[others], logits[others], what)


def _inputs(candidate: Experts, asked: Asked[MoEQuery]) -> None:
    mixture = Mixture(candidate, asked)
    for count in counts(candidate.spec.bands, few=True):
        given = mixture.inputs(count)
        x, logits = (tensor.to(mixture.device, copy=True) for tensor in given)
        out = mixture(x, logits)
        for name, after, before in zip(("x", "router_logits"), (x, logits), given, strict=True):
            check_same(after, before, f"{name}, which is an input")
        assert out.untyped_storage().data_ptr() != x.untyped_storage().data_ptr(), "the result lies in x's memory"
        again = mixture(x, logits)
        mixture.check(out, *given, "a result after the kernel was called again")
        mixture.check(again, *given, "the second call")


def _recorded(candidate: Experts, asked: Asked[MoEQuery]) -> str:
    """Replayed for tokens that choose other experts."""
    mixture = Mixture(candidate, asked)
    inputs = [mixture.inputs(counts(candidate.spec.bands, few=True)[-1]) for _ in range(2)]
    x, logits = (tensor.to(mixture.device, copy=True) for tensor in inputs[0])

    def load(i: int) -> None:
        x.copy_(inputs[i][0])
        logits.copy_(inputs[i][1])

    def judge(i: int, out: Tensor) -> float:
        return mixture.check(out, *inputs[i], "a replay for other tokens")

    return check_recorded(candidate.bench, lambda: mixture(x, logits), load, judge, len(inputs))


def _deterministic(candidate: Experts, asked: Asked[MoEQuery]) -> None:
    """Whichever tokens its experts compute besides."""
    mixture = Mixture(candidate, asked)
    x, logits = mixture.inputs(40)
    whole = mixture(x, logits)
    for count in (1, 2, 7, 39):
        rows = torch.randperm(40, generator=mixture.random)[:count]
        out = mixture(x[rows], logits[rows])
        check_same(out, whole[rows.to(out.device)], f"tokens {rows.tolist()} of 40, in a batch of {count} and of all")
