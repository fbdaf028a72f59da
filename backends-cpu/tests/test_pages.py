"""Memory of packed weights."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch

from llmk_cpu.native.pages import Pages


def test_tensors_share_chunks_but_no_byte_and_keep_their_memory() -> None:
    pages = Pages()
    tensors = [pages.empty(shape, dtype) for shape, dtype in (
        ((3, 5), torch.float32), ((0, 7), torch.uint8), ((33 << 20,), torch.uint8), ((1,), torch.bfloat16),
    )]  # fmt: skip
    del pages
    gc.collect()
    for value, tensor in enumerate(tensors):
        tensor.fill_(value)
    assert [tensor.shape for tensor in tensors] == [(3, 5), (0, 7), (33 << 20,), (1,)]
    assert all(tensor.data_ptr() % 64 == 0 for tensor in tensors if tensor.numel())
    assert all(bool((tensor == value).all()) for value, tensor in enumerate(tensors))
    first, last = tensors[0], tensors[3]
    assert first.untyped_storage().data_ptr() == last.untyped_storage().data_ptr()


def test_a_chunk_that_is_used_up_is_followed_by_another() -> None:
    pages = Pages()
    tensors = [pages.empty((20 << 20,), torch.uint8) for _ in range(3)]
    assert len({tensor.untyped_storage().data_ptr() for tensor in tensors}) == 3


def test_pages_are_huge_where_the_system_has_them() -> None:
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not setting.exists() or "[never]" in setting.read_text():
        pytest.skip("this system has no transparent huge pages")
    tensor = Pages().empty((16 << 20,), torch.uint8).zero_()
    assert "hg" in flags_at(tensor.data_ptr())


def flags_at(address: int) -> list[str]:
    """What the system says of the mapping that has this address."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *rest = line.split()
        if "-" in name:
            first, end = (int(each, 16) for each in name.split("-"))
            inside = first <= address < end
        elif name == "VmFlags:" and inside:
            return rest
    raise AssertionError(f"{address:#x} is in no mapping")
