"""Recorded steps: what native kernels and torch compute is computed again, from new inputs, in the same memory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from llmk import LLM, SamplingParams
from llmk.engine.device.graphs import decoding_shapes, why_not_recorded
from llmk_cpu.graphs import CPUGraphs
from llmk_cpu.native.attention import rope
from llmk_cpu.native.linear import linear
from llmk_cpu.native.norms import add_rms_norm, rms_norm
from llmk_cpu.native.quantized import linear_groups, prepare_int4
from llmk_testing.checkpoints import write_checkpoint

WEIGHT, SCALE = torch.randn(48, 64), torch.rand(64)


def step(x: Tensor, counts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Native kernels, with views, operators of torch that make tensors, and some that change them, in between."""
    normed, total = add_rms_norm(x, x.flip(0), SCALE, 1e-6)
    first, rest = linear(normed, WEIGHT, None).split([16, 32], dim=1)
    counts += 1
    chosen = torch.where(counts[:, None] % 2 == 0, first, rest[:, :16]).contiguous()
    best = chosen.argmax(dim=1)
    counts.index_add_(0, torch.arange(len(counts)), best)
    values, places = rms_norm(chosen, SCALE[:16], 1e-6).sort(dim=1)
    return total, values, places


def test_a_replay_computes_from_what_is_there_then() -> None:
    x, counts = torch.empty(3, 64), torch.zeros(3, dtype=torch.int64)
    replay = CPUGraphs().capture(lambda: step(x, counts))
    assert counts.tolist() == [0, 0, 0]
    mirror, places = counts.clone(), set()
    for _ in range(4):
        x.copy_(torch.randn(3, 64))
        found, expected = replay(), step(x.clone(), mirror)
        for one, other in zip(found, expected, strict=True):
            assert torch.equal(one, other)
        assert torch.equal(counts, mirror)
        places.add(tuple(each.data_ptr() for each in found))
    assert len(places) == 1


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_what_may_be_a_view_or_a_copy_is_computed_again_if_it_is_a_copy(mode: type) -> None:
    x = torch.randn(2, 6).bfloat16()

    def run() -> tuple[Tensor, ...]:
        wide = x.float()
        return (
            wide,
            wide.t().reshape(-1),
            wide.float().view(-1),
            wide.t().contiguous(),
            wide.flatten()[2:],
            x.to(x.dtype),
        )

    with mode():
        replay = CPUGraphs().capture(run)
        for _ in range(3):
            x.copy_(torch.randn(2, 6))
            for one, other in zip(replay(), run(), strict=True):
                assert torch.equal(one, other)


def test_memory_of_a_recorded_step_is_its_own() -> None:
    """What is allocated between replays neither changes nor is changed, and arguments of all kinds come back."""
    weight = prepare_int4({"weight_packed": torch.randint(0, 256, (24, 32), dtype=torch.uint8),
                           "weight_scale": torch.rand(24, 2)})  # fmt: skip
    angles = torch.rand(50, 8)
    x, positions = torch.randn(2, 64).bfloat16(), torch.tensor([3, 7])

    def run() -> Tensor:
        heads = linear_groups(rms_norm(x, SCALE.bfloat16(), 1e-5, norm_offset=0.5), weight, None).view(2, 3, 8)
        return rope(heads[:, :2], heads[:, 2:], positions, angles)[0] * 2

    replays = [CPUGraphs().capture(run) for _ in range(2)]
    for number in range(3):
        x.copy_(torch.randn(2, 64))
        positions.fill_(number)
        for replay in replays:
            found = replay()
            others = [torch.full((2, 64), 7.0) for _ in range(50)]
            assert torch.equal(found, run())
            assert torch.equal(replay(), found)
            assert all(bool((other == 7).all()) for other in others)


COPIES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "embedding": lambda x, ids: F.embedding(ids, x),
    "rows of an embedding": lambda x, ids: F.embedding(ids.view(1, -1), x),
    "gather": lambda x, ids: x.gather(1, ids[:, None]),
    "several of each": lambda x, ids: x[:4].gather(-1, ids[:, None] + torch.arange(2)),
    "gather of wider rows": lambda x, ids: x[:4, 1:5].gather(1, ids[:, None] % 4),
    "cat": lambda x, ids: torch.cat((x, x[:2])),
    "cat of columns": lambda x, ids: torch.cat((x[:, :3].contiguous(), x, x[:, :0].contiguous()), dim=-1),
    "cat of three dimensions": lambda x, ids: torch.cat((x.view(5, 1, 7), x.view(5, 1, 7)), dim=1),
}
DIFFERENT: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cat of dtypes": lambda x, ids: torch.cat((x, x.double())),
    "cat of views": lambda x, ids: torch.cat((x[:, 1:3], x[:, :1]), dim=1),
    "gather of a column": lambda x, ids: x.t().gather(1, ids[None]),
    "gather of rows": lambda x, ids: x.gather(0, ids[:, None]),
    "embedding of a view": lambda x, ids: F.embedding(ids, x[:, ::2]),
    "cat of complex numbers": lambda x, ids: torch.cat((torch.complex(x.float(), x.float()).conj(),) * 2).imag,
    "embedding of int32": lambda x, ids: F.embedding(ids.int(), x),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8])
@pytest.mark.parametrize("name", COPIES | DIFFERENT)
def test_copies_are_computed_again(name: str, dtype: torch.dtype) -> None:
    x, ids, copy = torch.empty(5, 7, dtype=dtype), torch.empty(4, dtype=torch.int64), (COPIES | DIFFERENT)[name]
    replay = CPUGraphs().capture(lambda: copy(x, ids))
    for _ in range(4):
        x.copy_(torch.randint(0, 200, x.shape))
        ids.copy_(torch.randint(0, 5, ids.shape))
        assert torch.equal(replay(), copy(x, ids))


@pytest.mark.parametrize("name", COPIES)
def test_native_kernels_copy(name: str) -> None:
    """So that torch computes nothing between them."""
    x, ids = torch.randn(5, 7), torch.tensor([3, 0, 4, 1])
    replay = CPUGraphs().capture(lambda: COPIES[name](x, ids))
    with Operators() as before:
        COPIES[name](x, ids)
    replay()
    with Operators() as seen:
        replay()
    assert set(before.names) & {"embedding", "gather", "cat"}
    assert not set(seen.names) & {"embedding", "gather", "cat"}


@pytest.mark.parametrize("wrong", [7, -1, 2**40])
def test_ids_outside_of_a_table_get_nan(wrong: int) -> None:
    x, ids = torch.randn(5, 7).bfloat16(), torch.tensor([3, 0, 4, 1])
    replay = CPUGraphs().capture(lambda: (F.embedding(ids, x), x[:4].gather(1, ids[:, None])))
    replay()
    ids[1] = wrong
    rows, one = replay()
    assert rows[1].isnan().all()
    assert one[1].isnan().all()
    assert torch.equal(rows[2:], x[[4, 1]])


class Operators(TorchDispatchMode):
    """Records the operators of torch that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_a_step_that_fails_is_recorded_by_the_next() -> None:
    x, fails = torch.ones(1, 64), [True]

    def run() -> Tensor:
        out = rms_norm(x, SCALE, 1e-6)
        if fails.pop():
            raise ValueError("once")
        return out

    replay = CPUGraphs().capture(run)
    with pytest.raises(ValueError, match="once"):
        replay()
    fails[:] = [False]
    assert torch.equal(replay(), rms_norm(x, SCALE, 1e-6))
    x.mul_(-2).add_(1)
    assert torch.equal(replay(), rms_norm(x, SCALE, 1e-6))


def test_other_threads_are_not_recorded() -> None:
    x, other = torch.randn(1, 64), torch.randn(1, 64)
    seen: list[Tensor] = []

    def elsewhere() -> None:
        seen.append(rms_norm(other, SCALE, 1e-6))

    def run() -> Tensor:
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        return rms_norm(x, SCALE, 1e-6)

    replay = CPUGraphs().capture(run)
    replay()
    before = seen[0].clone()
    other.zero_()
    replay()
    assert torch.equal(seen[0], before)


LOOKS: dict[str, Callable[[Tensor], object]] = {
    "bool": lambda x: bool(x.any()),
    "item": lambda x: x[0].item(),
    "equal": lambda x: torch.equal(x, x),
}


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_a_step_that_looks_at_values_is_not_recorded(mode: type, look: str) -> None:
    """Its replays would go on as the first run did."""
    x = torch.ones(3)
    with mode(), pytest.raises(RuntimeError, match=r"can't look at values on the host, as aten\.\w+ does; its kernel"):
        CPUGraphs().capture(lambda: LOOKS[look](x))()


def test_rows_can_be_chosen_by_number() -> None:
    x, rows = torch.randn(4, 2), torch.tensor([2, 0])
    replay = CPUGraphs().capture(lambda: x[rows])
    for chosen in ([2, 0], [1, 3]):
        rows.copy_(torch.tensor(chosen))
        assert torch.equal(replay(), x[chosen])


def test_rows_can_be_repeated_where_their_number_is_known() -> None:
    x, counts = torch.randn(3, 2), torch.tensor([2, 0, 1])
    replay = CPUGraphs().capture(
        lambda: (torch.repeat_interleave(x, counts, 0, output_size=3), x.repeat_interleave(2, 0))
    )
    for given in ([2, 0, 1], [0, 3, 0]):
        counts.copy_(torch.tensor(given))
        some, all_rows = replay()
        assert torch.equal(some, x.repeat_interleave(torch.tensor(given), 0))
        assert torch.equal(all_rows, x.repeat_interleave(2, 0))


def test_shapes_that_depend_on_values_may_not_change() -> None:
    x = torch.tensor([1.0, 0.0, 2.0])
    replay = CPUGraphs().capture(lambda: torch.nonzero(x))
    assert replay().flatten().tolist() == [0, 2]
    x.copy_(torch.tensor([0.0, 1.0, 2.0]))
    assert replay().flatten().tolist() == [1, 2]
    x.fill_(1.0)
    with pytest.raises(RuntimeError, match=r"computed \[2, 1\] values, its replay \[3, 1\]"):
        replay()


@pytest.mark.slow
@pytest.mark.parametrize("sampled", [False, True])
def test_steps_in_flight_do_not_share_their_tokens(sampled: bool, tmp_path: Path) -> None:
    """A step is replayed again before the host has read what it gave last."""
    folder = write_checkpoint(tmp_path / "model", "qwen3", head_dim=32)
    params = SamplingParams(temperature=float(sampled), seed=3, max_tokens=24, ignore_eos=True)
    answers = []
    for depth in (1, 2):
        with LLM(str(folder), **{"model.max_model_len": 64, "engine.steps_in_flight": depth}) as llm:
            results = llm.generate([[5, 6, 7], list(range(20))], params, use_tqdm=False)
            answers.append([result.outputs[0].token_ids for result in results])
            assert not why_not_recorded(llm.boot.plan, decoding_shapes(2))
    assert answers[0] == answers[1]
