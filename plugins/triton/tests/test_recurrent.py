"""Recurrent layers against the reference: results, states and snapshots, in steps of all kinds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from layers import REFERENCES, Layer, error, make_step
from torch import Tensor

from llmk_triton.recurrent.delta_net import gated_delta_net, gated_delta_net_by_token
from llmk_triton.recurrent.lightning import lightning_attention, lightning_attention_by_token
from llmk_triton.recurrent.state_space import state_space_mixer, state_space_mixer_by_token

KERNELS: dict[str, tuple[str, Callable[..., Tensor]]] = {
    "scan": ("scan", state_space_mixer),
    "delta": ("delta", gated_delta_net),
    "scan by token": ("scan", state_space_mixer_by_token),
    "delta by token": ("delta", gated_delta_net_by_token),
    "kimi": ("kimi", gated_delta_net),
    "kimi by token": ("kimi", gated_delta_net_by_token),
    "lightning": ("lightning", lightning_attention),
    "lightning by token": ("lightning", lightning_attention_by_token),
}
CHUNKED = ("scan", "delta", "kimi", "lightning")
SIZES = {"scan": (2, 8, 2, 10), "delta": (2, 1, 12, 8), "kimi": (2, 1, 12, 8), "lightning": (2, 12)}
BOUNDS = {torch.float32: 2e-5, torch.bfloat16: 1.6e-2}
"""As the conformance kit has them for ops that round what they hand on."""

DECODE = [(20, 1), (31, 1), (0, 1), (32, 1)]
MIXED = [(0, 12), (20, 1), (3, 3)]
"""Tokens before the step and in it: new prompts, a decode, and a chunk that starts before a block's last token."""


def compared(name: str, layer: Layer, work: list[tuple[int, int]], block_size: int, **options: Any) -> None:
    """What a kernel returns and leaves in the caches is what the reference does."""
    kind, kernel = KERNELS[name]
    step, written, num_blocks = make_step(work, block_size, **options)
    most = options.get("drafts", 0)
    *inputs, caches, _ = layer.arguments(step, layer.caches(num_blocks, written, step.tails, most))
    own, like = (tuple(cache.clone() for cache in caches) for _ in range(2))
    actual = kernel(*inputs, own, step, **layer.options)
    real = int(step.query_start[-1])
    assert not actual[real:].any(), "rows of padding are zeros"
    rows = layer.rows(inputs, 0, real)
    count = len(work)
    without = replace(
        step,
        query_start=step.query_start[: count + 1],
        seq_lens=step.seq_lens[:count],
        block_table=step.block_table[:count],
        slot_mapping=step.slot_mapping[:real],
        num_requests=count,
        num_tokens=real,
    )
    expected = REFERENCES[kind](*rows, like, without, **layer.options)
    assert actual.dtype == expected.dtype
    assert error(actual[:real], expected) < BOUNDS[layer.dtype]
    for mine, reference in zip(own, like, strict=True):
        assert error(mine, reference) < BOUNDS[layer.dtype]


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("name", KERNELS)
def test_decoding_equals_the_reference(name: str, dtype: torch.dtype) -> None:
    kind, _ = KERNELS[name]
    compared(name, Layer(kind, SIZES[kind], dtype), DECODE, 16, padding=2)


@pytest.mark.parametrize("block_size", [1, pytest.param(4, marks=pytest.mark.slow), 100])
@pytest.mark.parametrize("name", KERNELS)
def test_mixed_steps_leave_the_references_snapshots(name: str, block_size: int) -> None:
    kind, _ = KERNELS[name]
    compared(name, Layer(kind, SIZES[kind], torch.float32), MIXED, block_size, padding=1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", KERNELS)
def test_states_may_be_narrow(name: str, dtype: torch.dtype) -> None:
    """They are rounded alike, but for those that another order of sums rounds to another side."""
    kind, _ = KERNELS[name]
    layer = Layer(kind, SIZES[kind], torch.bfloat16, kept=dtype)
    compared(name, layer, DECODE, 16)
    compared(name, layer, MIXED, 16)


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("gating", ["norm_first", "gate_only"])
@pytest.mark.parametrize("name", ["scan", "scan by token"])
def test_results_are_gated_after_their_norm_or_without(name: str, gating: str, dtype: torch.dtype) -> None:
    compared(name, Layer("scan", SIZES["scan"], dtype, gating=gating), DECODE, 16, padding=2)


@pytest.mark.parametrize("name", KERNELS)
def test_drafts_store_no_state(name: str) -> None:
    kind, _ = KERNELS[name]
    layer = Layer(kind, SIZES[kind], torch.float32, bias=False)
    compared(name, layer, [(0, 2), (20, 1), (15, 1)], 4, drafts=3, late=[0, 2, 3])


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [1, 2, 7])
@pytest.mark.parametrize("name", ["scan by token", "delta by token", "kimi by token"])
def test_windows_of_any_length(name: str, kernel: int) -> None:
    kind, _ = KERNELS[name]
    compared(name, Layer(kind, SIZES[kind], torch.float32, kernel=kernel), [(0, 2), (3, 5)], 2)


@pytest.mark.slow
@pytest.mark.parametrize("count", [9, 31, 32, 33, 64, 97])
@pytest.mark.parametrize(("before", "block_size"), [(0, 64), (0, 40), (63, 64), (5, 1000), (70, 40)])
@pytest.mark.parametrize("name", CHUNKED)
def test_chunks_end_anywhere(name: str, count: int, before: int, block_size: int) -> None:
    """The interpreter's target has chunks of 32 tokens."""
    kind, _ = KERNELS[name]
    compared(
        name,
        Layer(kind, {"scan": (1, 8, 1, 10), "lightning": (1, 12)}.get(kind, (1, 1, 12, 8)), torch.float32),
        [(before, count)],
        block_size,
    )


@pytest.mark.parametrize("name", [pytest.param("scan", marks=pytest.mark.slow), "delta", "kimi", "lightning"])
def test_chunks_and_drafts(name: str) -> None:
    kind, _ = KERNELS[name]
    layer = Layer(kind, SIZES[kind], torch.float32)
    compared(name, layer, [(0, 12), (20, 1), (15, 20)], 16, drafts=3, late=[0, 2, 3])


def test_equal_keys_solve_well() -> None:
    """The worst system: every token writes to the same key, nothing decays, and much is written."""
    layer = Layer("delta", (1, 1, 16, 8), torch.float32)
    step, _, num_blocks = make_step([(0, 64)], 100)
    *inputs, caches, _ = layer.arguments(step, layer.caches(num_blocks, [], None, 0))
    q, k, v, gate, a, b, weight, decay, *rest = inputs
    k[:], b[:], a[:] = k[:1], 4.0, -20.0
    weight[:] = torch.tensor([0.0, 0.0, 0.0, 1.0])
    own, like = (tuple(cache.clone() for cache in caches) for _ in range(2))
    actual = gated_delta_net(q, k, v, gate, a, b, weight, decay, *rest, own, step)
    expected = REFERENCES["delta"](q, k, v, gate, a, b, weight, decay, *rest, like, step)
    assert error(actual, expected) < 1e-4
    assert error(own[1], like[1]) < 1e-4


@pytest.mark.parametrize("bound", [-5.0, pytest.param(-0.3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["kimi", "kimi by token"])
def test_decays_have_a_bound(name: str, bound: float) -> None:
    compared(name, Layer("kimi", SIZES["kimi"], torch.float32, bound=bound), [*MIXED, (5, 40)], 16)


@pytest.mark.parametrize("steepness", [0.0, 30.0, 1000.0])
def test_decays_of_any_steepness(steepness: float) -> None:
    """Where nothing decays, where states vanish within a block, and where they do at once: no exponential overflows."""
    layer = Layer("kimi", (1, 1, 12, 8), torch.float32)
    step, _, num_blocks = make_step([(0, 40)], 100)
    *inputs, caches, _ = layer.arguments(step, layer.caches(num_blocks, [], None, 0))
    inputs[7] = torch.full((1,), -steepness)
    own, like = (tuple(cache.clone() for cache in caches) for _ in range(2))
    actual = gated_delta_net(*inputs, own, step, **layer.options)
    expected = REFERENCES["kimi"](*inputs, like, step, **layer.options)
    assert actual.isfinite().all()
    assert error(actual, expected) < 1e-4
    assert error(own[1], like[1]) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("scan", (2, 64, 1, 128)),
        ("scan", (8, 40, 8, 16)),
        ("scan", (2, 128, 2, 64)),
        ("delta", (2, 1, 128, 128)),
        ("delta", (2, 2, 64, 100)),
        ("scan by token", (2, 64, 1, 128)),
        ("scan by token", (8, 40, 8, 16)),
        ("scan by token", (2, 128, 2, 64)),
        ("kimi", (1, 1, 128, 128)),
        ("kimi", (2, 2, 64, 100)),
        ("lightning", (2, 128)),
        ("lightning", (3, 40)),
        ("lightning by token", (2, 128)),
        ("delta by token", (2, 1, 128, 128)),
        ("kimi by token", (2, 2, 128, 128)),
        ("delta by token", (2, 2, 64, 100)),
    ],
    ids=str,
)
def test_sizes_of_models(name: str, sizes: tuple[int, ...], dtype: torch.dtype) -> None:
    kind, _ = KERNELS[name]
    compared(name, Layer(kind, sizes, dtype), [(15, 2), (20, 1), *[(0, 40)] * (name in CHUNKED)], 16)


@pytest.mark.parametrize("name", ["scan by token", "delta by token", "kimi by token", "lightning by token"])
def test_results_do_not_depend_on_batch_or_cut(name: str) -> None:
    """Bit for bit: a request alone and with others, its prompt whole and in two steps."""
    kind, kernel = KERNELS[name]
    layer = Layer(kind, SIZES[kind], torch.float32)
    step, _, num_blocks = make_step([(0, 6), (0, 2)], 4)
    *inputs, caches, _ = layer.arguments(step, layer.caches(num_blocks, [], None, 0))
    whole = kernel(*inputs, tuple(cache.clone() for cache in caches), step)[:6]
    own = tuple(cache.clone() for cache in caches)
    found = []
    for first, stop in ((0, 5), (5, 6)):
        rows = layer.rows(inputs, first, stop)
        part = replace(
            step,
            query_start=torch.tensor([0, stop - first], dtype=torch.int32),
            seq_lens=torch.tensor([stop], dtype=torch.int32),
            num_requests=1,
            num_tokens=stop - first,
            max_query_len=stop - first,
        )
        found.append(kernel(*rows, own, part))
    assert torch.equal(torch.cat(found), whole)
