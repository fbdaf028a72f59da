"""Inputs of ops in the corners that the conformance kit asks of: by an op's name, facts and arguments for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from llmk.api import CacheStep
from llmk.reference.inputs import EPS, EXAMPLES
from llmk.reference.op_examples import Draw, Facts, OpExamples
from llmk_testing.states import conv_inputs, delta_inputs, delta_net_inputs, mixer_inputs, scan_inputs

_VOCAB = 1000
_LOGITS: tuple[Facts, ...] = ({"vocab_size": _VOCAB},)
_CAPPED = tuple({"size": size} for size in (128, 72, 4096, 33))


def _softcap(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    return draw.floats(rows, facts["size"], scale=40.0), 30.0


def _logits(draw: Draw, rows: int, scale: float = 3.0) -> Tensor:
    return draw.reals(rows, _VOCAB) * scale


def _penalties(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    prompts = draw.whole(1, 20, rows)
    known = prompts + draw.whole(0, 20, rows)
    given = draw.reals(rows), draw.reals(rows), 1 + 0.5 * torch.rand(rows, generator=draw.random)
    tokens = draw.whole(0, 30, rows + 2, 64).to(torch.int32)
    return (
        _logits(draw, 2 * rows),
        draw.order(2 * rows)[:rows],
        tokens,
        draw.order(rows + 2)[:rows],
        prompts,
        known,
        *given,
    )


def _bias(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    """Some place twice."""
    at, ids = draw.whole(0, rows, 3 * rows), draw.whole(0, _VOCAB, 3 * rows)
    at[-1], ids[-1] = at[0], ids[0]
    return _logits(draw, rows), at, ids, draw.reals(3 * rows)


def _suffixes(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    """Sequences that are there, that begin too early, and that are not there."""
    tokens, slots = draw.whole(0, 5, rows + 2, 40).to(torch.int32), draw.order(rows + 2)[:rows]
    ends, lengths = draw.whole(6, 41, rows), draw.whole(1, 5, rows)
    place = ends[:, None] - torch.arange(4, 0, -1)
    suffixes = tokens[slots[:, None], place].to(torch.int64)
    suffixes[torch.arange(4).expand(rows, 4) < 4 - lengths[:, None]] = -1
    suffixes[1::3, -1] += 1
    starts = torch.where(torch.arange(rows) % 3 == 2, ends - lengths + 1, ends - lengths)
    return tokens, slots, starts, ends, suffixes


def _allowed(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    among = draw.order(2 * rows)[:rows]
    return _logits(draw, 2 * rows), among, among.repeat(7), draw.whole(0, _VOCAB, 7 * rows)


def _truncation(draw: Draw, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    top_k = torch.tensor([0, 1, 50, 600, 9999])[draw.whole(0, 5, rows)]
    top_p = torch.tensor([1.0, 0.5, 0.9, 0.9999, 1e-6])[draw.whole(0, 5, rows)]
    return top_k, top_p, torch.tensor([0.0, 0.2, 0.001])[draw.whole(0, 3, rows)]


def _mask(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    return _logits(draw, rows), *_truncation(draw, rows)


def _sample(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    """In the engine's dtype, some rows greedy; of a small vocabulary, where the host takes no shortcut."""
    temperature = torch.tensor([1.0, 0.7, 0.0, 2.0])[draw.whole(0, 4, rows)]
    chosen = draw.whole(-(2**62), 2**62, rows), draw.whole(0, 5000, rows)
    return _logits(draw, rows).to(draw.dtype), temperature, *_truncation(draw, rows), *chosen


def _logprobs(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    """Rounded, so that some are equal."""
    return (_logits(draw, rows) * 4).round().div(4).to(draw.dtype), draw.whole(0, _VOCAB, rows), 5


def _update_rows(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    starts, lengths = draw.whole(0, 30, rows), draw.whole(0, 30, rows)
    table = draw.whole(0, 1000, rows + 3, 64).to(torch.int32)
    return table, draw.order(rows + 3)[:rows], starts, lengths, draw.whole(0, 10**6, int(lengths.sum()))


def _build_step(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    """Prompts and decodes, then padding of both kinds."""
    counts = torch.where(draw.whole(0, 2, rows) > 0, 1, draw.whole(1, 9, rows))
    slots = torch.cat([draw.order(rows + 2)[:rows], torch.tensor([-1, -1])])
    tokens, computed = draw.whole(0, _VOCAB, rows + 2, 64).to(torch.int32), draw.whole(0, 50, rows + 2)
    return tokens, computed, slots, torch.cat([counts, torch.zeros(2, dtype=torch.int64)]), int(counts.sum()) + 3


def _map_slots(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    table = draw.order((rows + 2) * 8).view(rows + 2, 8).to(torch.int32)
    owners = draw.whole(0, rows, 3 * rows).sort().values
    owners[-1] = -1
    return table, draw.order(rows + 2)[:rows], owners, draw.whole(0, 16 * 5, 3 * rows), 16, 5


def _append(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    slots = torch.cat([draw.order(rows + 2)[:rows], torch.tensor([-1])])
    tokens, computed = draw.whole(0, _VOCAB, rows + 2, 64).to(torch.int32), draw.whole(1, 50, rows + 2)
    return tokens, computed, slots, draw.whole(0, _VOCAB, rows + 1)


def _gated_norm(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    size = facts["num_heads"] * facts["head_dim"]
    return draw.floats(rows, size), draw.floats(rows, size, scale=2.0), draw.floats(size), EPS


_DELTA = {"num_heads": 6, "num_key_heads": 2, "key_dim": 12, "value_dim": 8, "conv_kernel": 4}
_SPACE: dict[str, Any] = {
    "num_heads": 6,
    "head_dim": 8,
    "num_groups": 2,
    "state_size": 10,
    "conv_kernel": 4,
    "conv_bias": True,
}
_SPACE |= {"dt_limits": (0.0, None)}
_NOTHING: tuple[Facts, ...] = ({},)

INPUTS: Mapping[str, OpExamples] = {
    **EXAMPLES,
    "softcap": OpExamples(_CAPPED, _softcap, (0,)),
    "gated_rms_norm": OpExamples((_SPACE,), _gated_norm, (0, 1), (1,), {"groups": 2}),
    "apply_penalties": OpExamples(_LOGITS, _penalties),
    "apply_bias": OpExamples(_LOGITS, _bias),
    "match_suffixes": OpExamples(_LOGITS, _suffixes),
    "allow_tokens": OpExamples(_LOGITS, _allowed),
    "mask_top_k_top_p_min_p": OpExamples(_LOGITS, _mask, (0, 1, 2, 3)),
    "sample": OpExamples(_LOGITS, _sample, (0, 1, 2, 3, 4, 5, 6)),
    "logprobs": OpExamples(_LOGITS, _logprobs, (0, 1)),
    "update_rows": OpExamples(_NOTHING, _update_rows),
    "build_step": OpExamples(_NOTHING, _build_step),
    "map_slots": OpExamples(_NOTHING, _map_slots),
    "append_tokens": OpExamples(_NOTHING, _append),
    "causal_conv": OpExamples((_SPACE,), conv_inputs),
    "state_space_scan": OpExamples((_SPACE,), scan_inputs),
    "gated_delta_rule": OpExamples((_DELTA,), delta_inputs),
    "state_space_mixer": OpExamples((_SPACE,), mixer_inputs, chained=True),
    "gated_delta_net": OpExamples((_DELTA,), delta_net_inputs, chained=True),
}
"""Ops that take tensors alone. Those over an attention backend are in :mod:`llmk_testing.attention_ops`, those with a
product in :mod:`llmk_testing.product_ops`."""


def mapped(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    """``value`` with every tensor in it changed: in tuples, mappings and steps."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, CacheStep):
        every = {field.name: getattr(value, field.name) for field in fields(value)}
        return CacheStep(**{name: mapped(change, one) for name, one in every.items()})
    if isinstance(value, tuple):
        changed = [mapped(change, one) for one in value]
        return type(value)(*changed) if hasattr(value, "_fields") else tuple(changed)
    return value


def tensors(value: Any) -> list[Tensor]:
    """All tensors in ``value``, in order."""
    found: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    mapped(note, value)
    return found
