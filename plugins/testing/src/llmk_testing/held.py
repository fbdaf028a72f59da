"""The memory that tensors hold, and the state of the process that a plugin's code must leave as it is."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

_STATE: Mapping[str, Callable[[], Any]] = {
    "the default dtype": torch.get_default_dtype,
    "the number of threads": torch.get_num_threads,
    "whether algorithms must be deterministic": torch.are_deterministic_algorithms_enabled,
    "the precision of float32 GEMMs": torch.get_float32_matmul_precision,
    "whether gradients are recorded": torch.is_grad_enabled,
    "torch's random numbers": lambda: torch.get_rng_state().tolist(),
    "Python's random numbers": random.getstate,
}
"""What all code of the process shares."""


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


@contextmanager
def undisturbed() -> Iterator[None]:
    """Within, code must leave the state as it is that all code of the process shares; raises ``AssertionError`` at the
    end, and puts it back."""
    torch.rand(1), random.random()  # so that numbers which were seeded before, and are seeded again, are others
    before = {what: read() for what, read in _STATE.items()}
    yield
    changed = [what for what, read in _STATE.items() if read() != before[what]]
    torch.set_default_dtype(before["the default dtype"])
    torch.set_num_threads(before["the number of threads"])
    torch.use_deterministic_algorithms(before["whether algorithms must be deterministic"])
    torch.set_float32_matmul_precision(before["the precision of float32 GEMMs"])
    assert not changed, f"it changed {', '.join(changed)}, which the whole process shares"
