"""Recurrent layers: decoding, prompts, and both in one step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from kernel_cases.harness import BATCHES, Case, Named
from llmk.api import CacheStep
from llmk.reference.recurrent.causal_conv import causal_conv
from llmk.reference.recurrent.delta_rule import gated_delta_rule
from llmk.reference.recurrent.gated_norm import gated_rms_norm
from llmk.reference.recurrent.mixers import make_gated_delta_net, make_state_space_mixer
from llmk.reference.recurrent.state_space_scan import state_space_scan
from llmk_triton.recurrent import delta_net, state_space

EPS, KERNEL, BLOCK = 1e-5, 4, 1024
COLD = 256 << 20
"""Bytes of states that no cache holds."""
PROMPTS = ((2048,), (128,), (512,) * 8, (1,) * 32 + (480,))
"""The tokens of each request: prompts, and one with requests that decode."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A recurrent layer. ``sizes`` are those of its heads' states."""

    name: str
    op: Callable[..., Tensor]
    by_token: Callable[..., Tensor]
    reference: Callable[..., Tensor]
    state: tuple[int, int, int]
    shared: int
    """Groups of a scan, or key heads of a delta net."""
    dtype: torch.dtype = torch.bfloat16
    state_dtype: torch.dtype = torch.float32

    @property
    def is_scan(self) -> bool:
        """Whether it is a selective scan, not a delta rule."""
        return self.reference is _SCAN

    @property
    def channels(self) -> int:
        """Of the convolution."""
        heads, rows, columns = self.state
        return heads * rows + 2 * self.shared * columns


_PARTS = {"causal_conv": causal_conv, "gated_rms_norm": gated_rms_norm}
_SCAN = make_state_space_mixer({**_PARTS, "state_space_scan": state_space_scan})
_DELTA = make_gated_delta_net({**_PARTS, "gated_delta_rule": gated_delta_rule})
_SCANS = (state_space.state_space_mixer, state_space.state_space_mixer_by_token, _SCAN)
_DELTAS = (delta_net.gated_delta_net, delta_net.gated_delta_net_by_token, _DELTA)
LAYERS = (
    Layer("mamba2-2.7b", *_SCANS, (80, 64, 128), 1),
    Layer("mamba-codestral-7b", *_SCANS, (128, 64, 128), 8),
    Layer("qwen3-next", *_DELTAS, (32, 128, 128), 16),
    Layer("mamba2-2.7b 16-bit states", *_SCANS, (80, 64, 128), 1, state_dtype=torch.bfloat16),
    Layer("qwen3-next 16-bit states", *_DELTAS, (32, 128, 128), 16, state_dtype=torch.bfloat16),
)
TINY_LAYERS = tuple(
    Layer(name, *ops, (2, 16, 16), 1, torch.float32) for name, ops in (("tiny scan", _SCANS), ("tiny delta", _DELTAS))
)


def cases(device: torch.device, *, tiny: bool) -> Iterator[Named]:
    """Batches that decode, then :data:`PROMPTS`, in chunks and, as far as that is ever chosen, token by token."""
    for layer in TINY_LAYERS if tiny else LAYERS:
        for batch in (3,) if tiny else BATCHES:
            yield f"recurrent {layer.name} x{batch}", partial(_case, layer, layer.op, (1,) * batch, device)
        for counts in ((1, 10),) if tiny else PROMPTS:
            name = f"recurrent {layer.name} prompts {len(counts)} of {max(counts)}"
            yield name, partial(_case, layer, layer.op, counts, device)
            if sum(counts) < 1024:
                yield f"{name} by token", partial(_case, layer, layer.by_token, counts, device)


def _case(layer: Layer, op: Callable[..., Tensor], counts: Sequence[int], device: torch.device) -> Case:
    requests, tokens = len(counts), sum(counts)
    per_request = (
        layer.state_dtype.itemsize * torch.Size(layer.state).numel()
        + layer.dtype.itemsize * (KERNEL - 1) * layer.channels
    )
    sets = max(1, min(16, COLD // (per_request * requests)))
    step = _step(counts, device)
    inputs = _inputs(layer, tokens, device)
    caches = [_caches(layer, requests, device) for _ in range(sets)]
    before = tuple(cache.clone() for cache in caches[0])
    heads, rows, columns = layer.state
    read = layer.channels + heads * rows + heads
    moved = 2 * requests * per_request + tokens * (read + heads * rows) * layer.dtype.itemsize
    products = 6 * tokens * heads * rows * columns

    def expected() -> tuple[Tensor, ...]:
        return layer.reference(*inputs, before, step), *before

    return Case(
        lambda i: (op(*inputs, caches[i], step), *caches[i]),
        expected,
        moved,
        products if tokens > requests else 0,
        sets=sets,
        tolerance=1.6e-2,
    )


def _step(counts: Sequence[int], device: torch.device) -> CacheStep:
    """Requests that decode have 20 tokens before the step; prompts are new."""
    requests, lengths = len(counts), [count if count > 1 else 21 for count in counts]
    blocks = 1 + max(lengths) // BLOCK
    table = torch.arange(requests * blocks, dtype=torch.int32).view(requests, blocks)
    return CacheStep(
        query_start=torch.tensor([0, *accumulate(counts)], dtype=torch.int32, device=device),
        seq_lens=torch.tensor(lengths, dtype=torch.int32, device=device),
        block_table=table.to(device),
        slot_mapping=torch.zeros(sum(counts), dtype=torch.int64, device=device),
        num_requests=requests,
        num_tokens=sum(counts),
        max_query_len=max(counts),
        max_seq_len=max(lengths),
        block_size=BLOCK,
    )


def _caches(layer: Layer, requests: int, device: torch.device) -> tuple[Tensor, Tensor]:
    blocks = requests * (1 + max(max(counts) for counts in PROMPTS) // BLOCK)
    conv = torch.randn(blocks, KERNEL - 1, layer.channels, device=device).to(layer.dtype)
    return conv, torch.randn(blocks, *layer.state, device=device).to(layer.state_dtype)


def _inputs(layer: Layer, tokens: int, device: torch.device) -> tuple[Any, ...]:
    heads, rows, columns = layer.state

    def reals(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device)

    def floats(*shape: int) -> Tensor:
        return reals(*shape).to(layer.dtype)

    decay, weight = -0.1 - torch.rand(heads, device=device), floats(layer.channels, KERNEL)
    if layer.is_scan:
        projected = floats(tokens, heads * rows + layer.channels + heads)
        scanned = decay, reals(heads), reals(heads), (0.0, None)
        return projected, weight, floats(layer.channels), *scanned, floats(heads * rows), EPS
    shared_by = heads // layer.shared
    parts = [columns] * 2 + [shared_by * rows] * 2
    q, k, v, gate = floats(tokens, layer.shared, sum(parts)).split_with_sizes(parts, 2)
    v, gate = (x.unflatten(2, (shared_by, rows)) for x in (v, gate))
    a, b = floats(tokens, layer.shared, 2, shared_by).unbind(2)
    return q, k, v, gate, a, b, weight, decay, reals(heads), floats(rows), EPS
