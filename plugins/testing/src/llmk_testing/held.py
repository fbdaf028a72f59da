"""The memory that tensors hold."""

from __future__ import annotations

import gc
from collections.abc import Mapping

from torch import Tensor


def held_bytes() -> int:
    """Bytes of the memory of all tensors that are in use, of any device; memory that several share counts once."""
    gc.collect()
    sizes: dict[int, int] = {}
    # By their type, because asking proxies for their class may run other code.
    for tensor in (each for each in gc.get_objects() if issubclass(type(each), Tensor)):
        try:
            memory = tensor.untyped_storage()
            sizes[memory.data_ptr()] = memory.nbytes()
        except (NotImplementedError, RuntimeError):  # tensors without memory of torch's
            continue
    sizes.pop(0, None)
    return sum(sizes.values())


def bytes_of(tensors: Mapping[str, Tensor]) -> int:
    """Bytes of the elements."""
    return sum(tensor.nbytes for tensor in tensors.values())
