"""The device as torch sees it. Two devices of 64 MiB each are to be visible."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from llmk_nova import device

SIZE = 64 << 20


@pytest.fixture(autouse=True)
def _counts() -> Iterator[None]:
    torch.accelerator.set_device_index(0)
    device.reset_counts()
    yield
    torch.accelerator.set_device_index(0)


def waits() -> dict[str, int]:
    return dict(device.counted()["waits"])


def test_torch_knows_it() -> None:
    assert torch.accelerator.current_accelerator() == torch.device("nova")
    assert torch.nova is device
    assert torch.accelerator.device_count() == device.device_count() == 2
    with pytest.raises(RuntimeError, match="nova:2 is not one of the 2"):
        torch.empty(1, device="nova:2")


def test_memory_is_accounted_for() -> None:
    before = torch.accelerator.memory_allocated()
    assert torch.accelerator.get_memory_info() == (SIZE - before, SIZE)
    x = torch.empty(1 << 20, device="nova")
    assert torch.accelerator.memory_allocated() == before + (4 << 20)
    torch.accelerator.reset_peak_memory_stats()
    y = x + x
    del y
    assert torch.accelerator.memory_allocated() == before + (4 << 20)
    assert torch.accelerator.max_memory_allocated() == before + (8 << 20), "what a kernel makes counts"
    z = torch.empty(1 << 10, device="nova:1")
    assert torch.accelerator.memory_allocated(1) >= z.nbytes
    assert torch.accelerator.memory_allocated(0) == before + (4 << 20), "each device has its own"
    del x
    assert torch.accelerator.memory_allocated() == before


def test_memory_comes_to_an_end() -> None:
    with pytest.raises(torch.OutOfMemoryError, match=f"is asked for {SIZE + 4} bytes"):
        torch.empty(SIZE // 4 + 1, device="nova")
    x = torch.empty(SIZE // 8, device="nova")
    before = torch.accelerator.memory_allocated()
    with pytest.raises(torch.OutOfMemoryError):
        torch.cat([x, x])
    assert torch.accelerator.memory_allocated() == before


def test_which_copies_make_the_host_wait() -> None:
    pageable, pinned = torch.ones(4), torch.ones(4, pin_memory=True)
    assert pinned.is_pinned()
    assert pinned[2:].is_pinned()
    assert not pageable.is_pinned()
    x = pinned.to("nova", non_blocking=True)
    pinned.copy_(x, non_blocking=True)
    x.clone()
    assert waits() == {}
    pageable.to("nova", non_blocking=True)
    pinned.to("nova")
    assert waits() == {"copy from host": 2}
    x.cpu()
    assert x.sum().item() == 4
    assert bool((x > 0).all())
    assert x.nonzero().shape == (4, 1)
    torch.repeat_interleave(x.long())
    torch.repeat_interleave(x.long(), output_size=4)
    expected = {"copy to host": 1, "item": 2, "aten::nonzero": 1, "aten::repeat_interleave": 1}
    assert waits() == {"copy from host": 2, **expected}


def test_streams_and_events() -> None:
    stream = torch.Stream("nova")
    first, second = (torch.Event("nova", enable_timing=True) for _ in range(2))
    assert torch.accelerator.current_stream() != stream
    with stream:
        assert torch.accelerator.current_stream() == stream
        first.record()
        torch.zeros(1, device="nova")
        second.record()
    assert torch.accelerator.current_stream() != stream
    torch.accelerator.current_stream().wait_event(second)
    assert first.query()
    assert waits() == {}
    assert 0 <= first.elapsed_time(second) < 1000
    second.synchronize()
    stream.synchronize()
    torch.accelerator.synchronize()
    assert waits() == {"event": 1, "stream": 1, "device": 1}
    fresh = torch.Event("nova", enable_timing=True)
    with pytest.raises(ValueError, match="recorded"):
        fresh.elapsed_time(second)


def test_generators() -> None:
    torch.manual_seed(3)
    default = [torch.rand(4, device="nova").cpu() for _ in range(2)]
    assert not torch.equal(*default)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(4, device="nova").cpu(), default[0])
    own = torch.Generator("nova:1")
    assert own.device == torch.device("nova:1")
    own.manual_seed(5)
    state = own.get_state()
    drawn = torch.randn(4, device="nova:1", generator=own).cpu()
    own.set_state(state)
    assert torch.equal(torch.randn(4, device="nova:1", generator=own).cpu(), drawn)
    with pytest.raises(RuntimeError, match=r"[Ee]xpected|of its own"):
        torch.randn(4, device="nova", generator=torch.Generator())


def test_what_it_has_no_kernel_for_is_counted() -> None:
    x = torch.full((3,), 0.5, device="nova")
    assert torch.equal(x.erfinv().cpu(), torch.full((3,), 0.5).erfinv())
    assert device.counted()["fallbacks"] == {"aten::erfinv.out": 1}
    device.reset_counts()
    x.exp()
    assert device.counted()["launches"] == {"aten::exp": 1}
    assert not device.counted()["fallbacks"]


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: x.t()[1:].exp() @ x[:, 1:3],
        lambda x: torch.cat([x, x.view(2, 8).view(4, 4)]).sum(0),
        lambda x: x[torch.tensor([2, 0], device=x.device)],
        lambda x: torch.index_select(x, 0, torch.tensor([1], device=x.device), out=torch.empty(0, device=x.device)),
        lambda x: x.clone().index_copy_(0, torch.tensor([3], device=x.device), x[:1]),
        lambda x: torch.where(x > 0, x, 0.0).sort(dim=-1, descending=True).values,
        lambda x: torch.nn.functional.scaled_dot_product_attention(x[None], x[None], x[None], is_causal=True),
        lambda x: x.bfloat16().unfold(0, 2, 1).float(),
        lambda x: torch.empty(0, device=x.device).resize_(4, 4).copy_(x),
        lambda x: x.masked_select(x > 0),
        lambda x: x.histc(3, -1, 1),
    ],
)
def test_agrees_with_the_host(compute: Any) -> None:
    x = torch.linspace(-1, 1, 16).view(4, 4)
    assert torch.equal(compute(x.to("nova")).cpu(), compute(x))
    assert not device.counted()["fallbacks"]


def test_integers_are_counted_as_they_are_on_other_accelerators() -> None:
    counts = torch.tensor([0, 2, 2, 3], dtype=torch.int32, device="nova").histc(4, 0, 3)
    assert (counts.tolist(), counts.dtype) == ([1, 0, 2, 1], torch.int32)


def test_host_and_device_are_apart() -> None:
    x = torch.ones(2, device="nova")
    with pytest.raises(RuntimeError, match="on the host"):
        x + torch.ones(2)
    with pytest.raises(TypeError):
        x.numpy()
    assert torch.equal((x + torch.tensor(1.0)).cpu(), torch.full((2,), 2.0)), "numbers may come along"
