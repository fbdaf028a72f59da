"""Recurrent ops against the recurrences as papers write them, in float64, one token and one head at a time; and what
they keep in the cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from states import CUTS, Cached, Step, error, run_steps, totals
from torch import Tensor

from llmk.api import CacheStep
from llmk.reference.recurrent.causal_conv import causal_conv
from llmk.reference.recurrent.delta_rule import gated_delta_rule, gated_delta_rule_by_token
from llmk.reference.recurrent.state_space_scan import state_space_scan, state_space_scan_by_token

BOUND = 3e-6
"""Relative, of sums of some hundred float32 terms."""


@dataclass(frozen=True)
class Op:
    """An op with random weights. ``make`` gives the inputs of some tokens, ``run`` is called with them, a cache and a
    step, ``naive`` with a whole request's in float64; it returns the outputs and the state after every token."""

    make: Callable[[int], list[Tensor]]
    run: Callable[..., Tensor]
    naive: Callable[..., tuple[Tensor, Tensor]]
    state: tuple[int, ...]


def conv(kernel: int = 4, bias: bool = True, activation: str | None = "silu") -> Op:
    channels = 13
    weight, offset = torch.randn(channels, kernel), torch.randn(channels) if bias else None

    def naive(x: Tensor) -> tuple[Tensor, Tensor]:
        padded = torch.cat((x.new_zeros(kernel - 1, channels), x))
        windows = padded.unfold(0, kernel, 1)
        y = (windows * weight.double()).sum(-1) + (0 if offset is None else offset.double())
        return torch.nn.functional.silu(y) if activation else y, windows[:, :, 1:].transpose(1, 2)

    def run(x: Tensor, cache: Tensor, step: CacheStep) -> Tensor:
        return causal_conv(x, weight, offset, cache, step, activation=activation)

    return Op(lambda n: [torch.randn(n, channels)], run, naive, (kernel - 1, channels))


def scan(function: Callable[..., Tensor], heads: int, groups: int, head_dim: int, size: int) -> Op:
    a, d, dt_bias, limits = -torch.rand(heads), torch.randn(heads), torch.randn(heads), (0.01, 0.7)

    def make(n: int) -> list[Tensor]:
        shapes = (heads, head_dim), (heads,), (groups, size), (groups, size)
        return [torch.randn(n, *shape) for shape in shapes]

    def naive(x: Tensor, dt: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        state, outputs, states = x.new_zeros(heads, head_dim, size), torch.empty_like(x), []
        dt = torch.nn.functional.softplus(dt + dt_bias.double()).clamp(*limits)
        for t in range(x.shape[0]):
            for h in range(heads):
                g = h // (heads // groups)
                state[h] = torch.exp(a[h].double() * dt[t, h]) * state[h] + dt[t, h] * torch.outer(x[t, h], b[t, g])
                outputs[t, h] = state[h] @ c[t, g] + d[h].double() * x[t, h]
            states.append(state.clone())
        return outputs, torch.stack(states)

    def run(x: Tensor, dt: Tensor, b: Tensor, c: Tensor, cache: Tensor, step: CacheStep) -> Tensor:
        return function(x, dt, a, b, c, d, dt_bias, limits, cache, step)

    return Op(make, run, naive, (heads, head_dim, size))


def delta(
    function: Callable[..., Tensor],
    heads: int,
    key_heads: int,
    key_dim: int,
    value_dim: int,
    *,
    by_channel: bool = False,
    steepness: float = 1.0,
) -> Op:
    decays = (heads, key_dim) if by_channel else (heads,)

    def make(n: int) -> list[Tensor]:
        shapes = (key_heads, key_dim), (key_heads, key_dim), (heads, value_dim)
        g = -steepness * torch.rand(n, *decays)
        return [*(torch.randn(n, *shape) for shape in shapes), g, torch.rand(n, heads)]

    def naive(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
        """As the paper has it: the state times ``decay * (1 - beta k k^T)``, and ``beta v k^T`` added."""
        state, outputs, states = q.new_zeros(heads, value_dim, key_dim), torch.empty_like(v), []
        for t in range(v.shape[0]):
            for h in range(heads):
                i = h // (heads // key_heads)
                unit_q, unit_k = (x[t, i] / (x[t, i].square().sum() + 1e-6).sqrt() for x in (q, k))
                forget = torch.eye(key_dim, dtype=q.dtype) - beta[t, h] * torch.outer(unit_k, unit_k)
                state[h] = g[t, h].exp() * state[h] @ forget + beta[t, h] * torch.outer(v[t, h], unit_k)
                outputs[t, h] = state[h] @ unit_q / key_dim**0.5
            states.append(state.clone())
        return outputs, torch.stack(states)

    return Op(make, function, naive, (heads, value_dim, key_dim))


OPS: dict[str, Callable[[], Op]] = {
    "conv": conv,
    "conv-plain": partial(conv, kernel=2, bias=False, activation=None),
    "conv-of-one": partial(conv, kernel=1),
    "scan": partial(scan, state_space_scan, 6, 2, 5, 7),
    "scan-one-group": partial(scan, state_space_scan, 3, 1, 8, 16),
    "scan-by-token": partial(scan, state_space_scan_by_token, 6, 3, 5, 7),
    "delta": partial(delta, gated_delta_rule, 6, 2, 9, 5),
    "delta-one-value-head-each": partial(delta, gated_delta_rule, 3, 3, 16, 8),
    "delta-by-token": partial(delta, gated_delta_rule_by_token, 6, 2, 9, 5),
    "kimi": partial(delta, gated_delta_rule, 6, 2, 9, 5, by_channel=True),
    "kimi-steep": partial(delta, gated_delta_rule, 3, 3, 16, 8, by_channel=True, steepness=40.0),
    "kimi-by-token": partial(delta, gated_delta_rule_by_token, 6, 2, 9, 5, by_channel=True),
}
SAME_BITS = ("conv", "conv-plain", "scan-by-token", "delta-by-token", "kimi-by-token")


@pytest.fixture(params=OPS)
def op(request: pytest.FixtureRequest) -> Op:
    torch.manual_seed(1)
    return OPS[request.param]()


@pytest.mark.slow
@pytest.mark.parametrize("block_size", [1, 5, 16, 64, 1000])
@pytest.mark.parametrize("steps", CUTS, ids=["whole", "ends-apart", "mixed", "decode-first"])
def test_equals_the_recurrence_and_keeps_its_states(op: Op, steps: Sequence[Step], block_size: int) -> None:
    """A full block holds the state after its last token; the last block holds the state after the last token."""
    cached = Cached(block_size, op.state)
    inputs = {name: op.make(total) for name, total in totals(steps).items()}
    found = run_steps(op.run, steps, cached, inputs)
    for name, total in totals(steps).items():
        outputs, states = op.naive(*(x.double() for x in inputs[name]))
        assert error(found[name], outputs) < BOUND
        for i, block in enumerate(cached.tables[name]):
            assert error(cached.caches[0][block], states[min((i + 1) * block_size, total) - 1]) < BOUND


@pytest.mark.parametrize("name", ["conv", "scan", "scan-by-token", "delta", "delta-by-token", "kimi"])
def test_a_prefix_may_be_taken_up_at_any_snapshot(name: str) -> None:
    """Another request that starts with a shared block, as after a prefix hit, continues as if it had computed it."""
    op = OPS[name]()
    cached = Cached(16, op.state)
    inputs = op.make(70)
    whole = run_steps(op.run, [[("first", 70)]], cached, {"first": inputs})["first"]
    cached.tables["second"], cached.lengths["second"] = cached.tables["first"][:3], 48
    snapshots = cached.caches[0][cached.tables["second"]].clone()
    rest = run_steps(op.run, [[("second", 1)], [("second", 21)]], cached, {"second": inputs})["second"]
    assert error(rest, whole[48:].double()) < BOUND
    assert torch.equal(cached.caches[0][cached.tables["first"][:3]], snapshots)


@pytest.mark.parametrize("block_size", [5, 1000])
def test_writes_only_its_own_states(op: Op, block_size: int) -> None:
    """Blocks of others, what lies between the blocks of a strided cache, and the rows of padding."""
    cached = Cached(block_size, op.state)
    for work in ([("a", 9), ("b", 1)], [("a", 1), ("b", 1)]):
        step = cached.step(work, padding=2)
        inputs = op.make(step.num_tokens)
        padded = [torch.cat((x, torch.full((2, *x.shape[1:]), float("nan")))) for x in inputs]
        out = op.run(*padded, *cached.caches, step)
        assert out[: step.num_tokens].isfinite().all()
        assert torch.equal(out[step.num_tokens :], torch.zeros_like(out[step.num_tokens :]))
    written = cached.written()
    others = [block for block in range(cached.num_blocks) if block not in written]
    assert cached.caches[0][sorted(written)].isfinite().all()
    assert cached.caches[0][others].isnan().all()
    width = torch.Size(op.state).numel()
    assert cached.pool[:, :2].isnan().all()
    assert cached.pool[:, 2 + width :].isnan().all()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", SAME_BITS)
def test_results_are_invariant_to_chunking_and_batch(name: str, threads: int) -> None:
    torch.manual_seed(2)
    op = OPS[name]()
    inputs = {"a": op.make(150), "b": op.make(150), "c": op.make(150)}
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        whole = run_steps(op.run, [[(name, 150)] for name in inputs], Cached(64, op.state), inputs)
        for block_size, steps in zip((64, 7, 1, 64), CUTS, strict=True):
            found = run_steps(op.run, steps, Cached(block_size, op.state), inputs)
            assert all(torch.equal(out, whole[request][: out.shape[0]]) for request, out in found.items())
    finally:
        torch.set_num_threads(before)


def test_decoding_in_a_batch_equals_decoding_alone() -> None:
    """Bit for bit, at sizes at which torch's kernels share out work among threads."""
    torch.manual_seed(3)
    for op in (scan(state_space_scan_by_token, 8, 2, 32, 64), delta(gated_delta_rule_by_token, 8, 4, 64, 32)):
        names = [str(i) for i in range(33)]
        inputs = {name: op.make(3) for name in names}
        together = run_steps(op.run, [[(name, 1) for name in names]] * 3, Cached(64, op.state, requests=33), inputs)
        for name in names[::8]:
            alone = run_steps(op.run, [[(name, 1)]] * 3, Cached(64, op.state), inputs)
            assert torch.equal(alone[name], together[name])


@pytest.mark.parametrize("name", ["conv", "scan", "scan-by-token", "delta", "delta-by-token"])
def test_keeps_the_dtype_of_its_inputs(name: str) -> None:
    """The states of scans stay float32: the result is that of the rounded inputs, rounded once."""
    torch.manual_seed(4)
    op = OPS[name]()
    inputs = [x.bfloat16() for x in op.make(40)]
    cached = Cached(16, op.state)
    cache = cached.caches[0].bfloat16() if name == "conv" else cached.caches[0]
    out = op.run(*inputs, cache, cached.step([("a", 40)]))
    assert out.dtype == torch.bfloat16
    expected = op.naive(*(x.double() for x in inputs))[0]
    assert error(out, expected) < 2.5e-3
