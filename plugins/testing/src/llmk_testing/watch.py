"""Watches a kernel: memory that it allocates contains NaN until it is written; synchronizations with the device are
detected, and numbers that are converted to integers which can't hold them."""

from __future__ import annotations

import gc
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

_ATEN = torch.ops.aten
_UNFILLED = {_ATEN.empty, _ATEN.empty_like, _ATEN.empty_strided, _ATEN.new_empty, _ATEN.new_empty_strided}
_WAITING = {
    _ATEN._local_scalar_dense,
    _ATEN.nonzero,
    _ATEN.masked_select,
    _ATEN.bincount,
    _ATEN.equal,
    _ATEN.is_nonzero,
}
"""Operators that read a tensor back, or whose result's shape depends on what is in one."""
_CONVERTING = {_ATEN._to_copy, _ATEN.to, _ATEN.copy_}
_REPEATING = {_ATEN.repeat_interleave.Tensor, _ATEN.repeat_interleave.self_Tensor}
_INDEXING = {_ATEN.index, _ATEN.index_put, _ATEN.index_put_}
_MAKING = {torch.tensor, torch.as_tensor, torch.asarray, Tensor.new_tensor}
"""Functions that make tensors of numbers that the host has. Where these go to a device, the host waits."""
_MOVING = {Tensor.to, Tensor.cuda}
_READING = {Tensor.tolist, Tensor.numpy, Tensor.cpu, Tensor.__array__}
"""Methods that read a tensor on the host without an operator."""


class _Poison(TorchDispatchMode):
    """Fills uninitialized tensors: floating-point with NaN, integers with an invalid index."""

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket in _UNFILLED and isinstance(result, Tensor):
            if result.dtype.is_floating_point:
                result.fill_(float("nan"))
            elif result.dtype not in (torch.bool, torch.uint8):
                result.fill_(torch.iinfo(result.dtype).max)
        return result


class _Conversions(TorchDispatchMode):
    """Raises ``AssertionError`` where numbers are converted to integers that can't hold them: the result depends on the
    device."""

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        source = args[1] if func.overloadpacket is _ATEN.copy_ else args[0] if args else None
        if func.overloadpacket in _CONVERTING and isinstance(source, Tensor) and source.dtype.is_floating_point:
            _check_held(source, result.dtype)
        return result


def _check_held(source: Tensor, dtype: torch.dtype) -> None:
    if dtype.is_floating_point or dtype in (torch.bool, torch.complex64, torch.complex128):
        return
    whole, limits = source.double(), torch.iinfo(dtype)
    wrong = whole[~(whole.isfinite() & (whole > limits.min - 1) & (whole < limits.max + 1))]
    assert not len(wrong), f"{len(wrong)} numbers can't be converted to {dtype}, the first is {float(wrong[0])}"


class _Operators(TorchDispatchMode):
    """Calls ``waits`` with the name of each operator that synchronizes with the device."""

    def __init__(self, waits: Callable[[str], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._waits = waits

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket
        sized = func in _REPEATING and (kwargs or {}).get("output_size") is None
        masks = name in _INDEXING and any(x is not None and x.dtype == torch.bool for x in args[1])
        if name in _WAITING or sized or masks:
            self._waits(str(func))
        return func(*args, **(kwargs or {}))


class _Methods(TorchFunctionMode):
    """The same for methods that don't call an operator."""

    def __init__(self, waits: Callable[[str], None]) -> None:
        super().__init__()
        self._waits = waits
        self._made: list[Any] = []
        """Tensors of numbers of the host that were made without a device."""

    def __torch_function__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in _READING:
            self._waits(f"Tensor.{func.__name__}")
        named, result = kwargs or {}, func(*args, **(kwargs or {}))
        if func in _MAKING and any(map(_is_list, args)):
            if func is Tensor.new_tensor or named.get("device") is not None:
                self._waits(f"{func.__name__} of a list")
            else:
                self._made.append(result)
        elif func is Tensor.__getitem__ and any(map(_is_list, args[1] if isinstance(args[1], tuple) else args[1:])):
            self._waits("an index that is a list")
        elif func in _MOVING and any(args[0] is each for each in self._made) and not named.get("non_blocking"):
            self._waits(f"Tensor.{func.__name__} of a list's tensor")
        return result


def _is_list(argument: Any) -> bool:
    """Whether a tensor of it has numbers of the host, other than a single one, which becomes an operator's argument."""
    return isinstance(argument, Sequence | array) or type(argument).__module__ == "numpy"


@contextmanager
def poisoned() -> Iterator[None]:
    """Within, memory that torch allocates contains NaN until it is written, so that elements which a kernel does not
    write are detected."""
    with _Poison():  # type: ignore[no-untyped-call]
        yield


@contextmanager
def held_by_integers() -> Iterator[None]:
    """Within, numbers that are converted to integers must be ones that these can hold; raises ``AssertionError``."""
    with _Conversions():  # type: ignore[no-untyped-call]
        yield


@contextmanager
def never_waiting() -> Iterator[None]:
    """Raises ``AssertionError`` at the end if code within synchronized with the device, or would on an asynchronous
    device."""
    waited: list[str] = []
    with _Operators(waited.append), _Methods(waited.append):
        yield
    assert not waited, f"{', '.join(dict.fromkeys(waited))} synchronizes with the device, so it can't be captured"


def tensors_kept(run: Callable[[], object], rounds: int) -> int:
    """How many more tensors there are after so many calls than after the first two, which may fill a cache."""
    for _ in range(2):
        run()
    before = num_tensors()
    for _ in range(rounds):
        run()
    return num_tensors() - before


def num_tensors() -> int:
    """All tensors that are in use."""
    gc.collect()
    return sum(issubclass(type(each), Tensor) for each in gc.get_objects())
