"""Inputs of recurrent ops: steps with cached states; unused states are NaN."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from llmk.api import CacheStep, DraftTails
from llmk.reference.op_examples import Draw, Facts, OpExamples

_BLOCK = 16
_PROMPTS = ((0, 37), (20, 21), (15, 40), (0, 3))
"""The tokens of each request in the step: new prompts, a decode, and a chunk that starts before a block's last
token."""


_LONG_PROMPTS = ((0, 230), (120, 121), (63, 200), (0, 3))
"""In longer blocks: several chunks of any kernel in each."""

_ACCEPTED = (0, 2, 3, 0)
"""With drafts, how many of each request's were accepted in the step before."""


def _step(draw: Draw, rows: int, facts: Facts, *, late: bool = False) -> tuple[CacheStep, list[int], int]:
    """A step, the blocks of the states before it, and the number of blocks. With one row, the step contains only
    decodes. Where the ``facts`` have drafts, each request ends with as many, and with ``late``, states lack some of
    the step before. Where they have a block size, prompts are long."""
    size = facts.get("block_size", _BLOCK)
    prompts = _PROMPTS if size == _BLOCK else _LONG_PROMPTS
    work = [(20, 21), (31, 32), (32, 33)] if rows == 1 else list(prompts)
    most = facts.get("max_drafts", 0)
    work = [(start, stop + most) for start, stop in work]
    accepted = [count if late and most else 0 for count in _ACCEPTED[: len(work)]]
    each = 3
    order = draw.order(len(work) * each + 1)
    table, poison = order[:-1].view(len(work), each).clone(), int(order[-1])
    settled = [start - count for (start, _), count in zip(work, accepted, strict=True)]
    before = [int(table[i, (start - 1) // size]) for i, start in enumerate(settled) if start]
    for i, (start, (_, stop)) in enumerate(zip(settled, work, strict=True)):
        table[i, : max(start - 1, 0) // size] = poison
        table[i, -(-stop // size) :] = poison
    slots = [(2, 0, 3, 1)[i] for i in range(len(work))]
    columns = slots, accepted, [most] * len(work)
    counts = [stop - start for start, stop in work]
    step = CacheStep(
        query_start=torch.tensor([0, *accumulate(counts)], dtype=torch.int32),
        seq_lens=torch.tensor([stop for _, stop in work], dtype=torch.int32),
        block_table=table.to(torch.int32),
        slot_mapping=torch.full((sum(counts),), -1),
        num_requests=len(work),
        num_tokens=sum(counts),
        max_query_len=max(counts),
        max_seq_len=max(stop for _, stop in work),
        block_size=size,
        host_query_lens=counts,
        host_seq_lens=[stop for _, stop in work],
        tails=DraftTails(*map(torch.tensor, columns)) if most else None,
    )
    return step, before, order.numel()


def _cache(draw: Draw, before: list[int], blocks: int, dtype: torch.dtype, *shape: int) -> Tensor:
    cache = torch.full((blocks, *shape), torch.nan, dtype=dtype)
    cache[before] = draw.reals(len(before), *shape).to(dtype)
    return cache


def _kept(facts: Facts) -> torch.dtype:
    """The dtype of states in which small changes accumulate."""
    dtype: torch.dtype = getattr(torch, facts.get("state_dtype", "float32"))
    return dtype


def _tails(draw: Draw, step: CacheStep, *widths: int) -> tuple[Tensor, ...]:
    """Tails of inputs of these widths, NaN but for what was accepted; none without drafts."""
    if step.tails is None:
        return ()
    most = int(step.tails.num_drafts[0])
    found = tuple(torch.full((5, most, width), torch.nan, dtype=draw.dtype) for width in widths)
    for slot, count in zip(step.tails.slots.tolist(), step.tails.accepted.tolist(), strict=True):
        for tail, width in zip(found, widths, strict=True):
            tail[slot, :count] = draw.floats(count, width)
    return found


def _conv(draw: Draw, facts: Facts, rows: int, *, late: bool = False) -> tuple[Any, ...]:
    """Of ``causal_conv``."""
    step, before, blocks = _step(draw, rows, facts, late=late)
    kernel = facts["conv_kernel"]
    channels = facts["num_heads"] * facts["head_dim"] + 2 * facts["num_groups"] * facts["state_size"]
    cache = _cache(draw, before, blocks, draw.dtype, kernel - 1, channels)
    return draw.floats(step.num_tokens, channels), draw.floats(channels, kernel), draw.floats(channels), cache, step


def _scan(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    """Of ``state_space_scan``."""
    step, before, blocks = _step(draw, rows, facts)
    tokens, heads, size, states = step.num_tokens, facts["num_heads"], facts["head_dim"], facts["state_size"]
    x, dt = draw.floats(tokens, heads, size), draw.floats(tokens, heads)
    b, c = (draw.floats(tokens, facts["num_groups"], states) for _ in range(2))
    cache = _cache(draw, before, blocks, _kept(facts), heads, size, states)
    return x, dt, _decay(draw, heads), b, c, draw.reals(heads), draw.reals(heads), facts["dt_limits"], cache, step


def _decay(draw: Draw, heads: int) -> Tensor:
    return -0.1 - torch.rand(heads, generator=draw.random)


def _mixer(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    """Of ``state_space_mixer``."""
    _, weight, bias, conv, step = _conv(draw, facts, rows, late=True)
    heads, inner = facts["num_heads"], facts["num_heads"] * facts["head_dim"]
    before = conv.isfinite().flatten(1).all(1).nonzero().flatten().tolist()
    scan = _cache(draw, before, conv.shape[0], _kept(facts), heads, facts["head_dim"], facts["state_size"])
    caches = conv, scan, *_tails(draw, step, weight.shape[0], heads)
    projected = draw.floats(step.num_tokens, inner + weight.shape[0] + heads)
    scanned = _decay(draw, heads), draw.reals(heads), draw.reals(heads), facts["dt_limits"]
    norm = None if facts.get("gating") == "gate_only" else draw.floats(inner)
    return projected, weight, bias, *scanned, norm, 1e-5, caches, step


def _gating(draw: Draw, facts: Facts) -> Facts:
    return {"gating": facts["gating"]} if "gating" in facts else {}


def _short(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    """Of ``short_conv``."""
    step, before, blocks = _step(draw, rows, facts, late=True)
    channels, kernel = facts["channels"], facts["conv_kernel"]
    cache = _cache(draw, before, blocks, draw.dtype, kernel - 1, channels)
    x = draw.floats(step.num_tokens, channels * (3 if facts["gated"] else 1))
    caches = cache, *_tails(draw, step, channels)
    return x, draw.floats(channels, kernel), draw.floats(channels), caches, step


def _short_options(draw: Draw, facts: Facts) -> Facts:
    return {"gated": True} if facts["gated"] else {"activation": facts["activation"]}


def _selective(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    """Of ``selective_scan``."""
    step, before, blocks = _step(draw, rows, facts)
    tokens, channels, size = step.num_tokens, facts["channels"], facts["state_size"]
    x, dt = draw.floats(tokens, channels), draw.floats(tokens, channels)
    gate, (_, b, c) = draw.floats(tokens, 2 * channels)[:, channels:], draw.floats(tokens, 3 * size).chunk(3, 1)
    a = -0.1 - torch.rand(channels, size, generator=draw.random, device=draw.random.device)
    cache = _cache(draw, before, blocks, _kept(facts), channels, size)
    return x, dt, a, b, c, draw.reals(channels), draw.reals(channels), gate, cache, step


def _delta(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    """Of ``gated_delta_rule``."""
    step, before, blocks = _step(draw, rows, facts)
    tokens, heads, keys = step.num_tokens, facts["num_heads"], facts["num_key_heads"]
    q, k = (draw.floats(tokens, keys, facts["key_dim"]) for _ in range(2))
    decays = (heads, facts["key_dim"]) if "channel_decays" in facts else (heads,)
    g, beta = (torch.rand(tokens, *of, generator=draw.random) for of in (decays, (heads,)))
    cache = _cache(draw, before, blocks, _kept(facts), heads, facts["value_dim"], facts["key_dim"])
    return q, k, draw.floats(tokens, heads, facts["value_dim"]), -g, beta, cache, step


def _lightning(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    """Of ``lightning_attention``."""
    step, before, blocks = _step(draw, rows, facts, late=True)
    heads, size = facts["num_heads"], facts["head_dim"]
    q, k, v = draw.floats(step.num_tokens, 3 * heads, size).chunk(3, 1)
    states = _cache(draw, before, blocks, _kept(facts), heads, size, size)
    return q, k, v, _decay(draw, heads), (states, *_tails(draw, step, *[heads * size] * 3)), step


def _delta_net(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    """Of ``gated_delta_net``."""
    step, before, blocks = _step(draw, rows, facts, late=True)
    tokens, heads, value = step.num_tokens, facts["num_heads"], facts["value_dim"]
    channels = 2 * facts["num_key_heads"] * facts["key_dim"] + heads * value
    conv = _cache(draw, before, blocks, draw.dtype, facts["conv_kernel"] - 1, channels)
    memory = _cache(draw, before, blocks, _kept(facts), heads, value, facts["key_dim"])
    keys, shared_by = facts["num_key_heads"], heads // facts["num_key_heads"]
    # As Qwen3-Next projects them: interleaved by key head.
    sizes = [facts["key_dim"]] * 2 + [shared_by * value] * 2
    q, k, v, gate = draw.floats(tokens, keys, sum(sizes)).split_with_sizes(sizes, 2)
    a, b = draw.floats(tokens, keys, 2, shared_by).unbind(2)
    decays: tuple[int, ...] = (heads,)
    if "channel_decays" in facts:
        decays = heads, facts["key_dim"]
        a = draw.floats(tokens, keys, shared_by, facts["key_dim"])
    rows_of = q, k, v.unflatten(2, (shared_by, value)), gate.unflatten(2, (shared_by, value)), a, b
    weights = (
        draw.floats(channels, facts["conv_kernel"]),
        _decay(draw, heads),
        draw.reals(*decays),
        draw.floats(value),
        1e-5,
    )
    caches = conv, memory, *_tails(draw, step, channels, a[0].numel(), heads)
    return *rows_of, *weights, caches, step


def _delta_options(draw: Draw, facts: Facts) -> Facts:
    return {name: facts[name] for name in ("gate_activation", "decay_bound") if name in facts}


_DELTA = {"num_heads": 6, "num_key_heads": 2, "key_dim": 12, "value_dim": 8, "conv_kernel": 4}
_SPACE: Facts = {
    "num_heads": 6,
    "head_dim": 8,
    "num_groups": 2,
    "state_size": 10,
    "conv_kernel": 4,
    "conv_bias": True,
    "dt_limits": (0.0, None),
}

_HEADS: Facts = {"num_heads": 3, "head_dim": 12, "num_groups": 3, "state_size": 12, "dt_limits": (1.0, 1.0)}
_LARGE_HEADS = {**_HEADS, "num_heads": 2, "head_dim": 96, "num_groups": 2, "state_size": 96, "block_size": 100}
_LARGE_SPACE = {**_SPACE, "num_heads": 4, "head_dim": 64, "num_groups": 1, "state_size": 128, "block_size": 100}
_LARGE_DELTA = {**_DELTA, "num_heads": 2, "num_key_heads": 1, "key_dim": 128, "value_dim": 64, "block_size": 100}
_SPACES = (_SPACE, {**_SPACE, "max_drafts": 3}, {**_SPACE, "state_dtype": "bfloat16"}, _LARGE_SPACE)
_KIMI = {"channel_decays": True, "gate_activation": "sigmoid"}
_DELTAS = (
    _DELTA,
    {**_DELTA, "max_drafts": 3},
    {**_DELTA, "state_dtype": "bfloat16"},
    _LARGE_DELTA,
    {**_DELTA, **_KIMI},
    {**_DELTA, **_KIMI, "max_drafts": 3},
    {**_DELTA, **_KIMI, "decay_bound": -5.0},
    {**_LARGE_DELTA, **_KIMI},
)

_PLAIN_CONV: Facts = {"channels": 40, "conv_kernel": 4, "gated": False, "activation": "silu"}
_GATED_CONV: Facts = {"channels": 40, "conv_kernel": 3, "gated": True, "activation": ""}
_CHANNELS: Facts = {"channels": 40, "state_size": 10}

SHORT_CONV = OpExamples(
    (
        _PLAIN_CONV,
        {**_PLAIN_CONV, "activation": "", "conv_kernel": 1},
        _GATED_CONV,
        {**_GATED_CONV, "max_drafts": 3},
        {**_GATED_CONV, "block_size": 100},
    ),
    _short,
    keywords=_short_options,
    optional=("bias",),
    chained=True,
)
SELECTIVE_SCAN = OpExamples(
    (_CHANNELS, {**_CHANNELS, "state_dtype": "bfloat16"}, {**_CHANNELS, "state_size": 16, "block_size": 100}),
    _selective,
)
LIGHTNING_ATTENTION = OpExamples(
    (_HEADS, {**_HEADS, "max_drafts": 3}, {**_HEADS, "state_dtype": "bfloat16"}, _LARGE_HEADS), _lightning, chained=True
)
CAUSAL_CONV = OpExamples(_SPACES, _conv)
STATE_SPACE_SCAN = OpExamples(_SPACES, _scan)
GATED_DELTA_RULE = OpExamples(_DELTAS, _delta)
_GATED = tuple({**_SPACE, "gating": gating} for gating in ("norm_first", "gate_only"))

STATE_SPACE_MIXER = OpExamples((*_SPACES, *_GATED), _mixer, keywords=_gating, chained=True)
GATED_DELTA_NET = OpExamples(_DELTAS, _delta_net, keywords=_delta_options, chained=True)
