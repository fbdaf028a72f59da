"""The estimated cost of steps, against counts by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from paged_device import make_core

from llmk.api import AttentionFacts, LinearFacts, ModelFacts, MoEFacts, RecurrentFacts, StateTensor
from llmk.engine.wire.cost import Cost, CostModel
from llmk.engine.wire.request import EngineRequest
from llmk.engine.wire.sampling_params import SamplingParams
from llmk.engine.wire.step import StepPlan, Work

HIDDEN, VOCAB = 8, 100
PARTS: dict[str, Any] = {
    "attention": (AttentionFacts(num_layers=3, num_heads=4, num_kv_heads=2, head_dim=16),),
    "linear": (
        LinearFacts(site="up", in_features=8, out_features=20, bias=True, count=3),
        LinearFacts(site="lm_head", in_features=8, out_features=VOCAB),
    ),
}


def model(**parts: Any) -> ModelFacts:
    return ModelFacts(
        architecture="A", model="m.a", num_layers=3, hidden_size=HIDDEN, vocab_size=VOCAB, max_model_len=64,
        dtype="bfloat16", num_parameters=1000, **{**PARTS, **parts},
    )  # fmt: skip


def cost(facts: ModelFacts, *work: tuple[int, int, bool], devices: int = 1) -> Cost:
    """Of a step with ``(tokens before, tokens now, sample)`` for each request."""
    items = [Work(slot=i, before=0, num_tokens=now, sample=sample) for i, (_, now, sample) in enumerate(work)]
    estimate = CostModel(facts, dtype="bfloat16", cache_dtype="float32", devices=devices)
    return estimate.step(StepPlan(step=0, work=items), [before + now for before, now, _ in work])


def test_a_dense_model_by_hand() -> None:
    """Bfloat16 weights, float32 K/V: a chunk of 3 tokens behind 4 that samples nothing, and one behind 9 that does."""
    found = cost(model(), (4, 3, False), (9, 1, True))
    pairs = 5 + 6 + 7 + 10
    assert found.flops == 2 * 8 * 20 * 3 * 4 + 2 * 8 * VOCAB + 2 * 2 * 4 * 16 * 3 * pairs
    key = 3 * 2 * 2 * 16 * 4
    weights = 3 * 20 * (8 + 1) * 2 + 8 * VOCAB * 2
    rows_read = 4 * (HIDDEN + 3 * 8) * 2 + 8 * 2
    assert found.read_bytes == weights + rows_read + key * (7 + 10)
    assert found.written_bytes == 4 * (HIDDEN + 3 * 20) * 2 + VOCAB * 2 + key * 4


def test_quantized_weights_have_the_bits_of_their_format() -> None:
    up, head = PARTS["linear"]
    facts = model(linear=(replace(up, weight_format="int4"), head))
    options: dict[str, Any] = {"dtype": "bfloat16", "cache_dtype": "float32"}
    step = StepPlan(step=0, work=[Work(slot=0, before=0, num_tokens=1, new_blocks=[], sample=True)])
    quantized = CostModel(facts, weight_bits={"int4": 4.5}, **options).step(step, [1])
    wide = CostModel(facts, **options).step(step, [1])
    assert wide.read_bytes - quantized.read_bytes == 3 * 20 * 8 * (2 - 4.5 / 8)
    assert wide.flops == quantized.flops


def test_without_samples_the_head_is_not_read() -> None:
    whole, chunk = cost(model(), (0, 4, True)), cost(model(), (0, 4, False))
    assert whole.flops - chunk.flops == 2 * 8 * VOCAB
    assert whole.read_bytes - chunk.read_bytes == 8 * VOCAB * 2 + 8 * 2
    assert whole.written_bytes - chunk.written_bytes == VOCAB * 2


@pytest.mark.parametrize(
    ("before", "now", "pairs", "keys"),
    [(0, 3, 1 + 2 + 3, 3), (9, 1, 5, 5), (2, 1, 3, 3), (3, 4, 4 + 5 + 5 + 5, 7), (9, 4, 20, 8), (4, 1, 5, 5)],
)
@pytest.mark.parametrize("chunked", [False, True])
def test_a_window_bounds_what_is_seen_and_read(before: int, now: int, pairs: int, keys: int, chunked: bool) -> None:
    """Alone, and together with a chunk of 2, with which single tokens are counted another way."""
    site = AttentionFacts(num_layers=1, num_heads=1, num_kv_heads=1, head_dim=1, sliding_window=5)
    work = [(before, now, True), (0, 2, False)] if chunked else [(before, now, True)]
    found, none = cost(model(attention=(site,)), *work), cost(model(attention=()), *work)
    assert found.flops - none.flops == 4 * (pairs + (1 + 2) * chunked)
    assert found.read_bytes - none.read_bytes == 8 * (keys + 2 * chunked)


def test_latent_keys_are_values_too() -> None:
    site = AttentionFacts(num_layers=2, num_heads=8, num_kv_heads=1, head_dim=24, latent_dim=16)
    found, none = cost(model(attention=(site,)), (9, 1, True)), cost(model(attention=()), (9, 1, True))
    assert found.flops - none.flops == 2 * 8 * (24 + 16) * 2 * 10
    assert found.read_bytes - none.read_bytes == 2 * 24 * 4 * 10
    assert found.written_bytes - none.written_bytes == 2 * 24 * 4


@pytest.mark.parametrize(("tokens", "touched"), [(1, 2), (3, 6), (4, 8), (50, 8)])
def test_no_more_experts_are_read_than_tokens_can_reach(tokens: int, touched: int) -> None:
    experts = MoEFacts(site="moe", num_experts=8, top_k=2, hidden_size=8, intermediate_size=12, count=3, bias=True)
    found, none = cost(model(moe=(experts,)), (0, tokens, True)), cost(model(), (0, tokens, True))
    assert found.flops - none.flops == 2 * 3 * 8 * 12 * 2 * 3 * tokens
    weights = (3 * 8 * 12 + 2 * 12 + 8) * 3 * 2 * touched
    assert found.read_bytes - none.read_bytes == weights + (8 + 12) * 2 * 2 * 3 * tokens
    assert found.written_bytes - none.written_bytes == (2 * 12 + 8) * 2 * 2 * 3 * tokens


def test_experts_without_gates_have_two_matrices() -> None:
    experts = MoEFacts(site="moe", num_experts=8, top_k=2, hidden_size=8, intermediate_size=12, gated=False)
    found, none = cost(model(moe=(experts,)), (0, 1, True)), cost(model(), (0, 1, True))
    assert found.flops - none.flops == 2 * 2 * 8 * 12 * 2
    assert found.read_bytes - none.read_bytes == 2 * 8 * 12 * 2 * 2 + (8 + 12) * 2 * 2
    assert found.written_bytes - none.written_bytes == (12 + 8) * 2 * 2


def test_recurrent_state_is_read_and_written_once_for_each_request() -> None:
    state = RecurrentFacts(site="ssm", num_layers=3, tensors=(StateTensor("s", (4, 5), "float32"),))
    found, none = cost(model(recurrent=(state,)), (0, 7, True), (9, 1, True)), cost(model(), (0, 7, True), (9, 1, True))
    assert found.read_bytes - none.read_bytes == found.written_bytes - none.written_bytes == 2 * 3 * 20 * 4
    assert found.flops == none.flops


def test_where_no_linear_layers_are_named_parameters_are_counted() -> None:
    found, none = cost(model(linear=(), attention=()), (0, 7, True)), cost(model(attention=()), (0, 7, True))
    assert found.flops == 2 * 1000 * 7
    assert found.read_bytes == 1000 * 2 + 7 * HIDDEN * 2
    assert none.flops != found.flops


def test_devices_share_the_work() -> None:
    one, two = cost(model(), (4, 3, True)), cost(model(), (4, 3, True), devices=2)
    assert (two.flops, two.read_bytes, two.written_bytes) == (one.flops / 2, one.read_bytes / 2, one.written_bytes / 2)


def test_the_scheduler_counts_every_step() -> None:
    facts = model()
    core = make_core(cost=CostModel(facts, dtype="bfloat16", cache_dtype="float32"))
    core.add(EngineRequest(id="a", prompt_token_ids=[1] * 20, params=SamplingParams(max_tokens=2)))
    while core.has_work:
        core.step()
    steps = [cost(facts, (0, 16, False)), cost(facts, (16, 4, True)), cost(facts, (20, 1, True))]
    assert core.stats.flops == sum(step.flops for step in steps)
    assert core.stats.read_bytes == sum(step.read_bytes for step in steps)
    assert core.stats.written_bytes == sum(step.written_bytes for step in steps)
