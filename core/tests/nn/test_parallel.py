"""Shares of layers: what all processes have together is the whole, and what they make of it adds up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from plans import build, builder, choice, piece
from torch import Tensor

from llmk import tree
from llmk.api import CheckpointError, MoEFacts, StoredTensor
from llmk.api.facts import Cut
from llmk.nn import Embedding, Experts, Layer, Linear, LMHead, StepContext
from llmk.nn.blocks.mlp import GatedMLP
from llmk.nn.parallel import Parallel
from llmk.reference.moe import fused_moe
from llmk.reference.quantized_weight import prepare_fp8_block, prepare_int4_group

Sites = [
    choice("linear", "up", piece("linear")),
    choice("linear", "lm_head", piece("linear")),
    choice("op", "embedding", piece("embed")),
    choice("moe", "moe", piece("moe")),
]


def ranks(size: int) -> list[Parallel]:
    """The places of a stage's processes, each by itself: what they make is not added up."""
    return [Parallel(tensor_rank=rank, tensor_size=size) for rank in range(size)]


def loaded(layer: Layer, **stored: Tensor) -> None:
    """Loads ``stored``, by the last part of the name, and finishes the layer."""
    for parameter in layer.parameters:
        for name, shards in parameter.targets.items():
            if (tensor := stored.get(name.rpartition(".")[2])) is not None and len(shards) == len(parameter.names):
                parameter.load(shards, tensor)
        assert parameter.complete
    layer.finish()


@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 9))
def test_shares_of_units_cover_the_whole(size: int, times: int, width: int) -> None:
    units = size * times
    parts = [place.share(units * width, units) for place in ranks(size)]
    assert [row for part in parts for row in range(units * width)[part]] == list(range(units * width))
    assert [part.stop - part.start for part in parts] == [place.count(units) * width for place in ranks(size)]


@given(st.integers(1, 4), st.integers(2, 4), st.integers(1, 9))
def test_few_units_are_repeated(units: int, times: int, width: int) -> None:
    size = units * times
    parts = [place.share(units * width, units) for place in ranks(size)]
    assert parts == [slice(i * width, (i + 1) * width) for i in range(units) for _ in range(times)]


@given(st.integers(1, 9), st.integers(1, 50))
def test_padded_shares_cover_the_whole(size: int, rows: int) -> None:
    parts = [place.padded_share(rows) for place in ranks(size)]
    assert [row for part, _ in parts for row in range(rows)[part]] == list(range(rows))
    assert all(part.stop - part.start <= room for part, room in parts)
    assert len({room for _, room in parts}) == 1


@given(st.integers(1, 9), st.integers(0, 30))
def test_stages_have_all_layers_evenly(size: int, more: int) -> None:
    layers = [Parallel(stage=stage, num_stages=size).layers(size + more) for stage in range(size)]
    assert [layer for own in layers for layer in own] == list(range(size + more))
    assert max(map(len, layers)) - min(map(len, layers)) <= 1


def test_columns_by_heads() -> None:
    """Four query heads and one of keys and values, of two features each, for two processes."""
    weight, bias, x = torch.randn(12, 6), torch.randn(12), torch.randn(3, 6)
    whole = x @ weight.T + bias
    for rank, place in enumerate(ranks(2)):
        made = build(*Sites, parallel=place)
        parts, sizes = ("q", "k", "v"), (8, 2, 2)
        qkv = Linear(made, "qkv", 6, sizes, site="up", parts=parts, bias=True, parallel="column", units=(4, 1, 1))
        loaded(qkv, weight=weight, bias=bias)
        expected = torch.cat((whole[:, 4 * rank : 4 * rank + 4], whole[:, 8:]), dim=1)
        torch.testing.assert_close(qkv(x), expected)


def test_columns_of_several_parts_that_are_stored_as_one() -> None:
    """Two groups of heads, of which a part has three features each, another one."""
    weight, x = torch.randn(8, 6), torch.randn(3, 6)
    for rank, place in enumerate(ranks(2)):
        layer = Linear(build(*Sites, parallel=place), "in", 6, (6, 2), site="up", parallel="column", units=(2, 2))
        loaded(layer, weight=weight)
        torch.testing.assert_close(layer(x), x @ weight[[3 * rank, 3 * rank + 1, 3 * rank + 2, 6 + rank]].T)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_heads_that_are_stored_in_groups(size: int) -> None:
    """Falcon: for each of two key heads, its two query heads, the key and the value, of three features each."""
    weight, bias, x = torch.randn(24, 6), torch.randn(24), torch.randn(5, 6)
    heads = (x @ weight.T + bias).view(5, 2, 4, 3)
    queries, keys, values = heads[:, :, :2].flatten(1, 2), heads[:, :, 2], heads[:, :, 3]
    for place in ranks(size):
        own: dict[str, Any] = {"parallel": "column", "units": (4, 2, 2), "groups": 2, "bias": True}
        layer = Linear(build(*Sites, parallel=place), "qkv", 6, (12, 6, 6), site="up", **own)
        loaded(layer, weight=weight, bias=bias)
        parts = (part[:, place.share(part.shape[1])].flatten(1) for part in (queries, keys, values))
        torch.testing.assert_close(layer(x), torch.cat(list(parts), dim=1))


def test_row_parallel_sums_include_the_bias_once() -> None:
    weight, bias, x = torch.randn(5, 6), torch.randn(5), torch.randn(3, 6)
    total = torch.zeros(3, 5)
    for place in ranks(3):
        layer = Linear(build(*Sites, parallel=place), "down", 6, (5,), site="up", bias=True, parallel="row")
        loaded(layer, weight=weight, bias=bias)
        total += layer(x[:, place.share(6)])
    torch.testing.assert_close(total, x @ weight.T + bias)


def test_a_vocabulary_that_does_not_divide() -> None:
    """Seven tokens for three processes; the last one has but one, and rows that no token looks up."""
    table, hidden, ids = torch.randn(7, 4), torch.randn(2, 4), torch.arange(7)
    rows, logits = torch.zeros(7, 4), []
    for place in ranks(3):
        made = build(*Sites, parallel=place)
        embedding = Embedding(made, "embed", 7, 4, aliases=("head.weight",))
        head = LMHead(made, "head", 4, 7, tied_to=embedding)
        loaded(embedding, weight=table)
        assert embedding.weight.shape == head.weight.shape == (3, 4)
        rows += embedding(ids)
        logits.append(hidden @ head.weight.T)
    assert torch.equal(rows, table)
    torch.testing.assert_close(torch.cat(logits, dim=1)[:, :7], hidden @ table.T)


def test_a_tied_head_may_have_a_bias() -> None:
    table, bias, hidden = torch.randn(7, 4), torch.randn(7), torch.randn(2, 4)
    made = build(*Sites)
    embedding = Embedding(made, "embed", 7, 4, aliases=("head.weight",))
    head = LMHead(made, "head", 4, 7, tied_to=embedding, bias=True)
    loaded(embedding, weight=table)
    loaded(head, bias=bias)
    torch.testing.assert_close(head(hidden), hidden @ table.T + bias)


def test_a_tied_head_on_another_stage_has_a_table_of_its_own() -> None:
    table = torch.randn(7, 4)
    made = build(*Sites, parallel=Parallel(stage=1, num_stages=2))
    with made.stage(False):
        embedding = Embedding(made, "embed", 7, 4, aliases=("head.weight",))
    head = LMHead(made, "head", 4, 7, tied_to=embedding)
    assert [layer.here for layer in made.layers] == [False, True]
    assert head.parameters[0].names == ("embed.weight",)  # dummy values go by the name
    loaded(head, weight=table)
    assert torch.equal(head(torch.eye(4)), table.T)


@pytest.mark.parametrize("stacked", [True, False])
def test_experts_are_all_reduced(stacked: bool) -> None:
    facts = MoEFacts(site="moe", num_experts=3, top_k=2, hidden_size=6, intermediate_size=4, bias=True)
    values = {"gate_up": torch.randn(3, 8, 6), "down": torch.randn(3, 6, 4)}
    values |= {"gate_up_bias": torch.randn(3, 8), "down_bias": torch.randn(3, 6)}
    x, logits = torch.randn(5, 6), torch.randn(5, 3)
    total = torch.zeros(5, 6)
    for place in ranks(2):
        experts = Experts(build(*Sites, parallel=place), "experts", facts, ("gate", "up", "down"))
        for parameter, value in zip(experts.parameters, values_of(experts, values), strict=True):
            whole = tuple(range(len(parameter.names)))
            if stacked:
                parameter.load(whole, value)
            else:
                for shard, rows in zip(whole, value.flatten(0, 1).chunk(len(whole)), strict=True):
                    parameter.load((shard,), rows)
        experts.finish()
        assert experts.weights["down"].shape == (3, 6, 2)
        total += experts(x, logits)
    torch.testing.assert_close(total, fused_moe(x, logits, values, top_k=2, renormalize=True))


def values_of(experts: Experts, values: dict[str, Tensor]) -> list[Tensor]:
    return [values[name] for name in ("gate_up", "down", "gate_up_bias", "down_bias")]


def stored(prefix: str, tensors: dict[str, Tensor]) -> dict[str, list[StoredTensor]]:
    names = {torch.uint8: "U8", torch.float8_e4m3fn: "F8_E4M3", torch.int32: "I32"}
    return {
        prefix: [
            StoredTensor(f"{prefix}.{name}", None, names.get(tensor.dtype, "F32"), tuple(tensor.shape), 0, 0)  # type: ignore[arg-type]
            for name, tensor in tensors.items()
        ]
    }


def quantized(
    tensors: dict[str, Tensor], place: Parallel, parallel: Cut, columns: int, *sizes: int, units: tuple[int, ...] = ()
) -> dict[str, Tensor]:
    """What a process has of a quantized layer of parts of ``sizes`` rows, stored as one."""
    query = {"in_features": columns, "out_features": sum(sizes), "weight_format": "any"}
    made = build(choice("linear", "up", piece("linear_scaled", prepare="keep"), **query), parallel=place)
    layer = Linear(made, "up", columns, sizes, site="up", parallel=parallel, units=units)
    layer.discover(stored("up", tensors))
    loaded(layer, **tensors)
    kept: dict[str, Tensor] = layer.weight
    return kept


FORMATS: dict[str, tuple[Callable[..., object], dict[str, Tensor]]] = {
    "int4_group": (
        prepare_int4_group,
        {
            "weight_packed": torch.randint(0, 256, (512, 256), dtype=torch.uint8),
            "weight_scale": torch.rand(512, 16),
            "weight_zero_point": torch.rand(512, 16),
        },
    ),
    "fp8_block": (
        prepare_fp8_block,
        {"weight": torch.randn(512, 512).to(torch.float8_e4m3fn), "weight_scale": torch.rand(4, 4)},
    ),
}


@pytest.mark.parametrize("parallel", ["column", "row"])
@pytest.mark.parametrize("name", FORMATS)
def test_quantized_weights_are_sharded_with_their_scales(name: str, parallel: Cut) -> None:
    prepare, tensors = FORMATS[name]
    whole = prepare(tensors).dequantize(torch.float32)  # type: ignore[attr-defined]
    parts = [
        prepare(quantized(tensors, place, parallel, 512, 512)).dequantize(torch.float32)  # type: ignore[attr-defined]
        for place in ranks(2)
    ]
    assert torch.equal(torch.cat(parts, dim=0 if parallel == "column" else 1), whole)


def test_scales_of_several_parts_that_are_stored_as_one() -> None:
    """A scale for 128 rows each: the second half of both parts has the second and the last one. One for all stays."""
    weight, scale = torch.arange(512 * 8).view(512, 8).to(torch.uint8), torch.rand(4, 1)
    for stored, expected in ((scale, scale[1::2]), (scale[:1], scale[:1])):
        tensors = {"weight": weight, "weight_scale": stored}
        found = quantized(tensors, Parallel(1, 2), "column", 8, 256, 256, units=(2, 2))
        assert torch.equal(found["weight"], torch.cat((weight[128:256], weight[384:])))
        assert torch.equal(found["weight_scale"], expected)


@pytest.mark.parametrize(
    ("tensors", "rows", "why"),
    [
        ({"weight": torch.zeros(384, 8, dtype=torch.uint8), "weight_scale": torch.rand(3, 1)}, 384, "weight_scale"),
        ({"weight": torch.zeros(200, 8, dtype=torch.uint8), "weight_scale": torch.rand(2, 1)}, 200, "weight_scale"),
        ({"weight": torch.zeros(8, 8, dtype=torch.uint8), "g_idx": torch.zeros(8, dtype=torch.int32)}, 8, "g_idx"),
    ],
)
def test_what_cannot_be_sharded_is_named(tensors: dict[str, Tensor], rows: int, why: str) -> None:
    """Blocks that two processes would share, blocks of unknown size, and tensors of unknown meaning."""
    with pytest.raises(CheckpointError, match=f"up.{why} is stored in a format that can't be sharded over 2 processes"):
        quantized(tensors, ranks(2)[0], "column", 8, rows)
    assert set(quantized(tensors, Parallel(), "column", 8, rows)) == set(tensors)


def test_dummy_values_are_parts_of_the_whole() -> None:
    def filled(place: Parallel) -> Tensor:
        layer = Linear(build(*Sites, parallel=place), "up", 6, (4,), site="up", parallel="column")
        layer.parameters[0].fill(3)
        layer.finish()
        weight: Tensor = layer.weight
        return weight

    assert torch.equal(torch.cat([filled(place) for place in ranks(2)]), filled(Parallel()))


def test_the_kernel_is_called_directly_without_an_all_reduce() -> None:
    """By a process alone, and where the caller adds up."""

    def runs_kernel(place: Parallel, *, partial: bool = False) -> bool:
        made = build(choice("linear", "up", piece("linear")), parallel=place)
        layer = Linear(made, "down", 6, (4,), site="up", parallel="row", partial=partial)
        return layer._run is made.linear("up").run

    assert runs_kernel(Parallel())
    assert not runs_kernel(Parallel(tensor_size=2))
    assert runs_kernel(Parallel(tensor_size=2), partial=True)


class Doubling(Parallel):
    """One of two processes that always have the same."""

    def all_reduce(self, x: Tensor) -> Tensor:
        self.num_calls += 1
        return 2 * x


def test_routed_and_shared_experts_share_one_all_reduce() -> None:
    facts = MoEFacts(site="moe", num_experts=3, top_k=2, hidden_size=6, intermediate_size=4)
    place = Doubling(tensor_size=2)
    sites = [choice("linear", name, piece("linear")) for name in ("moe.router", "shared_gate_up", "shared_down")]
    made = build(*Sites, *sites, choice("op", "shared_gate_up_silu", piece("gated")), parallel=place)
    shared = tree.GatedMLP.of("mlp.shared", 6, 4, prefix="shared_", partial=True)
    spec = tree.MoE.of("mlp", facts, shared=shared)
    block = builder(made, spec).block(spec)
    mlp = GatedMLP(builder(made, shared), shared, fused=False)
    for layer in made.layers:
        for parameter in layer.parameters:
            parameter.fill(1)
        layer.finish()
    x, step = torch.randn(5, 6), StepContext(torch.zeros(1), [], [])
    expected = 2 * (block.experts(x, block.router(x)) + mlp(x, step))
    torch.testing.assert_close(block(x, step), expected)
    assert place.num_calls == 1
