"""Rows of an op: small and large numbers, NaN in another row, and the bits of a row in other batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from llmk.api import OpQuery
from llmk_testing.candidate import Asked, Candidate, agreeing
from llmk_testing.case import Case, Skip
from llmk_testing.op_under_test import HALVES, Make, Op, widened
from llmk_testing.rows import counts, each_number
from llmk_testing.tolerance import Right, check, check_same
from llmk_testing.trees import mapped, tensors
from llmk_testing.watch import poisoned

_SCALES = (1e-3, 100.0)
_MANY, _MOST = 66_001, 1 << 22
"""Rows, more than 16 bits count, and the most elements that they have."""
_VECTOR = 32
"""Elements of a row that are more than one vector."""
_LARGE = 1030
"""Rows of a batch that is larger than most limits by which kernels choose."""
_ENOUGH, _LEAN = 64, 0.15
"""Elements of a row, and the share of the dtype's precision that their errors may lean to one side: four standard
deviations of what rounding twice gives."""


def cases(
    candidate: Candidate[OpQuery], make: Make, served: Sequence[Asked[OpQuery]], *, narrowed: bool = False
) -> Iterator[Case]:
    """The cases of an op whose results have a row for each row of the arguments. Where it rounds rows to a format of
    few bits (``narrowed``), their errors may lean to a side."""
    for asked in served:
        for scale in _SCALES:
            name = f"agrees with the reference on numbers {scale:g} times as large: {asked.label}"
            yield candidate.case(name, partial(_scaled, candidate, make, asked, scale))
        if asked.dtype in HALVES and not narrowed:
            yield candidate.case(f"errors lean to no side: {asked.label}", partial(_unbiased, candidate, make, asked))
    for asked in served[:2]:
        yield candidate.case(f"rows don't affect each other: {asked.label}", partial(_apart, candidate, make, asked))
        yield candidate.case(f"takes any number of rows: {asked.label}", partial(_each_number, candidate, make, asked))
        yield candidate.case(f"takes no rows: {asked.label}", partial(_none, make, asked))
    if served:
        yield candidate.case("takes many rows", partial(_many, candidate, make, served))


def _elements(op: Op) -> int:
    """Of a row."""
    arguments = op.arguments(1)
    return sum(arguments[place].numel() for place in op.by_row)


def _each_number(candidate: Candidate[OpQuery], make: Make, asked: Asked[OpQuery]) -> str:
    """Kernels have other code for a few rows, and for whole tiles."""
    numbers = each_number(candidate.spec.bands)
    if not numbers:
        raise Skip("its bands have none of them")
    op, errors = make(asked), []
    for rows in numbers:
        arguments = op.arguments(rows)
        given = op.placed(arguments)
        with poisoned():
            result = op.run(*given, **op.on_device)
        errors.append(op.check(result, given, arguments, f"{rows} rows"))
    return agreeing(errors)


def _none(make: Make, asked: Asked[OpQuery]) -> str:
    """As of an expert that no token chose. They give no rows."""
    op = make(asked)
    arguments = tuple(value[:0] if place in op.by_row else value for place, value in enumerate(op.arguments(1)))
    given = op.placed(arguments)
    return agreeing([op.check(op.run(*given, **op.on_device), given, arguments, "no rows")])


def _many(candidate: Candidate[OpQuery], make: Make, served: Sequence[Asked[OpQuery]]) -> str:
    """Of the query whose rows have the fewest elements, and of the smallest ones of which whole vectors are made, and
    are not: more than 16 bits count, or as many as have so many elements."""
    every, errors = sorted(map(make, served), key=_elements), []
    whole = next((op for op in every if _elements(op) >= _VECTOR and not _leftover(op)), every[0])
    uneven = next((op for op in every if _elements(op) >= _VECTOR and _leftover(op)), every[0])
    for op in dict.fromkeys((every[0], whole, uneven)):
        most = max(1, min(_MANY, _MOST // _elements(op)))
        rows = max(min(most, band.stop - 1) for band in candidate.spec.bands)
        arguments = op.arguments(rows)
        given = op.placed(arguments)
        errors.append(op.check(op.run(*given, **op.on_device), given, arguments, f"{rows} rows"))
    return agreeing(errors) + ("" if any(map(_leftover, every)) else "; no example has a size that 4 does not divide")


def _leftover(op: Op) -> bool:
    """Whether 4 does not divide the elements of a row of some argument."""
    arguments = op.arguments(1)
    return any(arguments[place].shape[-1] % 4 for place in op.by_row if arguments[place].dim() > 1)


def _scaled(candidate: Candidate[OpQuery], make: Make, asked: Asked[OpQuery], scale: float) -> str:
    """Rows of small and of large numbers: constants that are added show in the first, overflows in the second. A number
    for each row, such as a temperature, is a parameter and stays."""
    op = make(asked)
    arguments = list(op.arguments(min(33, counts(candidate.spec.bands)[-1])))
    for place in op.by_row:
        if arguments[place].is_floating_point() and arguments[place].dim() > 1:
            arguments[place] = arguments[place] * scale
    given = tuple(arguments)
    narrow = [result for result in tensors(op.by_reference(given)[0]) if result.is_floating_point()]
    ruled_out = float("-inf")  # what masks write
    if not all(bool((result.isfinite() | (result == ruled_out)).all()) for result in narrow):
        raise Skip("the reference overflows, too")
    placed = op.placed(given)
    return agreeing([op.check(op.run(*placed, **op.on_device), placed, given, f"numbers {scale:g} times as large")])


def _unbiased(candidate: Candidate[OpQuery], make: Make, asked: Asked[OpQuery]) -> str:
    """An intermediate number of a row that is rounded to 16 bits shifts the whole row to or from zero, which the sum of
    its errors shows: it may be no larger than a share of the dtype's precision, or than twice the reference's own."""
    op, unit = make(asked), torch.finfo(asked.dtype).eps
    arguments = op.arguments(min(65, counts(candidate.spec.bands)[-1]))
    wide = tensors(op.by_reference(mapped(widened, arguments))[0])
    worst = 0.0
    for found, own, right in zip(
        tensors(op.run(*op.placed(arguments), **op.on_device)),
        tensors(op.by_reference(arguments)[0]),
        wide,
        strict=True,
    ):
        if found.dtype == asked.dtype and found.dim() == 2 and found.shape[1] >= _ENOUGH:
            lean, usual = (_lean(each.cpu(), right) for each in (found, own))
            worst = max(worst, lean / unit)
            limit = max(_LEAN * unit, 2 * usual)
            assert lean <= limit, f"the errors of a row are {lean:.1e} on average, {limit:.1e} at most"
    return f"{worst:.2f} of the precision"


def _lean(found: Tensor, right: Tensor) -> float:
    """By how much the numbers of a row are too large or too small, as a share of their sum; the most of all rows. A
    number near zero, which sums may cancel to, counts by its size."""
    wide = right.double()
    error = (found.double() - wide) * wide.sign()
    return float((error.sum(1) / wide.abs().sum(1)).nan_to_num().abs().max())


def _apart(candidate: Candidate[OpQuery], make: Make, asked: Asked[OpQuery]) -> None:
    """What floating-point rows of padding hold may be anything, and stays in its row."""
    op = make(asked)
    for rows in counts(candidate.spec.bands, few=True):
        arguments = op.arguments(rows)
        row = rows // 2
        spoilt = mapped(torch.clone, arguments)
        for place in op.by_row:
            if rows > 1 and spoilt[place].is_floating_point():
                spoilt[place][row] = torch.nan
        whole, other = (tensors(op.run(*op.placed(given), **op.on_device)) for given in (arguments, spoilt))
        kept = [i for i in range(rows) if i != row]
        for i, (expected, actual) in enumerate(zip(whole, other, strict=True)):
            right = Right(expected.cpu()[kept], expected.dtype)
            check(actual[kept], right, f"result {i}: the other rows of {rows}, of which row {row} is NaN")


def deterministic(make: Make, asked: Asked[OpQuery]) -> None:
    """Kernels choose another algorithm by the number of rows."""
    _same_rows(make(asked), 70, (1, 2, 3, 17, 69))
    _same_rows(make(asked), _LARGE, (1, 33, _LARGE // 4, _LARGE // 2))


def _same_rows(op: Op, most: int, counts: Sequence[int]) -> None:
    arguments = op.arguments(most)
    whole = tensors(op.run(*op.placed(arguments), **op.on_device))
    for count in counts:
        rows = op.draw.order(most)[:count]
        some = tuple(value[rows] if i in op.by_row else value for i, value in enumerate(arguments))
        for i, part in enumerate(tensors(op.run(*op.placed(some), **op.on_device))):
            check_same(
                part,
                whole[i][rows.to(part.device)],
                f"result {i}: rows {rows[:70].tolist()} of {most} as a batch of {count}",
            )
