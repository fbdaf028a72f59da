"""Sums over many inputs, in dtypes of 16 bits, as linear kernels make them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from llmk.api import LinearQuery
from llmk_testing.candidate import Asked, Candidate, agreeing
from llmk_testing.case import Case
from llmk_testing.rows import counts
from llmk_testing.suites.prepared import first_of_each
from llmk_testing.suites.prepared_linear import PreparedLinear
from llmk_testing.weights import stored

_LATE = 2e-3
"""Error of a sum, as a share of the sum of the magnitudes of what is added: sums in float32 have 1e-6, activations that
are rounded to 8 bits some 1e-4."""


def sum_cases(candidate: Candidate[LinearQuery]) -> Iterator[Case]:
    """The cases of one kernel."""
    asked = _wide_sums(candidate)
    yield from candidate.each("sums of one sign are those of float32", _one_sign, asked)
    yield from candidate.each("sums that cancel late are those of float32", _late, asked)


def _wide_sums(candidate: Candidate[LinearQuery]) -> list[Asked[LinearQuery]]:
    """Of each weight format, a query with many inputs, in each dtype of 16 bits: those that the kernel names, too, as
    torch computes them on any processor."""
    found, declared = [], candidate.spec.needs.dtypes if candidate.bench.device.type == "cpu" else ()
    for asked in first_of_each(candidate.served):
        for dtype in dict.fromkeys((*candidate.dtypes, *declared)):
            for inputs in (57344, 16384, 4096, 1024, asked.query.in_features):
                query = replace(asked.query, dtype=dtype, in_features=inputs, out_features=64, bias=False)
                if dtype in ("float16", "bfloat16") and candidate.serves(query):
                    label = f"{inputs} to 64, {query.weight_format}, {dtype}"
                    found.append(Asked(label, query))
                    break
    return found


def _one_sign(candidate: Candidate[LinearQuery], asked: Asked[LinearQuery]) -> str:
    """Sums in 16 bits stop growing, and those of 8-bit numbers overflow float16 before they are scaled."""
    query = asked.query
    random = candidate.bench.random("one sign", asked.label)
    weight = (1 + torch.rand(query.out_features, query.in_features, generator=random)).to(asked.dtype)
    if query.weight_format != "plain":
        weight = weight / query.in_features
    kernel = PreparedLinear(candidate, asked, stored(candidate.bench.registry, query.weight_format, weight))
    errors = []
    for count in counts(candidate.spec.bands, few=True):
        x = (1 + torch.rand(count, query.in_features, generator=random)).to(kernel.dtype)
        if query.weight_format == "plain":
            x = x / query.in_features
        errors.append(kernel.check(kernel(x.to(kernel.device)), x, f"{count} rows of one sign"))
    return agreeing(errors)


def _late(candidate: Candidate[LinearQuery], asked: Asked[LinearQuery]) -> str:
    """Sums of a part of the inputs that are beyond float16, and that the rest of the inputs makes small again."""
    query = asked.query
    random = candidate.bench.random("cancel late", asked.label)
    half = query.in_features // 2
    weight = (1 + torch.rand(query.out_features, query.in_features, generator=random)).to(asked.dtype)
    kernel = PreparedLinear(candidate, asked, stored(candidate.bench.registry, query.weight_format, weight))
    errors = []
    for count in counts(candidate.spec.bands, few=True):
        x = 100.0 * (1 + torch.rand(count, query.in_features, generator=random))
        x[:, half:] *= -1
        x = x.to(kernel.dtype)
        # What cancels is large, so the sum of what is added is what errors are compared with.
        added = x.abs().double() @ kernel.stored.meaning.abs().double().T
        out = kernel(x.to(kernel.device)).cpu().double()
        error = float(((out - kernel.right(x)).abs() / added).max())
        assert error <= _LATE, f"{count} rows: an error of {error:.1e} of the numbers that are added, {_LATE:g} at most"
        errors.append(error)
    return agreeing(errors)
