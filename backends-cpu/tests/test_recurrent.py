"""Native recurrent layers against the reference, at every level of instructions that this machine has: results, and the
states that are left in the cache."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any

import pytest
import torch
from levels import LIBRARY, at_level
from torch import Tensor

from llmk.api import CacheStep
from llmk.reference.compare import relative_error
from llmk.reference.examples import recurrent as examples
from llmk.reference.op_examples import Draw, OpExamples
from llmk.reference.recurrent import causal_conv, delta_rule, gated_norm, selective_scan, short_conv, state_space_scan

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
BOUND = {torch.float32: 1e-5, torch.bfloat16: 8e-3, torch.float16: 1.5e-3}
OPS: dict[str, tuple[Any, OpExamples]] = {
    "causal_conv": (causal_conv.causal_conv, examples.CAUSAL_CONV),
    "short_conv": (short_conv.short_conv, examples.SHORT_CONV),
    "state_space_scan": (state_space_scan.state_space_scan_by_token, examples.STATE_SPACE_SCAN),
    "gated_delta_rule": (delta_rule.gated_delta_rule_by_token, examples.GATED_DELTA_RULE),
    "selective_scan": (selective_scan.selective_scan, examples.SELECTIVE_SCAN),
}


@pytest.fixture(params=LIBRARY.levels)
def native(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    with at_level(request.param, monkeypatch) as modules:
        yield modules["recurrent"]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", OPS)
def test_results_and_states_are_the_references(name: str, dtype: torch.dtype, native: Any) -> None:
    reference, cases = OPS[name]
    for facts in cases.facts_at():
        for rows in () if "channel_decays" in facts else (1, 4):  # which the native kernel does not know
            draw = Draw(torch.Generator().manual_seed(rows), dtype)
            args, options = cases.make(draw, facts, rows), cases.options_at(draw, facts)
            mirror = copy.deepcopy(args)
            found, expected = getattr(native, name)(*args, **options), reference(*mirror, **options)
            assert found.dtype == expected.dtype
            assert relative_error(found, expected) < BOUND[dtype], facts
            for one, other in zip(_caches(args), _caches(mirror), strict=True):
                assert torch.equal(one.isnan(), other.isnan()), facts
                loose = BOUND[torch.bfloat16 if one.dtype == torch.bfloat16 else dtype]
                assert relative_error(one.nan_to_num(), other.nan_to_num()) < loose, facts


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gated_norms(dtype: torch.dtype, native: Any) -> None:
    for shape, groups in (((5, 96), 3), ((0, 16), 1), ((7, 2, 13), 1), ((1, 1024), 8), ((300, 130), 2)):
        wide, weight = torch.randn(*shape[:-1], 2 * shape[-1]).to(dtype), torch.randn(shape[-1]).to(dtype)
        x, gate = wide.chunk(2, dim=-1)
        for after in (False, True):
            own = {"groups": groups, "norm_before_gate": after}
            found = native.gated_rms_norm(x, gate, weight, 1e-5, **own)
            assert relative_error(found, gated_norm.gated_rms_norm(x, gate, weight, 1e-5, **own)) < BOUND[dtype]


@pytest.mark.parametrize("name", ["causal_conv", "state_space_scan", "gated_delta_rule", "selective_scan"])
def test_a_prompt_in_parts_is_the_same_to_the_bit(name: str, native: Any) -> None:
    """And so is a request in a batch of others, whose blocks lie in between."""
    cases, op = OPS[name][1], getattr(native, name)
    draw = Draw(torch.Generator().manual_seed(7), torch.bfloat16)
    whole = cases.make(draw, cases.facts_at()[0], 4)
    step: CacheStep = whole[-1]
    caches = _caches(whole)[0].clone()
    expected = op(*whole)
    first, last = (int(step.query_start[i]) for i in (0, 1))
    length = int(step.seq_lens[0])
    assert last - first == length, "the first request is a new prompt"
    found, again = [], caches.clone()
    for start, end in pairwise((0, 1, 15, 16, 30, length)):
        part = CacheStep(
            torch.tensor([0, end - start], dtype=torch.int32), torch.tensor([end], dtype=torch.int32),
            step.block_table[:1], torch.zeros(end - start, dtype=torch.int64), 1, end - start, end - start, end,
            step.block_size,
        )  # fmt: skip
        given = [each[first + start : first + end] if _of_tokens(each, step) else each for each in whole[:-2]]
        found.append(op(*given, again, part))
    assert torch.equal(torch.cat(found), expected[first:last])
    blocks = step.block_table[0].long().unique()
    kept = _caches(whole)[0][blocks]
    assert torch.equal(again[blocks].nan_to_num(), kept.nan_to_num())


def _of_tokens(each: Any, step: CacheStep) -> bool:
    return isinstance(each, Tensor) and each.shape[0] == step.num_tokens


def _caches(args: tuple[Any, ...]) -> list[Tensor]:
    """The argument before the step: caches that are read and written."""
    return list(args[-2]) if isinstance(args[-2], tuple) else [args[-2]]
