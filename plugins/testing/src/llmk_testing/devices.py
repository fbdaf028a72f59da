"""Watches which devices tensors are on: code that is bound to one device may not compute with two."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_ATEN = torch.ops.aten
_COPYING = {_ATEN.copy_, _ATEN._to_copy, _ATEN.to}
_INDEXED = {_ATEN.index, _ATEN.index_put, _ATEN.index_put_}
"""Operators that take indices on the host, of a tensor on any device."""


class _Devices(TorchDispatchMode):
    """Calls ``mixes`` with the name of each operator whose tensors are on several devices."""

    def __init__(self, mixes: Callable[[str], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._mixes = mixes

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket
        if name not in _COPYING:
            tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor) and each.ndim]
            if name in _INDEXED:
                indices = [each for each in args[1] if each is not None and each.device.type == "cpu"]
                tensors = [each for each in tensors if not any(each is one for one in indices)]
            devices = {str(each.device) for each in tensors}
            if len(devices) > 1:
                self._mixes(f"{func} of tensors on {' and '.join(sorted(devices))}")
        return func(*args, **(kwargs or {}))


@contextmanager
def one_device() -> Iterator[None]:
    """Raises ``AssertionError`` at the end if code within computed with tensors on several devices, other than to copy
    them; numbers, which are tensors without dimensions, may be on any."""
    mixed: list[str] = []
    try:
        with _Devices(mixed.append):
            yield
    except Exception as error:
        if not mixed:
            raise
        raise AssertionError(f"it computes {mixed[0]}") from error
    assert not mixed, f"it computes {mixed[0]}"
