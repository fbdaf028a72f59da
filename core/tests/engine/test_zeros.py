"""Zeros that take no memory until they are used."""

from __future__ import annotations

import resource

import psutil
import pytest
import torch

from llmk.api import NotEnoughMemory
from llmk.engine.device.zeros import zeros

CPU = torch.device("cpu")


def test_a_large_tensor_takes_memory_where_it_is_used() -> None:
    size, before = 1 << 30, psutil.Process().memory_info().rss
    found = zeros((2, size // 8), torch.float32, CPU)
    assert (found.shape, found.dtype, found.device) == ((2, size // 8), torch.float32, CPU)
    assert psutil.Process().memory_info().rss - before < size // 8
    assert not found[1, :1000].any()
    found[1, :1000] = 1
    assert found[1, :2000].sum() == 1000


@pytest.mark.parametrize("shape", [(), (0, 3), (5, 7), (1 << 20,), (3, 1 << 19)])
def test_zeros_of_any_size(shape: tuple[int, ...]) -> None:
    for dtype in (torch.uint8, torch.bfloat16, torch.int64):
        found = zeros(shape, dtype, CPU)
        assert torch.equal(found, torch.zeros(shape, dtype=dtype))
        assert torch.equal(found + 1, torch.ones(shape, dtype=dtype))


def test_more_than_the_system_gives_is_named() -> None:
    limit = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (1 << 44, limit[1]))
    try:
        with pytest.raises(NotEnoughMemory, match=r"does not give this process another 32768\.0 GiB"):
            zeros((1 << 45,), torch.uint8, CPU)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limit)
