"""Calls of an op after each other, and arguments of other forms: more dimensions, and rows unlike random ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from llmk.api import OpQuery, TokenBand
from llmk.reference.op_examples import OpExamples
from llmk_testing.candidate import Asked, Candidate, agreeing
from llmk_testing.case import Case
from llmk_testing.op_under_test import HALVES, Make, Op
from llmk_testing.rows import counts
from llmk_testing.tolerance import BOUNDS, check_same
from llmk_testing.trees import mapped, tensors
from llmk_testing.watch import poisoned, tensors_kept

_CALLS = 8
_SHAPES = ((4, 3), (2, 1, 6), (12, 1))
"""Dimensions of twelve rows."""
_OUTLIER = 1e4


def cases(candidate: Candidate[OpQuery], make: Make, served: Sequence[Asked[OpQuery]]) -> Iterator[Case]:
    """Calls after each other, of each of ``served``."""
    checks: dict[str, Callable[..., str | None]] = {
        "results stay when it is called again": _stays,
        "keeps nothing of its calls": _keeps,
    }
    for name, run in checks.items():
        for asked in served:
            yield candidate.case(f"{name}: {asked.label}", partial(run, candidate, make, asked))


def form_cases(
    candidate: Candidate[OpQuery], make: Make, served: Sequence[Asked[OpQuery]], examples: OpExamples
) -> Iterator[Case]:
    """Arguments with the strides and in the dtypes that ``OpExamples.strided`` and ``OpExamples.float32`` allow."""
    for asked in served:
        if examples.strided:
            yield candidate.case(f"takes any strides: {asked.label}", partial(_strided, candidate, make, asked))
        if examples.float32 and asked.dtype in HALVES:
            yield candidate.case(f"takes float32 with {asked.label}", partial(_mixed, candidate, make, asked))


def leading_cases(candidate: Candidate[OpQuery], make: Make, served: Sequence[Asked[OpQuery]]) -> Iterator[Case]:
    """Arguments of other forms, of each of ``served``, for an op that has ``OpExamples.leading``."""
    for asked in served:
        yield odd_case(candidate, make, asked)
        if _within(candidate.spec.bands, 12):
            yield candidate.case(f"takes rows of any dimensions: {asked.label}", partial(_deep, make, asked))


def odd_case(candidate: Candidate[OpQuery], make: Make, asked: Asked[OpQuery]) -> Case:
    """Rows of zeros and others that are unlike random ones."""
    return candidate.case(f"takes rows of odd numbers: {asked.label}", partial(_odd, candidate, make, asked))


def _stays(candidate: Candidate[OpQuery], make: Make, asked: Asked[OpQuery]) -> str:
    """Another call of equal shapes, then one of the first call's tensors, whose contents are others by now."""
    op = make(asked)
    rows = counts(candidate.spec.bands, few=True)[0]
    first, second = op.arguments(rows), op.arguments(rows)
    given, other = op.placed(first), op.placed(second)
    found = tensors(op.run(*given, **op.on_device))
    before = [each.clone() for each in found]
    errors = [op.check(op.run(*other, **op.on_device), other, second, "the second call")]
    for place, (now, then) in enumerate(zip(found, before, strict=True)):
        check_same(now, then, f"result {place} of the first call, after the second")
    if any(one.shape != two.shape for one, two in zip(tensors(first), tensors(second), strict=True)):
        return agreeing(errors)
    for into, values in zip(tensors(given), tensors(second), strict=True):
        into.copy_(values)
    # What isn't a tensor is the second call's, too.
    places = iter(tensors(given))
    given = tuple(mapped(lambda _: next(places), argument) for argument in second)
    errors.append(op.check(op.run(*given, **op.on_device), given, second, "the first call's tensors with other values"))
    return agreeing(errors)


def _keeps(candidate: Candidate[OpQuery], make: Make, asked: Asked[OpQuery]) -> str:
    op = make(asked)
    rows = counts(candidate.spec.bands, few=True)[0]
    kept = tensors_kept(lambda: op.run(*op.placed(op.arguments(rows)), **op.on_device), _CALLS)
    assert kept < _CALLS, f"{kept} tensors are kept after {_CALLS} calls of equal shapes"
    return f"{kept} tensors"


def _strided(candidate: Candidate[OpQuery], make: Make, asked: Asked[OpQuery]) -> str:
    op, errors = make(asked), []
    for rows in counts(candidate.spec.bands, few=True):
        for what, laid in {"elements apart": _spread, "columns side by side": _by_columns}.items():
            arguments = op.arguments(rows)
            given = _changed(op.placed(arguments), op.strided, laid)
            with poisoned():
                result = op.run(*given, **op.on_device)
            errors.append(op.check(result, given, arguments, f"{rows} rows, {what}"))
    return agreeing(errors)


def _mixed(candidate: Candidate[OpQuery], make: Make, asked: Asked[OpQuery]) -> str:
    """Each by itself, and all of them. What is kept in the engine's dtype on the way is rounded to that."""
    op, errors = make(asked), []
    op.bound = op.bound_of_first = op.bound or BOUNDS[asked.dtype]
    rows = counts(candidate.spec.bands, few=True)[-1]
    for places in {(place,) for place in op.float32} | {op.float32}:
        arguments = _changed(op.arguments(rows), places, torch.Tensor.float)
        given = op.placed(arguments)
        what = " and ".join(op.contract.arguments[place] for place in places)
        errors.append(op.check(op.run(*given, **op.on_device), given, arguments, f"{what} in float32"))
    return agreeing(errors)


def _changed(arguments: tuple[Any, ...], places: Sequence[int], change: Callable[[Tensor], Tensor]) -> tuple[Any, ...]:
    return tuple(mapped(change, value) if place in places else value for place, value in enumerate(arguments))


def _spread(tensor: Tensor) -> Tensor:
    """Every second element of a tensor that has NaN between them, or zeros."""
    gap = torch.nan if tensor.is_floating_point() else 0
    wide = torch.full((*tensor.shape, 2), gap, dtype=tensor.dtype, device=tensor.device)
    return wide.flatten(-2)[..., ::2].copy_(tensor) if tensor.dim() else tensor


def _by_columns(tensor: Tensor) -> Tensor:
    return tensor.mT.contiguous().mT if tensor.dim() > 1 else _spread(tensor)


def _deep(make: Make, asked: Asked[OpQuery]) -> str:
    op, errors = make(asked), []
    for shape in _SHAPES:
        arguments = tuple(
            argument.unflatten(0, shape) if place in op.leading else argument
            for place, argument in enumerate(op.arguments(12))
        )
        given = op.placed(arguments)
        errors.append(op.check(op.run(*given, **op.on_device), given, arguments, f"rows in {list(shape)}"))
    return agreeing(errors)


def _odd(candidate: Candidate[OpQuery], make: Make, asked: Asked[OpQuery]) -> str:
    """Zeros, one number alone, a constant, and an outlier where the reference holds it, next to ordinary rows."""
    op = make(asked)
    rows = 8 if _within(candidate.spec.bands, 8) else counts(candidate.spec.bands)[-1]
    ordinary = op.arguments(rows)
    given = ordinary
    for write in (_zeros, _alone, _constant, _outlier, _above):
        changed = _with_row(op, given, write)
        if all(bool(each.isfinite().all()) for each in tensors(op.by_reference(changed)[0])):
            given = changed
    placed = op.placed(given)
    return agreeing([op.check(op.run(*placed, **op.on_device), placed, given, "zeros, constants and outliers")])


def _with_row(op: Op, arguments: tuple[Any, ...], write: Callable[[Tensor], object]) -> tuple[Any, ...]:
    changed = mapped(torch.clone, arguments)
    for place in op.odd:
        row = _WRITTEN[write]
        if row < len(changed[place]):
            write(changed[place][row])
    return tuple(changed)


def _zeros(row: Tensor) -> None:
    row.zero_()


def _alone(row: Tensor) -> None:
    row.zero_()[..., -1] = 3.0


def _constant(row: Tensor) -> None:
    row.fill_(0.5)


def _outlier(row: Tensor) -> None:
    row[..., row.shape[-1] // 3] = -_OUTLIER


def _above(row: Tensor) -> None:
    row[..., row.shape[-1] // 3] = _OUTLIER


_WRITTEN: dict[Callable[[Tensor], object], int] = {_zeros: 0, _alone: 2, _constant: 5, _outlier: 6, _above: 7}
"""Which row each of them changes."""


def _within(bands: Sequence[TokenBand], rows: int) -> bool:
    return any(band.start <= rows < band.stop for band in bands)
